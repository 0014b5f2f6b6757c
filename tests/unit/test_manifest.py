"""What is fetched, left and kept, decided from listings alone; a listing is trusted in nothing."""

from __future__ import annotations

from typing import Any

import pytest

from runner.manifest import (
    Fetch,
    Known,
    LocalFile,
    PullPlan,
    RemoteFile,
    Snapshot,
    plan_pull,
    read_listing,
)

LOG = RemoteFile("logs", "rank-0.log", 100, 7)
POINT = RemoteFile("checkpoints", "step-1/model.pt", 50, 7)


def plan(
    file: RemoteFile,
    known: Known | None = None,
    local: LocalFile | None = None,
    part: int | None = None,
) -> PullPlan:
    name = file.name
    return plan_pull(
        [file],
        {name: known} if known else {},
        {name: local} if local else {},
        {} if part is None else {name: part},
    )


def test_new_file_is_fetched_from_its_first_byte() -> None:
    assert plan(POINT) == PullPlan(fetch=(Fetch(POINT, 0),))


@pytest.mark.parametrize(("there", "offset"), [(0, 0), (20, 20), (50, 50), (70, 50)])
def test_cut_fetch_goes_on_where_it_was(there: int, offset: int) -> None:
    assert plan(POINT, part=there).fetch == (Fetch(POINT, offset),)


def test_same_file_is_left() -> None:
    known, local = Known(50, 7, "s", 99), LocalFile(50, 99)
    assert plan(POINT, known, local) == PullPlan(unchanged=(POINT,))


@pytest.mark.parametrize("was", [Known(50, 6, "s", 99), Known(50, 8, "s", 99)])
def test_checkpoint_written_again_is_fetched_whole_though_its_size_is_the_same(was: Known) -> None:
    assert plan(POINT, was, LocalFile(50, 99)).fetch == (Fetch(POINT, 0),)


def test_checkpoint_that_grew_is_fetched_whole() -> None:
    assert plan(POINT, Known(40, 6, "s", 99), LocalFile(40, 99)).fetch == (Fetch(POINT, 0),)


def test_log_that_grew_is_appended_to() -> None:
    assert plan(LOG, Known(60, 3, "s", 99), LocalFile(60, 99)).fetch == (Fetch(LOG, 60),)


@pytest.mark.parametrize(("part", "offset"), [(30, 60), (80, 80), (500, 100)])
def test_cut_append_goes_on_where_it_was(part: int, offset: int) -> None:
    assert plan(LOG, Known(60, 3, "s", 99), LocalFile(60, 99), part).fetch == (Fetch(LOG, offset),)


def test_log_that_shrank_is_fetched_whole() -> None:
    assert plan(LOG, Known(160, 3, "s", 99), LocalFile(160, 99)).fetch == (Fetch(LOG, 0),)


@pytest.mark.parametrize("local", [LocalFile(50, 98), LocalFile(51, 99), LocalFile(0, 0)])
def test_file_edited_here_is_kept(local: LocalFile) -> None:
    assert plan(POINT, Known(50, 7, "s", 99), local) == PullPlan(kept=(POINT.name,))


def test_file_no_pull_made_is_kept() -> None:
    assert plan(POINT, None, LocalFile(50, 99), part=10) == PullPlan(kept=(POINT.name,))


def test_file_deleted_here_comes_again() -> None:
    assert plan(POINT, Known(50, 7, "s", 99), None).fetch == (Fetch(POINT, 0),)


GOOD = ["work", "a/b", 3, 9, False]


def test_listing_is_read() -> None:
    files, refused = read_listing([GOOD, ["logs", "x", 0, 0, True]])
    assert files == [RemoteFile("work", "a/b", 3, 9), RemoteFile("logs", "x", 0, 0, True)]
    assert refused == []


@pytest.mark.parametrize(
    "row",
    [
        *(
            ["work", name, 3, 9, False]
            for name in ("../x", "/etc/x", "a/../../x", "", "a//b", "a/")
        ),
        *(["work", name, 3, 9, False] for name in ("a\0", ".", "\ud800", None, 3, ["a"])),
        *(
            [kind, "x", 3, 9, False]
            for kind in ("..", "", "spec.json", ".parts", None, 3, ["work"])
        ),
        *(["work", "x", size, 9, False] for size in (-1, 1.5, "3", None)),
        ["work", "x", 3, "9", False],
        ["work", "x", 3],
        ["work", "x", 3, 9, False, 1],
        {"kind": "work"},
        None,
        "work",
    ],
)
def test_row_that_is_no_file_is_refused_by_name(row: Any) -> None:
    files, refused = read_listing([GOOD, row])
    assert [file.path for file in files] == ["a/b"]
    assert len(refused) == 1
    assert refused[0] in repr(row)


@pytest.mark.parametrize(
    ("first", "second"), [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b"), ("a", "a/b/c")]
)
def test_names_that_collide_are_refused(first: str, second: str) -> None:
    files, refused = read_listing([["work", name, 1, 1, False] for name in (first, second)])
    assert [file.path for file in files] == [first]
    assert refused == [f"work/{second}"]


def test_contents_are_found_by_one_of_their_paths() -> None:
    rows = (("a", "f", 0o644, 1, "d1"), ("b", "f", 0o644, 1, "d1"), ("c", "l", 0, 0, "a"))
    assert set(Snapshot(rows, "x", {}).paths) == {"d1"}
