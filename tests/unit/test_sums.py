"""One sum for one content, whatever of it is a hole and however it comes."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path

import pytest

from runner import sums
from runner.sums import BLOCK, Sum

TERABYTE = 1 << 40


def of(*pieces: bytes | int) -> bytes:
    """The sum of bytes, and of so many zeros."""
    found = Sum()
    for piece in pieces:
        if isinstance(piece, int):
            found.zeros(piece)
        else:
            found.update(piece)
    return found.digest()


@pytest.mark.parametrize("data", [b"", b"a", bytes(100), b"a" * BLOCK, bytes(BLOCK - 8), b"\1"])
def test_without_whole_blocks_of_zeros_it_is_the_sha256(data: bytes) -> None:
    assert of(data) == hashlib.sha256(data).digest()
    assert of(data, data[:7]) == hashlib.sha256(data + data[:7]).digest()


def test_how_it_is_cut_up_makes_no_difference() -> None:
    draw = random.Random(1)
    for _ in range(40):
        stretches: list[bytes | int] = []
        for _ in range(draw.randint(1, 6)):
            size = draw.choice([1, 17, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
            kinds: list[bytes | int] = [size, b"x" * size, bytes(size), b"\0" * 9 + b"y"]
            stretches.append(draw.choice(kinds))
        data = b"".join(bytes(each) if isinstance(each, int) else each for each in stretches)
        pieces, at = [], 0
        while at < len(data):
            size = draw.choice([1 + len(data) // 9, BLOCK, 60_001])
            pieces.append(data[at : at + size])
            at += size
        assert of(*stretches) == of(data) == of(*pieces)


def test_it_may_be_asked_for_on_the_way() -> None:
    found = Sum()
    found.zeros(BLOCK + 5)
    assert found.digest() == of(bytes(BLOCK + 5))
    assert found.hexdigest() == of(bytes(BLOCK + 5)).hex()
    found.update(b"z")
    assert found.digest() == of(bytes(BLOCK + 5) + b"z")


def test_other_contents_have_other_sums() -> None:
    one = b"1" * BLOCK
    contents: list[list[bytes | int]] = [
        [],
        [BLOCK],
        [2 * BLOCK],
        [2 * BLOCK, b"\0"],
        [BLOCK, one],
        [one, BLOCK],
        [one],
        [BLOCK, one, BLOCK],
        [2 * BLOCK, one],
        [one, one],
        [BLOCK, one, one],
        [one, BLOCK, one],
        [one, BLOCK, b"1"],
        [one, b"1", BLOCK],
    ]
    assert len({of(*each) for each in contents}) == len(contents)


def test_a_terabyte_of_nothing_is_no_work() -> None:
    assert of(b"head", TERABYTE, b"end") != of(b"head", TERABYTE + 1, b"end")


def test_data_of_a_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as file:
        file.seek(TERABYTE >> 4)
        file.write(b"end")
    fd = os.open(path, os.O_RDONLY)
    try:
        found = list(sums.data_ranges(fd, 0, path.stat().st_size))
    finally:
        os.close(fd)
    if found == [(0, path.stat().st_size)]:
        pytest.skip("left out: holes: this file system knows none")
    assert sum(stop - start for start, stop in found) < BLOCK
    assert found[-1][1] == path.stat().st_size


def test_blocks_give_a_file_from_any_place_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    data = b"head" + bytes(3 * BLOCK) + b"end"
    with open(path, "wb") as file:
        file.write(b"head")
        file.seek(4 + 3 * BLOCK)
        file.write(b"end")
    fd = os.open(path, os.O_RDONLY)
    try:
        for begin, end in ((0, len(data)), (2, 9), (BLOCK, 2 * BLOCK), (7, 7), (9, 2)):
            pieces = [
                bytes(length) if block is None else bytes(block)
                for length, block in sums.blocks(fd, begin, end, 60_001)
            ]
            assert b"".join(pieces) == data[begin:end]
            assert all(len(piece) <= 60_001 or not any(piece) for piece in pieces)
    finally:
        os.close(fd)
