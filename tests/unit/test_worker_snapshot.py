from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import snapshot
from paths import Workspace

from runner import wire
from tests.helpers.blobs import digest, file_row, store

Rows = list[list[Any]]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(str(tmp_path / "ws"))
    made.make()
    return made


GOOD = digest(b"x")


@pytest.mark.parametrize(
    "rows",
    [
        None,
        {},
        "rows",
        ["row"],
        [["a", "f", 0, 1]],
        [["a", "f", "0", 1, GOOD]],
        [["a", "f", 0, "1", GOOD]],
        [["a", "f", 0, -1, GOOD]],
        [["a", "f", 0, 2**70, GOOD]],
        [["a", "x", 0, 1, GOOD]],
        [["a", "f", 0, 1, "no digest"]],
        [["a", "f", 0, 1, None]],
        [["../a", "f", 0, 1, GOOD]],
        [["/a", "f", 0, 1, GOOD]],
        [["a//b", "f", 0, 1, GOOD]],
        [["a/./b", "f", 0, 1, GOOD]],
        [["", "d", 0, 0, ""]],
        [["a\0b", "d", 0, 0, ""]],
        [[5, "d", 0, 0, ""]],
        [["a", "d", 0, 0, ""], ["a", "d", 0, 0, ""]],
        [["a", "l", 0, 0, "/etc"]],
        [["a", "l", 0, 0, "../x"]],
        [["d/a", "l", 0, 0, "../../x"]],
        [["a", "l", 0, 0, "b/../../x"]],
        [["a", "l", 0, 0, ""]],
        [["a", "l", 0, 0, 7]],
        [["a", "l", 0, 0, "b"], ["a/b", "f", 0, 1, GOOD]],
        [["a", "f", 0, 1, GOOD], ["a/b/c", "f", 0, 1, GOOD]],
        [["a", "d", 0, 0, ""], ["a/b", "f", 0, 1, GOOD]],
    ],
)
def test_rows_that_are_no_tree_are_refused(rows: Any) -> None:
    with pytest.raises(snapshot.BadTree):
        snapshot.check_rows(rows)


def test_rows_that_are_one() -> None:
    rows = [
        ["a/b", "f", 0o644, 1, GOOD],
        ["a/up", "l", 0, 0, "../c"],
        ["c", "d", 0, 0, ""],
        ["n\udcff\n'", "l", 0, 0, "a/b"],
    ]
    assert snapshot.check_rows(rows) == rows


def test_only_contents_that_are_not_there_are_needed(workspace: Workspace) -> None:
    rows = [file_row("a", b"one"), file_row("b", b"two"), file_row("c", b"two")]
    assert snapshot.needed(workspace, rows) == sorted({digest(b"one"), digest(b"two")})
    store(workspace, b"two")
    assert snapshot.needed(workspace, rows) == [digest(b"one")]


BASE = [["a", "f", 0o644, 1, GOOD], ["b", "f", 0o644, 1, GOOD]]


def test_changes_make_other_rows() -> None:
    new = ["c", "d", 0, 0, ""]
    edited = ["b", "f", 0o755, 1, GOOD]
    assert snapshot.changed(BASE, [["a", "nowhere"], [new, edited]]) == [edited, new]
    assert snapshot.changed(BASE, [[], []]) == BASE


@pytest.mark.parametrize(
    "changes",
    [None, {}, [], [[]], [[], [], []], [{}, []], [[], {}], [[], ["a"]], [[], [[]]], [[[]], []]]
    + [[[], [3]], [[], [[["x"], 1]]], [[], [[3, "f", 0, 1, GOOD]]]],
)
def test_what_are_no_changes(changes: Any) -> None:
    with pytest.raises(snapshot.BadTree):
        snapshot.check_rows(snapshot.changed(BASE, changes))


CODE = b"print('hello')\n"
TOOL = b"#!/bin/sh\n"


@pytest.fixture
def rows(workspace: Workspace) -> Rows:
    store(workspace, CODE, TOOL)
    return [
        ["empty/deep", "d", 0, 0, ""],
        ["link", "l", 0, 0, "pkg/code.py"],
        file_row("pkg/code.py", CODE),
        file_row("pkg/inner/n\udcff", CODE),
        file_row("tool.sh", TOOL, 0o755),
    ]


@pytest.fixture
def copy(workspace: Workspace, rows: Rows) -> Path:
    target = Path(workspace.root) / "code" / "run-1"
    snapshot.lay_out(workspace, rows, str(target))
    return target


def test_a_copy_is_what_the_rows_say(copy: Path, rows: Rows) -> None:
    assert (copy / "pkg/code.py").read_bytes() == CODE
    assert (copy / "pkg/code.py").stat().st_mode & 0o777 == 0o444
    assert (copy / "tool.sh").stat().st_mode & 0o777 == 0o555
    assert (copy / "link").readlink() == Path("pkg/code.py")
    assert os.path.exists(os.fsencode(copy) + b"/pkg/inner/n\xff")
    assert (copy / "empty/deep").is_dir()
    assert (copy / "pkg").stat().st_mode & 0o700 == 0o700
    assert snapshot.differences(rows, str(copy)) == []
    assert [entry.name for entry in copy.parent.iterdir()] == ["run-1"]


def test_a_large_snapshot_is_linked_but_for_scripts(
    workspace: Workspace, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "COPY_LIMIT_BYTES", 10)
    target = Path(workspace.root) / "code" / "run-2"
    snapshot.lay_out(workspace, rows, str(target))
    blob = os.stat(workspace.blob(digest(CODE)))
    assert (target / "pkg/code.py").stat().st_ino == blob.st_ino
    assert (target / "tool.sh").stat().st_ino != os.stat(workspace.blob(digest(TOOL))).st_ino
    assert (target / "tool.sh").stat().st_mode & 0o777 == 0o555
    assert snapshot.differences(rows, str(target)) == []


def test_a_copy_that_cannot_be_made_leaves_nothing(workspace: Workspace, rows: Rows) -> None:
    os.unlink(workspace.blob(digest(TOOL)))
    with pytest.raises(snapshot.BadContents):
        snapshot.lay_out(workspace, rows, str(Path(workspace.root) / "code" / "run-3"))
    assert not list((Path(workspace.root) / "code").iterdir())


def test_files_of_the_jobs_own_are_no_difference(copy: Path, rows: Rows) -> None:
    (copy / "runs").mkdir()
    (copy / "pkg/new.py").write_text("x")
    assert snapshot.differences(rows, str(copy)) == []


def wreck(copy: Path, how: str) -> None:
    code = copy / "pkg/code.py"
    if how == "edited":
        code.chmod(0o644)
        code.write_bytes(CODE.upper())
    elif how == "gone":
        code.unlink()
    elif how == "a folder in its place":
        code.unlink()
        (code / "x").mkdir(parents=True)
    elif how == "a link in its place":
        code.unlink()
        code.symlink_to("/etc/hostname")
    elif how == "its folder gone":
        shutil.rmtree(copy / "pkg")
    elif how == "its folder a link":
        (copy / "pkg").rename(copy.parent.parent / "moved")
        (copy / "pkg").symlink_to(copy.parent.parent / "moved")
    elif how == "its folder a file":
        shutil.rmtree(copy / "pkg")
        (copy / "pkg").write_text("x")
    elif how == "not executable":
        (copy / "tool.sh").chmod(0o444)
    elif how == "another link":
        (copy / "link").unlink()
        (copy / "link").symlink_to("tool.sh")
    else:
        (copy / "empty/deep").rmdir()


@pytest.mark.parametrize(
    "how",
    [
        "edited",
        "gone",
        "a folder in its place",
        "a link in its place",
        "its folder gone",
        "its folder a link",
        "its folder a file",
        "not executable",
        "another link",
        "empty folder gone",
    ],
)
def test_what_a_job_did_to_its_copy_is_seen_and_undone(
    workspace: Workspace, rows: Rows, copy: Path, how: str
) -> None:
    (copy / "kept.txt").write_text("the job's own")
    wreck(copy, how)
    assert snapshot.differences(rows, str(copy))
    snapshot.restore(workspace, rows, str(copy))
    assert snapshot.differences(rows, str(copy)) == []
    assert (copy / "kept.txt").read_text() == "the job's own"
    if how == "its folder a link":
        # what lies behind the link is not ours to touch
        assert (copy.parent.parent / "moved/code.py").read_bytes() == CODE


def test_a_tree_is_kept_by_its_digest(workspace: Workspace, rows: Rows) -> None:
    name = wire.tree_digest(rows)
    assert snapshot.read_tree(workspace, name) is None
    snapshot.write_tree(workspace, name, rows)  # type: ignore[arg-type]
    assert snapshot.read_tree(workspace, name) == rows
    assert wire.tree_digest(snapshot.read_tree(workspace, name) or []) == name


def test_a_digest_of_the_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abcdef")
    assert snapshot.file_digest(str(tmp_path / "f"), 3) == digest(b"abc")
    assert snapshot.file_digest(str(tmp_path / "f")) == digest(b"abcdef")


def test_what_a_run_takes_is_known_from_the_list(workspace: Workspace) -> None:
    here, other = b"h" * 5000, b"o" * 9000
    store(workspace, here)
    rows = [file_row("a/b/here", here), file_row("other", other), file_row("twice", other)]
    waits = snapshot.room_for(rows, snapshot.needed(workspace, rows), copied=False)
    starts = snapshot.room_for(rows, snapshot.needed(workspace, rows), copied=True)
    # one content of three blocks comes; the copy has files of 2, 3 and 3, and two folders
    assert starts.bytes - waits.bytes == (2 + 3 + 3 + 2) * 4096
    assert starts.files - waits.files == 3 + 2
    store(workspace, other)
    assert (
        waits.bytes - snapshot.room_for(rows, snapshot.needed(workspace, rows), copied=False).bytes
        == 3 * 4096
    )


def test_large_code_is_linked_and_takes_nothing_but_its_scripts(workspace: Workspace) -> None:
    large = ["large", "f", 0o644, snapshot.COPY_LIMIT_BYTES + 1, digest(b"large")]
    script = ["run.sh", "f", 0o755, 10, digest(b"script")]
    rows = [large, script]
    waits = snapshot.room_for(rows, snapshot.needed(workspace, rows), copied=False)
    assert (
        snapshot.room_for(rows, snapshot.needed(workspace, rows), copied=True).bytes - waits.bytes
        == 4096
    )


@pytest.mark.parametrize("large", [False, True])
def test_contents_that_are_damaged_are_put_in_no_place(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """Of large code a copy has second names of them, through which a job may have written."""
    if large:
        monkeypatch.setattr(snapshot, "COPY_LIMIT_BYTES", 0)
    store(workspace, b"good", b"other")
    rows = [file_row("a", b"good"), file_row("b", b"other")]
    copy = tmp_path / "copy"
    snapshot.lay_out(workspace, rows, str(copy))
    blob = Path(workspace.blob(digest(b"good")))
    blob.chmod(0o644)
    blob.write_bytes(b"GOOD")
    (copy / "a").unlink()
    with pytest.raises(snapshot.BadContents, match="of a was damaged"):
        snapshot.restore(workspace, rows, str(copy))
    assert snapshot.needed(workspace, rows) == [digest(b"good")]
    store(workspace, b"good")
    snapshot.restore(workspace, rows, str(copy))
    assert snapshot.differences(rows, str(copy)) == []


def test_all_that_is_damaged_is_named_at_once(workspace: Workspace, tmp_path: Path) -> None:
    store(workspace, b"1", b"2", b"3")
    rows = [file_row(text, text.encode()) for text in "123"]
    for text in "13":
        blob = Path(workspace.blob(digest(text.encode())))
        blob.chmod(0o644)
        blob.write_bytes(b"")
    with pytest.raises(snapshot.BadContents) as caught:
        snapshot.lay_out(workspace, rows, str(tmp_path / "copy"))
    assert caught.value.paths == ["1", "3"]
    assert not (tmp_path / "copy").exists()


def test_a_list_is_compared_with_its_name(workspace: Workspace) -> None:
    rows = [file_row("a", b"x")]
    name = wire.tree_digest(rows)
    snapshot.write_tree(workspace, name, rows)
    assert snapshot.read_tree(workspace, name, checked=True) == rows
    path = Path(workspace.tree(name))
    for text in ('"b"', "[]", "7"):
        damaged = path.read_text().replace('"a"', text)
        path.write_text(damaged)
        assert snapshot.read_tree(workspace, name, checked=True) is None
        path.write_text(damaged.replace(text, '"a"', 1))
