"""`files`: contents of artifacts, from where the client already is, with their digests."""

from __future__ import annotations

import errno
import json
import os
import stat
import zlib
from typing import Any, Dict, List, Optional, Tuple

from runner import sums, wire
from verbs import Call, Refused
from verbs.list import APPEND_ONLY, folders

MAX_ROWS_BYTES = 1 << 20
"""Of one frame of rows."""
BLOCK = wire.CHUNK - 4096
"""With its heads it fits into a pipe's write of CHUNK; a link that is cut loses no more."""
_IN_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"run"}; frames of rows from the client → a DATA stream of parts (`wire.PART_HEAD`); {}.

    Each frame is a compressed list of its own, answered as it comes; rows are counted over all of
    them. A row is [kind, path, summed, start, end, size, mtime_ns, prefix]: bytes `start` to `end`
    are sent, holes as such, then the sum (`runner.sums`) of bytes `summed` to `end` (none: summed
    is end). Sent is nothing when the file is another than the client means: other size or time,
    for a log fewer bytes than `size` (logs only grow), or bytes `summed` to `start` that have
    another sum than `prefix`, if that is given. No link is followed.
    """
    paths = call.run(request.get("run"))
    places = folders(paths)
    frames = _Frames(call)
    count = 0
    with _Folders(places) as at:
        for payload in call.received():
            rows = _read_rows(payload)
            for index, row in enumerate(rows, count):
                _send(frames, index, at, _Wanted(row, places))
            count += len(rows)
            frames.flush()
    return {}


def _read_rows(payload: bytes) -> List[Any]:
    unzip = zlib.decompressobj()
    try:
        rows = json.loads(unzip.decompress(payload, MAX_ROWS_BYTES))
    except (zlib.error, ValueError, RecursionError) as error:
        raise Refused("bad-request", "rows that cannot be read: %s" % error) from error
    if not isinstance(rows, list):
        raise Refused("bad-request", "rows that are no list")
    return rows


class _Wanted:
    """A row, checked. Raises Refused."""

    def __init__(self, row: Any, places: Dict[str, str]) -> None:
        good = (
            isinstance(row, list)
            and len(row) == 8
            and row[0] in places
            and wire.plain_path(row[1])
            and all(isinstance(number, int) for number in row[2:7])
            and 0 <= row[3] <= row[4] <= row[5]
            and (0 <= row[2] <= row[3] or row[2] == row[4])
            and (row[7] is None or isinstance(row[7], str))
        )
        if not good:
            raise Refused("bad-path", "not an artifact: %.200r" % (row,))
        self.kind, self.path = str(row[0]), str(row[1])
        self.summed, self.start, self.end = int(row[2]), int(row[3]), int(row[4])
        self.size, self.mtime_ns = int(row[5]), int(row[6])
        self.prefix = row[7]

    def is_changed(self, found: os.stat_result) -> bool:
        if self.kind == APPEND_ONLY:
            return found.st_size < self.size
        return (found.st_size, found.st_mtime_ns) != (self.size, self.mtime_ns)


def _send(frames: "_Frames", index: int, at: "_Folders", wanted: _Wanted) -> None:
    fd = at.open(wanted.kind, wanted.path)
    if fd is None:
        frames.left(index, wire.LEFT_GONE)
        return
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            frames.left(index, wire.LEFT_GONE)
        elif wanted.is_changed(found):
            frames.left(index, wire.LEFT_CHANGED)
        else:
            _send_open(frames, index, fd, wanted)
    finally:
        os.close(fd)


def _send_open(frames: "_Frames", index: int, fd: int, wanted: _Wanted) -> None:
    digest = sums.Sum()
    is_summed = wanted.summed < wanted.end or wanted.start == wanted.end
    if wanted.summed < wanted.start:
        for length, block in sums.blocks(fd, wanted.summed, wanted.start, BLOCK):
            digest.add(length, block)
        if wanted.prefix is not None and digest.hexdigest() != wanted.prefix:
            frames.left(index, wire.LEFT_OTHER)
            return
    sent = wanted.start
    for length, block in sums.blocks(fd, wanted.start, wanted.end, BLOCK):
        if block is None:
            frames.hole(index, length)
        else:
            frames.add(index, block)
        if is_summed:
            digest.add(length, block)
        sent += length
    if sent < wanted.end or wanted.is_changed(os.fstat(fd)):
        frames.left(index, wire.LEFT_CHANGED)
    else:
        frames.sum(index, digest.digest() if is_summed else b"")


class _Folders:
    """Opens artifacts, never following a link in any component; use it as a context manager.

    The folder of the last one stays open: files of one folder come one after another.
    """

    def __init__(self, places: Dict[str, str]) -> None:
        self._places = places
        self._held: Optional[Tuple[str, str]] = None
        self._fd = -1

    def __enter__(self) -> "_Folders":
        return self

    def __exit__(self, *_: Any) -> None:
        self._let_go()

    def open(self, kind: str, path: str) -> Optional[int]:
        """The file, or None when it is not there."""
        folder, _, name = path.rpartition("/")
        try:
            if self._held != (kind, folder):
                self._let_go()
                self._fd = _open_folder(self._places[kind], folder)
                self._held = (kind, folder)
            return os.open(name, _IN_FOLDER | os.O_NONBLOCK, dir_fd=self._fd)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO):
                raise
            return None

    def _let_go(self) -> None:
        if self._held is not None:
            os.close(self._fd)
            self._held = None


def _open_folder(top: str, folder: str) -> int:
    at = os.open(top, _IN_FOLDER | os.O_DIRECTORY)
    for part in folder.split("/") if folder else ():
        try:
            inner = os.open(part, _IN_FOLDER | os.O_DIRECTORY, dir_fd=at)
        finally:
            os.close(at)
        at = inner
    return at


class _Frames:
    """Gathers parts into frames of a good size, each of whole parts."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._pieces: List[wire.Buffer] = []
        self._size = 0
        self._hole: Optional[Tuple[int, int]] = None

    def add(self, index: int, block: memoryview) -> None:
        self._add(index, wire.PART_BYTES, len(block), block)

    def hole(self, index: int, length: int) -> None:
        if self._hole is not None:
            length += self._hole[1]
        self._hole = (index, length)

    def sum(self, index: int, digest: bytes) -> None:
        self._add(index, wire.PART_SUM, len(digest), memoryview(digest))

    def left(self, index: int, why: int) -> None:
        self._add(index, wire.PART_LEFT, why, memoryview(b""))

    def flush(self) -> None:
        if self._pieces:
            self._call.data(*self._pieces)
            self._pieces, self._size = [], 0

    def _add(self, index: int, what: int, count: int, block: memoryview) -> None:
        if self._hole is not None:
            at, length = self._hole
            self._hole = None
            self._put(wire.PART_HEAD.pack(at, wire.PART_HOLE, length))
        if self._size + len(block) > BLOCK:
            self.flush()
        self._put(wire.PART_HEAD.pack(index, what, count))
        # a large block is sent before its buffer is used again
        is_large = len(block) > BLOCK // 2
        self._put(block if is_large else bytes(block))
        if is_large or self._size >= BLOCK:
            self.flush()

    def _put(self, piece: wire.Buffer) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
