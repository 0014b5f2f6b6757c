"""Where the bytes of one file go: into memory, into a part of it, or to the end of a log here."""

from __future__ import annotations

import contextlib
import os
from typing import Protocol

from runner.manifest import Fetch, Known, RemoteFile, merged
from runner.sums import Sum, blocks
from runner.transfer import parts
from runner.transfer.places import Places, write_all
from runner.wire import CHUNK

SMALL = CHUNK
"""Up to this size a file is kept in memory until it is whole, and written at once."""


class Damaged(Exception):
    """The bytes here have another sum than those of the worker; nothing of them is left."""


class Replaced(Exception):
    """Somebody put something else in the file's place meanwhile; it is left alone."""


class Sink(Protocol):
    """Takes a file's bytes in; what stays when it is closed early is gone on from next time."""

    def write(self, position: int, data: memoryview) -> None:
        """Bytes at their place."""

    def hole(self, position: int, count: int) -> None:
        """Zeros that take no room there, nor here."""

    def finish(self, digest: bytes) -> Known:
        """Everything came, and this is its sum. Raises Damaged."""

    def cancel(self) -> None:
        """Nothing of what came is any good: it goes, and a log is as it was."""

    def close(self) -> None:
        """No more comes now."""


def open_sink(places: Places, item: Fetch, *, in_order: bool) -> Sink:
    """Where a file goes. in_order: its bytes come one after another, all of them."""
    if item.growth is not None:
        return Growing(places, item)
    if item.file.size <= SMALL and not item.here:
        return Small(places, item)
    return Gathering(places, item, in_order=in_order)


class Small:
    """A file that fits into a frame; nothing of it is on disk before it is whole."""

    def __init__(self, places: Places, item: Fetch) -> None:
        self._places = places
        self._file = item.file
        self._data = bytearray()

    def write(self, position: int, data: memoryview) -> None:
        self._data += data

    def hole(self, position: int, count: int) -> None:
        self._data += bytes(count)

    def finish(self, digest: bytes) -> Known:
        found = Sum()
        found.update(self._data)
        if found.digest() != digest or len(self._data) != self._file.size:
            raise Damaged
        part = parts.part_name(self._file.name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        fd = self._places.open(part, flags, make=True)
        try:
            write_all(fd, memoryview(self._data), 0)
            return _known(fd, self._file, found.hexdigest())
        finally:
            os.close(fd)

    def cancel(self) -> None:
        self.close()

    def close(self) -> None:
        self._data = bytearray()


class _OnDisk:
    """A file, and the record of how much of it came; closed together."""

    _fd = -1
    _record: parts.Record | None = None

    def close(self) -> None:
        if self._record is not None:
            self._record.close()
            self._record = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Gathering(_OnDisk):
    """A file that comes in pieces, perhaps over several pulls and several connections at once."""

    def __init__(self, places: Places, item: Fetch, *, in_order: bool) -> None:
        self._places = places
        self._file = item.file
        self._in_order = in_order
        self._ranges = item.here
        self._digest = Sum()
        self._summed = 0
        part = parts.part_name(item.file.name)
        self._fd = places.open(part, os.O_RDWR | os.O_CREAT, make=True)
        try:
            # first the record, whose size of nothing claims nothing
            self._record = parts.open_have(places, item.file, anew=not item.here)
            os.ftruncate(self._fd, item.here[-1][1] if item.here else 0)
        except BaseException:
            self.close()
            raise

    def write(self, position: int, data: memoryview) -> None:
        write_all(self._fd, data, position)
        self._note(position, len(data))
        if self._in_order and self._reaches(position):
            self._digest.update(data)
            self._summed += len(data)

    def hole(self, position: int, count: int) -> None:
        self._note(position, count)
        if self._in_order and self._reaches(position):
            self._digest.zeros(count)
            self._summed += count

    def finish(self, digest: bytes) -> Known:
        os.ftruncate(self._fd, self._file.size)
        if not self._reaches(self._file.size) or self._digest.digest() != digest:
            self.cancel()
            raise Damaged
        known = _known(self._fd, self._file, self._digest.hexdigest())
        self.close()
        return known

    def came(self, begin: int, end: int) -> None:
        """A stretch is whole: what is here from the first byte on can be summed."""
        if not self._in_order:
            self._ranges = merged((*self._ranges, (begin, end)), self._file.size)
            if self._ranges and self._ranges[0][0] == 0:
                self._reaches(self._ranges[0][1])

    def cancel(self) -> None:
        self.close()
        parts.drop(self._places, self._file.name)

    def _note(self, position: int, count: int) -> None:
        assert self._record is not None
        self._record.add(f"{position} {position + count}")

    def _reaches(self, position: int) -> bool:
        """Whether all before `position` is summed; what is here of it is read for that."""
        if self._summed < position:
            self._summed += _sum(self._digest, self._fd, self._summed, position)
        return self._summed == position


class Growing(_OnDisk):
    """A log that is appended to where it lies: who reads it sees it grow, as a file of its own."""

    def __init__(self, places: Places, item: Fetch) -> None:
        """Raises Replaced when it is not what the plan saw."""
        assert item.growth is not None
        self._places = places
        self._file = item.file
        self._growth = item.growth
        self._digest = Sum()
        # many may be waited for at a time, so none stays open before anything comes
        fd = self._open()
        try:
            begin, end = self._growth.summed, self._growth.size
            if _sum(self._digest, fd, begin, end) != end - begin:
                raise Replaced
        finally:
            os.close(fd)

    @property
    def prefix(self) -> str:
        """The sum of what is verified of the bytes here."""
        return self._digest.hexdigest()

    def write(self, position: int, data: memoryview) -> None:
        self._begin()
        write_all(self._fd, data, position)
        self._note()
        self._digest.update(data)

    def hole(self, position: int, count: int) -> None:
        self._begin()
        os.ftruncate(self._fd, position + count)
        self._note()
        self._digest.zeros(count)

    def finish(self, digest: bytes) -> Known:
        """Raises Damaged when what came does not belong to what was here: it is taken back."""
        if self._digest.digest() != digest:
            self.cancel()
            raise Damaged
        if self._fd < 0:
            self._fd = self._open()
        # what only its end was verified of has no sum
        is_whole = self._growth.summed == 0
        known = _known(self._fd, self._file, self._digest.hexdigest() if is_whole else "")
        self.close()
        return known

    def cancel(self) -> None:
        if self._record is not None:
            os.ftruncate(self._fd, self._growth.size)
            os.utime(self._fd, ns=(self._growth.local_mtime_ns, self._growth.local_mtime_ns))
            self.close()
            parts.end_growth(self._places, self._file.name)

    def _open(self) -> int:
        try:
            fd = self._places.open(self._file.name, os.O_RDWR | os.O_NONBLOCK)
        except FileNotFoundError:
            raise Replaced from None
        found = os.fstat(fd)
        if (found.st_size, found.st_mtime_ns) != (self._growth.size, self._growth.local_mtime_ns):
            os.close(fd)
            raise Replaced
        return fd

    def _begin(self) -> None:
        if self._record is None:
            self._fd = self._open()
            self._record = parts.open_grows(self._places, self._file.name)
            self._note()

    def _note(self) -> None:
        assert self._record is not None
        found = os.fstat(self._fd)
        self._record.add(f"{found.st_size} {found.st_mtime_ns}")


def _known(fd: int, file: RemoteFile, sha256: str) -> Known:
    """What the book says of an open file that is whole; its mode is set."""
    found = os.fstat(fd)
    mode = 0o755 if file.executable else 0o644
    if found.st_mode & 0o7777 != mode:
        with contextlib.suppress(PermissionError):  # a file system without modes
            os.fchmod(fd, mode)
    return Known(file.size, file.mtime_ns, sha256, found.st_mtime_ns)


def _sum(digest: Sum, fd: int, begin: int, end: int) -> int:
    """Add bytes of a file to a sum, holes without reading them; how many there were."""
    count = 0
    for length, block in blocks(fd, begin, min(end, os.fstat(fd).st_size)):
        digest.add(length, block)
        count += length
    return count
