from __future__ import annotations

import os
from pathlib import Path

import logcap
import pytest

from runner import sums
from tests.helpers.small_disk import small_disk

LIMIT = 400_000


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rank-0.log"
    path.write_bytes(b"".join(b"line %09d\n" % n for n in range(100_000)))
    return path


def cut(path: Path) -> tuple[int, int] | None:
    return cut_to(path, LIMIT)


def cut_to(path: Path, limit: int) -> tuple[int, int] | None:
    fd = os.open(path, os.O_RDWR)
    try:
        return logcap.cut(fd, limit)
    finally:
        os.close(fd)


def room(path: Path) -> int:
    return path.stat().st_blocks * 512


def pieces(path: Path) -> list[tuple[int, int]]:
    with open(path, "rb") as file:
        return list(sums.data_ranges(file.fileno(), 0, path.stat().st_size))


def test_the_middle_goes_and_every_offset_stays(log: Path) -> None:
    before = log.read_bytes()
    gone = cut(log)
    assert gone is not None
    start, end = gone
    after = log.read_bytes()
    assert len(after) == len(before)
    assert room(log) <= 0.7 * LIMIT
    assert start >= LIMIT // 10 - 100
    assert len(after) - end >= LIMIT // 2
    assert after[:start] == before[:start]
    assert after[end:] == before[end:]
    line = b"\nrunner: %d bytes cut here (log_limit)\n" % (end - start)
    assert after[start:end] == line + bytes(end - start - len(line))
    assert cut(log) is None
    assert pieces(log) == [(0, start + len(line)), (end, len(after))]


def test_a_log_below_its_limit_is_left_alone(log: Path) -> None:
    before = log.read_bytes()
    assert cut_to(log, 10 * LIMIT) is None
    assert cut_to(log, room(log)) is None
    assert log.read_bytes() == before


def test_it_is_cut_again_as_it_grows_while_its_writer_appends(log: Path) -> None:
    with open(log, "ab", buffering=0) as writer:
        for turn in range(20):
            cut(log)
            assert room(log) <= LIMIT
            writer.write(b"x%02d" % turn * 50_000)
    data = log.read_bytes()
    assert data.count(b"bytes cut here") == 1
    assert data.startswith(b"line 000000000\n")
    assert data.endswith(b"x19" * 50_000)
    assert len(data) == 1_500_000 + 20 * 150_000


def test_a_limit_of_next_to_nothing_does_no_harm(log: Path) -> None:
    log.write_bytes(b"x" * 5000)
    assert cut_to(log, 1) is None
    assert log.read_bytes() == b"x" * 5000


def test_a_file_system_without_holes_is_said_to_be_one(tmp_path: Path) -> None:
    log = tmp_path / "disk" / "rank-0.log"
    with small_disk(log.parent, "64m", kind="ramfs"):
        log.write_bytes(b"x" * 1_000_000)
        with pytest.raises(logcap.NoHoles):
            cut(log)
        assert log.read_bytes() == b"x" * 1_000_000


def test_where_data_lies(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.write(b"a" * 8192)
        file.seek(1 << 20)
        file.write(b"b" * 100)
        file.truncate(2 << 20)
    with open(path, "rb") as file:
        fd = file.fileno()
        size = 2 << 20
        first, second = sums.data_ranges(fd, 0, size)
        assert first == (0, 8192)
        assert second[0] == 1 << 20
        assert list(sums.data_ranges(fd, 100, 200)) == [(100, 200)]
        assert list(sums.data_ranges(fd, 50_000, 60_000)) == []
        assert list(sums.data_ranges(fd, 3 << 19, size)) == []
