"""Digests kept from one reading to the next, and when they are not believed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.code import digests, tree
from runner.code.digests import Digests
from runner.errors import SpecError
from runner.manifest import Snapshot


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two files that count as old from the start."""
    monkeypatch.setattr(digests, "TICK_NS", -(10**12))
    (tmp_path / "a.py").write_text("a=1")
    (tmp_path / "b.py").write_text("b=1")
    return tmp_path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the files whose content is read."""
    names: list[str] = []
    really = tree.open_regular

    def open_regular(path: str) -> object:
        names.append(os.path.basename(path))
        return really(path)

    monkeypatch.setattr(tree, "open_regular", open_regular)
    yield names


def read(root: Path, opened: list[str]) -> tuple[Snapshot, list[str]]:
    """A snapshot, and what was read for it."""
    opened.clear()
    return tree.read_snapshot(root), list(opened)


def test_unchanged_files_are_not_read_again(root: Path, opened: list[str]) -> None:
    first, names = read(root, opened)
    assert names == ["a.py", "b.py"]
    again, names = read(root, opened)
    assert names == []
    assert again.rows == first.rows
    assert tree.read_snapshot(root, None).rows == first.rows


def test_only_what_changed_is_read(root: Path, opened: list[str]) -> None:
    read(root, opened)
    before = os.stat(root / "a.py")
    (root / "a.py").write_text("a=2")
    os.utime(root / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    snapshot, names = read(root, opened)
    assert names == ["a.py"]
    assert snapshot.rows == tree.read_snapshot(root, None).rows
    (root / "b.py").rename(root / "c.py")
    assert read(root, opened)[1] == ["c.py"]


def test_mode_is_looked_up_each_time(root: Path, opened: list[str]) -> None:
    read(root, opened)
    (root / "a.py").chmod(0o755)
    assert read(root, opened)[0].rows[0][2] == 0o755


def test_file_that_just_changed_is_not_believed(tmp_path: Path, opened: list[str]) -> None:
    """Within one tick of the clock it might change once more and look the same."""
    (tmp_path / "a.py").write_text("a=1")
    assert read(tmp_path, opened)[1] == ["a.py"]
    assert read(tmp_path, opened)[1] == ["a.py"]
    assert not (tmp_path / ".runner" / "digests").exists()


def test_file_of_a_clock_ahead_is_not_believed(
    root: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read(root, opened)
    monkeypatch.setattr(digests, "TICK_NS", 2 * 10**9)
    (root / "a.py").write_text("a=2")
    assert read(root, opened)[1] == ["a.py"]
    assert read(root, opened)[1] == ["a.py"]


def test_secret_that_was_sent_once_is_refused_when_it_is_no_longer_asked_for(root: Path) -> None:
    (root / "a.py").write_text("-----BEGIN PRIVATE KEY-----\n")
    (root / ".runnerignore").write_text("!a.py\n")
    tree.read_snapshot(root)
    (root / ".runnerignore").write_text("\n")
    with pytest.raises(SpecError, match=r"a\.py \(private key\) looks like a secret"):
        tree.read_snapshot(root)


@pytest.mark.parametrize(
    "damage", ["cut", "byte", "version", "empty", "no-json", "folder", "fifo", "zero"]
)
def test_damaged_cache_is_not_used(root: Path, opened: list[str], damage: str) -> None:
    first, _ = read(root, opened)
    path = root / ".runner" / "digests"
    data = path.read_bytes()
    if damage in ("folder", "fifo", "zero"):
        path.unlink()
        if damage == "zero":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir() if damage == "folder" else os.mkfifo(path)
    else:
        digit = data[-3:-2]
        path.write_bytes(
            {
                "cut": data[:-1],
                "byte": data[:-3] + (b"0" if digit != b"0" else b"1") + data[-2:],
                "version": data.replace(b"/1", b"/2", 1),
                "empty": b"",
                "no-json": b"\0" * 100,
            }[damage]
        )
    again, names = read(root, opened)
    assert names == ["a.py", "b.py"]
    assert again.rows == first.rows
    assert [name for name in os.listdir(root / ".runner") if name.endswith(".tmp")] == []


def test_cache_can_be_deleted_or_not_be_writable(root: Path, opened: list[str]) -> None:
    read(root, opened)
    (root / ".runner" / "digests").unlink()
    (root / ".runner").rmdir()
    (root / ".runner").write_text("a file in its place")
    assert read(root, opened)[1] == ["a.py", "b.py"]
    assert read(root, opened)[1] == ["a.py", "b.py"]


def test_what_is_gone_is_forgotten(root: Path, opened: list[str]) -> None:
    read(root, opened)
    (root / "a.py").unlink()
    read(root, opened)
    body = (root / ".runner" / "digests").read_bytes().partition(b"\n")[2]
    assert list(json.loads(body)) == ["b.py"]


def test_nothing_is_written_when_nothing_changed(root: Path, opened: list[str]) -> None:
    read(root, opened)
    before = os.stat(root / ".runner" / "digests")
    read(root, opened)
    assert os.path.samestat(os.stat(root / ".runner" / "digests"), before)


def test_of_two_writers_the_last_one_wins(root: Path) -> None:
    path = os.fspath(root / ".runner" / "digests")
    one, two = Digests(path), Digests(path)
    one.keep("a.py", os.stat(root / "a.py"), "1")
    two.keep("b.py", os.stat(root / "b.py"), "2")
    one.save()
    two.save()
    left = Digests(path)
    assert left.known("a.py", os.stat(root / "a.py")) is None
    assert left.known("b.py", os.stat(root / "b.py")) == "2"


def test_leftovers_of_writers_that_were_killed_go(root: Path, opened: list[str]) -> None:
    (root / ".runner").mkdir()
    old, new = root / ".runner" / "digests.1.2.tmp", root / ".runner" / "digests.3.4.tmp"
    for path in (old, new):
        path.write_text("half")
    os.utime(old, (time.time() - 7200,) * 2)
    read(root, opened)
    assert sorted(os.listdir(root / ".runner")) == ["digests", "digests.3.4.tmp"]


def test_names_of_odd_bytes_are_kept(root: Path, opened: list[str]) -> None:
    (root / os.fsdecode(b"\xff\n.py")).write_text("x")
    read(root, opened)
    assert read(root, opened)[1] == []
