from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import records

from tests.helpers.small_disk import small_disk, use_up_inodes

HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(fd, fcntl.LOCK_SH if sys.argv[2] == "shared" else fcntl.LOCK_EX)
print("held", flush=True); sys.stdin.read()
"""


class Holder:
    """Another process that holds a lock."""

    def __init__(self, path: str, how: str) -> None:
        argv = [sys.executable, "-c", HOLD, path, how]
        self.child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == b"held\n"

    def __enter__(self) -> Holder:
        return self

    def __exit__(self, *_: object) -> None:
        self.child.kill()
        self.child.communicate()


def test_a_record_is_read_back(tmp_path: Path) -> None:
    path = str(tmp_path / "r.json")
    assert records.read(path) is None
    records.write(path, {"a": 1, "name": "\udcff"})
    assert records.read(path) == {"a": 1, "name": "\udcff"}
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize("data", [b"", b"{torn", b"[1]", b"\xff\xff", b"null"])
def test_what_is_no_record_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "r").write_bytes(data)
    assert records.read(str(tmp_path / "r")) is None
    assert records.read(str(tmp_path / "r" / "below")) is None


def test_a_reader_sees_the_old_or_the_new_one_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "r.json")
    code = (
        f"import sys; sys.path.insert(0, {os.path.dirname(records.__file__)!r})\n"
        "import records\n"
        "for n in range(400): records.write(sys.argv[1], {'n': n, 'fill': 'x' * 20000}, sync=False)"
    )
    records.write(path, {"n": -1})
    writer = subprocess.Popen([sys.executable, "-c", code, path])
    while writer.poll() is None:
        assert records.read(path) is not None
    assert writer.returncode == 0


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    with small_disk(tmp_path / "tiny", "64k"):
        yield tmp_path / "tiny"


def fill(place: Path) -> None:
    with open(place / "fill", "wb", buffering=0) as out, pytest.raises(OSError):
        while True:
            out.write(b"x" * 4096)


def test_on_a_full_disk_a_record_goes_into_its_spare(tiny: Path) -> None:
    path = str(tiny / "exit.json")
    records.make_spare(path)
    fill(tiny)
    with pytest.raises(OSError) as caught:
        records.write(str(tiny / "state.json"), {"x": 1})
    assert caught.value.errno == errno.ENOSPC
    records.write(path, {"cause": "x" * 1000})
    assert records.read(path) == {"cause": "x" * 1000}
    assert sorted(entry.name for entry in tiny.iterdir()) == ["exit.json", "fill"]


def test_on_a_full_disk_the_record_before_stays(tiny: Path) -> None:
    path = str(tiny / "state.json")
    records.write(path, {"state": "running"})
    fill(tiny)
    with pytest.raises(OSError):
        records.write(path, {"state": "ended", "text": "x" * 8000})
    assert records.read(path) == {"state": "running"}
    with pytest.raises(OSError):
        records.write_new_bytes(str(tiny / "new"), b"x" * 8000)
    assert not (tiny / "new").exists()


def test_a_lock_is_held_by_one_process(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert not records.is_locked(path)
    assert not os.path.exists(path), "asking makes no file"
    with Holder(path, "alone"):
        assert records.try_lock(path) is None
        assert records.is_locked(path)
        assert records.wait_lock(path, 0.05) is None
    fd = records.wait_lock(path, 5)
    assert fd is not None
    assert not os.get_inheritable(fd)
    os.close(fd)
    assert not records.is_locked(path)


def test_a_shared_lock_counts_when_asked_for(tmp_path: Path) -> None:
    path = str(tmp_path / "lease")
    with Holder(path, "shared"):
        assert not records.is_locked(path)
        assert records.is_locked(path, alone=False)


def test_lines_are_added_whole_and_read_with_their_offsets(tmp_path: Path) -> None:
    path = str(tmp_path / "events.jsonl")
    records.append_line(path, {"event": "a"})
    records.append_line(path, {"event": "b"})
    with open(path, "ab") as out:
        out.write(b"no json\n{torn")
    rows = list(records.read_lines(path))
    assert [body["event"] for _, body in rows] == ["a", "b"]
    (after_first, _), _ = rows
    assert [body["event"] for _, body in records.read_lines(path, after_first)] == ["b"]
    assert all(isinstance(body["t"], float) for _, body in rows)
    assert json.loads(Path(path).read_bytes().split(b"\n")[0])["event"] == "a"


def test_adding_a_line_never_fails(tmp_path: Path) -> None:
    records.append_line(str(tmp_path / "none" / "events"), {"event": "a"})


def test_the_last_lines_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(5000)))
    rows = records.read_last_lines(str(path), 200)
    assert rows[-1] == {"n": 4999}
    assert 10 < len(rows) < 20
    assert records.read_last_lines(str(tmp_path / "none")) == []


def test_a_record_is_written_in_the_place_of_the_last_one_where_there_is_no_room(
    tiny: Path,
) -> None:
    path, large = str(tiny / "worker.json"), {"x": "y" * 5000}
    assert records.write_in_place(path, {"pid": 1, "slots": 12})
    fill(tiny)
    assert records.write_in_place(path, {"pid": 123456789})
    assert records.read(path) == {"pid": 123456789}
    assert not records.write_in_place(path, large)
    assert records.read(path) == {"pid": 123456789}
    assert not records.write_in_place(str(tiny / "none.json"), {"pid": 1})
    (tiny / "fill").unlink()
    assert records.write_in_place(path, large)
    assert records.read(path) == large


def test_where_no_inode_is_left_locks_logs_and_marks_do_without(tmp_path: Path) -> None:
    place = tmp_path / "few"
    with small_disk(place, "1m", inodes=8):
        (place / "cache").write_text("x")
        use_up_inodes(place)
        with pytest.raises(OSError, match="No space left"):
            records.try_lock(str(place / "lock"))
        for fd in (
            records.try_lock_or_full(str(place / "lock")),
            records.wait_lock(str(place / "lock"), 0, records.try_lock_or_full),
            records.open_log(str(place / "log")),
        ):
            assert fd is not None
            os.close(fd)
        assert not (place / "lock").exists()
        mark, cache = str(place / "mark"), str(place / "cache")
        with pytest.raises(OSError, match="No space left"):
            records.make_mark(mark, cache, [])
        records.make_mark(mark, cache, [str(place / "none"), cache])
        records.make_mark(mark, cache, [])
        assert os.path.exists(mark) and not os.path.exists(cache)


def test_a_record_of_any_length_is_read_whole(tmp_path: Path) -> None:
    path = str(tmp_path / "r.json")
    for length in (records._USUAL - 9, records._USUAL - 8, records._USUAL, 5 * records._USUAL):
        records.write(path, {"a": "x" * length})
        assert records.read(path) == {"a": "x" * length}
