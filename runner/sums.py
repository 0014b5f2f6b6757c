"""The sum of a stretch of a file, and where its data is: shared by client and worker.

A file may be a terabyte long and take no room. Zeros that fill whole blocks are counted instead of
read, on both sides alike, whether they are holes there or not; without such blocks the sum is the
sha256 of the bytes.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from typing import Iterator, Optional, Tuple, Union

BLOCK = 1 << 20
"""Of zeros, counted from where the stretch begins."""
_ZEROS = bytes(BLOCK)
_RUN = struct.Struct(">QQ")
Buffer = Union[bytes, bytearray, memoryview]


class Sum:
    """Takes bytes and zeros in as they come; how they are cut up makes no difference."""

    def __init__(self) -> None:
        self._bytes = hashlib.sha256()
        self._runs = hashlib.sha256()
        self._has_runs = False
        self._block = 0
        self._filled = 0
        """Bytes of the current block."""
        self._is_zero = True
        """They are nothing but zeros so far, and not in `_bytes` yet."""
        self._zero_blocks = 0
        """Blocks of zeros just before it, not in `_runs` yet."""

    def update(self, data: Buffer) -> None:
        """The next bytes."""
        view = memoryview(data)
        while len(view):
            piece = view[: BLOCK - self._filled]
            view = view[len(piece) :]
            if self._is_zero and not _is_zeros(piece):
                self._bytes.update(memoryview(_ZEROS)[: self._filled])
                self._is_zero = False
            if not self._is_zero:
                self._bytes.update(piece)
            self._fill(len(piece))

    def zeros(self, count: int) -> None:
        """So many zeros, without them."""
        if self._filled and count:
            piece = min(count, BLOCK - self._filled)
            self.update(memoryview(_ZEROS)[:piece])
            count -= piece
        blocks, rest = divmod(count, BLOCK)
        self._block += blocks
        self._zero_blocks += blocks
        self._fill(rest)

    def add(self, count: int, data: Optional[Buffer]) -> None:
        """The next so many bytes, as `blocks` gives them; None: zeros."""
        if data is None:
            self.zeros(count)
        else:
            self.update(data)

    def digest(self) -> bytes:
        """The sum of all that came so far; more may come."""
        found = self._bytes.copy()
        if self._is_zero:
            found.update(memoryview(_ZEROS)[: self._filled])
        if not self._has_runs and not self._zero_blocks:
            return found.digest()
        runs = self._runs.copy()
        if self._zero_blocks:
            runs.update(_RUN.pack(self._block - self._zero_blocks, self._zero_blocks))
        return hashlib.sha256(found.digest() + runs.digest()).digest()

    def hexdigest(self) -> str:
        """The same as a text."""
        return self.digest().hex()

    def _fill(self, count: int) -> None:
        self._filled += count
        if not self._is_zero and self._zero_blocks:
            first = self._block - self._zero_blocks
            self._runs.update(_RUN.pack(first, self._zero_blocks))
            self._has_runs = True
            self._zero_blocks = 0
        if self._filled == BLOCK:
            self._zero_blocks += self._is_zero
            self._block += 1
            self._filled = 0
            self._is_zero = True


def data_ranges(fd: int, begin: int, end: int) -> Iterator[Tuple[int, int]]:
    """(from, to) of each stretch of a file that is no hole, in order."""
    position = begin
    while position < end:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            stop = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.EINVAL:
                yield position, end  # this file system cannot say
            return  # ENXIO: nothing but a hole up to the end
        if start >= end:
            return
        yield start, min(stop, end)
        position = stop


def blocks(
    fd: int, begin: int, end: int, most: int = BLOCK
) -> Iterator[Tuple[int, Optional[memoryview]]]:
    """(length, bytes; None: zeros that take no room) of a file from `begin` up to `end`, if it goes
    so far; at most so many bytes at a time. They hold until the next are asked for."""
    buffer = memoryview(bytearray(min(most, max(1, end - begin))))
    found = os.fstat(fd)
    has_holes = found.st_blocks * 512 < found.st_size
    position = begin
    for start, stop in data_ranges(fd, begin, end) if has_holes else ((begin, end),):
        if position < start:
            yield start - position, None
        position = start
        while position < stop:
            count = os.preadv(fd, [buffer[: stop - position]], position)
            if not count:
                return
            yield count, buffer[:count]
            position += count
    if position < end:
        yield end - position, None


def _is_zeros(piece: memoryview) -> bool:
    if piece[0] or piece[-1]:
        return False
    return bytes(piece) == _ZEROS[: len(piece)]
