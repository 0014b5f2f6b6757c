"""What is fetched, left and kept, decided from listings alone; a listing is trusted in nothing."""

from __future__ import annotations

from typing import Any

import pytest

from runner.errors import SpecError
from runner.manifest import (
    Fetch,
    Gathered,
    Growth,
    Known,
    LocalFile,
    PullPlan,
    RemoteFile,
    Snapshot,
    gaps,
    merged,
    parse_what,
    plan_mirror,
    plan_pull,
    read_listing,
    room_needed,
    select,
)

LOG = RemoteFile("logs", "rank-0.log", 100, 7)
POINT = RemoteFile("checkpoints", "step-1/model.pt", 50, 7)


def plan(
    file: RemoteFile,
    known: Known | None = None,
    local: LocalFile | None = None,
    part: Gathered | None = None,
    **how: Any,
) -> PullPlan:
    name = file.name
    return plan_pull(
        [file],
        {name: known} if known else {},
        {name: local} if local else {},
        {name: part} if part else {},
        **how,
    )


def test_new_file_is_fetched_whole() -> None:
    assert plan(POINT) == PullPlan(fetch=(Fetch(POINT),))
    assert Fetch(POINT).missing == 50


def test_cut_fetch_goes_on_with_what_is_missing() -> None:
    here = ((0, 20), (30, 40))
    found = plan(POINT, part=Gathered(50, 7, here)).fetch
    assert found == (Fetch(POINT, here),)
    assert found[0].missing == 20


@pytest.mark.parametrize("part", [Gathered(50, 6, ((0, 20),)), Gathered(51, 7, ((0, 20),))])
def test_what_was_gathered_of_another_version_is_of_no_use(part: Gathered) -> None:
    assert plan(POINT, part=part).fetch == (Fetch(POINT),)


def test_what_was_gathered_of_a_log_goes_on_though_it_grew() -> None:
    assert plan(LOG, part=Gathered(90, 3, ((0, 80),))).fetch == (Fetch(LOG, ((0, 80),)),)
    assert plan(LOG, part=Gathered(101, 3, ((0, 80),))).fetch == (Fetch(LOG),)


def test_what_is_whole_and_verified_only_waits_for_its_place() -> None:
    part = Gathered(50, 7, ((0, 50),), "sum")
    assert plan(POINT, part=part) == PullPlan(ready=(Fetch(POINT, ((0, 50),)),))
    assert plan(RemoteFile("checkpoints", "step-1/model.pt", 50, 8), part=part).ready == ()


def test_same_file_is_left() -> None:
    known, local = Known(50, 7, "s", 99), LocalFile(50, 99)
    assert plan(POINT, known, local) == PullPlan(unchanged=(POINT,))


@pytest.mark.parametrize("was", [Known(50, 6, "s", 99), Known(50, 8, "s", 99)])
def test_checkpoint_written_again_is_fetched_whole_though_its_size_is_the_same(was: Known) -> None:
    here = LocalFile(50, 99)
    assert plan(POINT, was, here).fetch == (Fetch(POINT, replaces=here),)


def test_checkpoint_that_grew_is_fetched_whole() -> None:
    here = LocalFile(40, 99)
    assert plan(POINT, Known(40, 6, "s", 99), here).fetch == (Fetch(POINT, replaces=here),)


def test_log_that_grew_is_appended_to_and_verified_from_its_first_byte() -> None:
    here = LocalFile(60, 99)
    (found,) = plan(LOG, Known(60, 3, "s", 99), here).fetch
    assert found == Fetch(LOG, growth=Growth(60, 99), replaces=here)
    assert found.missing == 40


def test_log_that_grew_is_verified_from_a_little_before_what_is_new() -> None:
    known, here = Known(60, 3, "s", 99), LocalFile(60, 99)
    assert plan(LOG, known, here, window=10).fetch[0].growth == Growth(60, 99, 50)
    assert plan(LOG, known, here, window=100).fetch[0].growth == Growth(60, 99, 0)


def test_log_of_which_only_the_end_was_verified_is_verified_whole_once() -> None:
    known, here = Known(100, 7, "", 99), LocalFile(100, 99)
    assert plan(LOG, known, here, window=10) == PullPlan(unchanged=(LOG,))
    assert plan(LOG, known, here).fetch[0].growth == Growth(100, 99)
    assert plan(LOG, Known(100, 7, "s", 99), here) == PullPlan(unchanged=(LOG,))


def test_log_of_the_same_size_and_another_time_is_verified() -> None:
    found = plan(LOG, Known(100, 6, "s", 99), LocalFile(100, 99)).fetch
    assert [item.missing for item in found] == [0]


@pytest.mark.parametrize(
    ("size", "how"), [(160, {}), (60, {"afresh": {LOG.name}})], ids=["shrank", "is another"]
)
def test_log_that_cannot_be_appended_to_is_fetched_whole(size: int, how: Any) -> None:
    here = LocalFile(size, 99)
    assert plan(LOG, Known(size, 3, "s", 99), here, **how).fetch == (Fetch(LOG, replaces=here),)


def test_log_that_somebody_may_have_written_to_is_completed_or_kept() -> None:
    known, here, how = Known(60, -1, "", 99), LocalFile(60, 99), {"doubtful": {LOG.name}}
    assert plan(LOG, known, here, **how).fetch[0].growth == Growth(60, 99)
    assert plan(LOG, known, here, afresh={LOG.name}, **how) == PullPlan(kept=(LOG.name,))


@pytest.mark.parametrize("local", [LocalFile(50, 98), LocalFile(51, 99), LocalFile(0, 0)])
def test_file_edited_here_is_kept(local: LocalFile) -> None:
    assert plan(POINT, Known(50, 7, "s", 99), local) == PullPlan(kept=(POINT.name,))


def test_file_no_pull_made_is_kept() -> None:
    part = Gathered(50, 7, ((0, 10),))
    assert plan(POINT, None, LocalFile(50, 99), part) == PullPlan(kept=(POINT.name,))


def test_file_deleted_here_comes_again() -> None:
    assert plan(POINT, Known(50, 7, "s", 99), None).fetch == (Fetch(POINT),)


def remote(*names: str) -> list[RemoteFile]:
    return [RemoteFile(*name.split("/", 1), 1, 1) for name in names]  # type: ignore[arg-type]


ALL = remote(
    "checkpoints/step-1/model.pt",
    "checkpoints/step-10/model.pt",
    "checkpoints/best.pt",
    "logs/rank-0.log",
    "logs/events.out.tfevents.17.host.1.0",
    "work/tb/events.out.tfevents.18.host.1.0",
    "work/out.txt",
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("checkpoints", {ALL[0], ALL[1], ALL[2]}),
        ("logs", {ALL[3], ALL[4]}),
        ("work", {ALL[5], ALL[6]}),
        ("last", {ALL[1]}),
        ("best", {ALL[0]}),
        ("events", {ALL[4], ALL[5]}),
        ("best, last,logs", {ALL[0], ALL[1], ALL[3], ALL[4]}),
    ],
)
def test_parts_of_a_run_are_chosen_by_name(text: str, names: set[RemoteFile]) -> None:
    assert set(select(ALL, parse_what(text), "step-1", "step-10")) == names
    assert select(ALL, (), "step-1", "step-10") == ALL
    assert not set(select(ALL, parse_what(text), None, None)) - names


@pytest.mark.parametrize(
    ("text", "says"), [("lats", "did you mean last"), ("", "is none of"), ("logs,", "is none of")]
)
def test_unknown_part_is_refused_with_the_list(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as caught:
        parse_what(text)
    assert "checkpoints, logs, work, best, last, events" in caught.value.message


def test_mirror_removes_unedited_files_of_checkpoints_that_are_gone() -> None:
    known = {
        name: Known(5, 1, "s", 9)
        for name in (
            *("checkpoints/step-1/manifest.json", "checkpoints/step-1/model.pt"),
            *("checkpoints/step-2/model.pt", "checkpoints/step-3", "logs/old"),
        )
    }
    local = {name: LocalFile(5, 9) for name in known}
    there = remote("checkpoints/step-2/model.pt")
    assert plan_mirror(there, known, local) == [
        "checkpoints/step-1/model.pt",
        "checkpoints/step-3",
        "checkpoints/step-1/manifest.json",
    ]
    local["checkpoints/step-3"] = LocalFile(6, 9)
    assert "checkpoints/step-3" not in plan_mirror(there, known, local)
    assert plan_mirror(remote("logs/x"), known, local) == []


def test_room_is_that_of_what_comes_less_what_it_replaces() -> None:
    sparse = RemoteFile("logs", "a", 1_000_000, 1, False, 4096)
    assert room_needed([Fetch(sparse)]) == 4096
    assert room_needed([Fetch(POINT, ((0, 20),))]) == 30
    assert room_needed([Fetch(POINT, replaces=LocalFile(40, 1))]) == 10
    assert room_needed([Fetch(LOG, growth=Growth(60, 1), replaces=LocalFile(60, 1))]) == 40


def test_stretches_and_what_lies_between() -> None:
    pairs = [(30, 40), (0, 10), (10, 20), (35, 50), (7, 3), (90, 200)]
    assert merged(pairs, 100) == ((0, 20), (30, 50), (90, 100))
    assert gaps(100, ((0, 20), (30, 50))) == [(20, 30), (50, 100)]
    assert gaps(0, ()) == gaps(5, ((0, 5),)) == []


GOOD = ["work", "a/b", 3, 9, False, 4096]


def test_listing_is_read() -> None:
    files, refused = read_listing([GOOD, ["logs", "x", 0, 0, True, 0]])
    assert files == [
        RemoteFile("work", "a/b", 3, 9, False, 4096),
        RemoteFile("logs", "x", 0, 0, True, 0),
    ]
    assert refused == []


@pytest.mark.parametrize(
    "row",
    [
        *(
            ["work", name, 3, 9, False, 0]
            for name in ("../x", "/etc/x", "a/../../x", "", "a//b", "a/")
        ),
        *(["work", name, 3, 9, False, 0] for name in ("a\0", ".", "\ud800", None, 3, ["a"])),
        *(
            [kind, "x", 3, 9, False, 0]
            for kind in ("..", "", "spec.json", ".parts", None, 3, ["work"])
        ),
        *(["work", "x", size, 9, False, 0] for size in (-1, 1.5, "3", None, 1 << 63)),
        ["work", "x", 3, "9", False, 0],
        *(["work", "x", 3, 9, False, room] for room in (-1, None, "0")),
        ["work", "x", 3],
        ["work", "x", 3, 9, False, 1, 1],
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
    files, refused = read_listing([["work", name, 1, 1, False, 0] for name in (first, second)])
    assert [file.path for file in files] == [first]
    assert refused == [f"work/{second}"]


def test_contents_are_found_by_one_of_their_paths() -> None:
    rows = (("a", "f", 0o644, 1, "d1"), ("b", "f", 0o644, 1, "d1"), ("c", "l", 0, 0, "a"))
    assert set(Snapshot(rows, "x", {}).paths) == {"d1"}
