"""`files`: contents of artifacts, from where the client already is, with their digests."""

from __future__ import annotations

import hashlib
import os
from typing import Any, Dict, List, Optional

from runner import wire
from verbs import Call, Refused
from verbs.list import APPEND_ONLY, folders

BLOCK = wire.CHUNK
"""A link that is cut loses no more than a frame."""


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"run"}; rows from the client: [kind, path, offset, size, mtime_ns] → a DATA stream of parts.

    Each part is its index and length, then bytes `offset` to `size`. {"sums": [sha256 of bytes 0 to
    size, or null for a file that changed since it was listed]}. Logs only grow: of them the first
    `size` bytes are meant, whatever came since.
    """
    paths = call.run(request.get("run"))
    places = folders(paths)
    wanted = call.received_rows()
    sums: List[Optional[str]] = []
    out = _Batch(call)
    for index, row in enumerate(wanted):
        kind, path, offset, size, mtime_ns = _checked(row, places)
        sums.append(_send(out, index, places[kind], kind, path, offset, size, mtime_ns))
    out.flush()
    return {"sums": sums}


def _checked(row: Any, places: Dict[str, str]) -> Any:
    good = (
        isinstance(row, list)
        and len(row) == 5
        and row[0] in places
        and wire.plain_path(row[1])
        and all(isinstance(number, int) for number in row[2:])
        and 0 <= row[2] <= row[3]
    )
    if not good:
        raise Refused("bad-path", "not an artifact: %r" % (row,))
    return row


def _send(
    out: "_Batch",
    index: int,
    folder: str,
    kind: str,
    path: str,
    offset: int,
    size: int,
    mtime_ns: int,
) -> Optional[str]:
    fd = _open_inside(folder, path)
    if fd is None:
        return None
    try:
        if _changed(fd, kind, size, mtime_ns):
            return None
        digest = hashlib.sha256()
        position = 0
        announced = False
        while position < size:
            block = os.pread(fd, min(BLOCK, size - position), position)
            if not block:
                break
            digest.update(block)
            end = position + len(block)
            if end > offset:
                if not announced:
                    out.add(wire.PART_HEAD.pack(index, size - offset))
                    announced = True
                out.add(block[max(0, offset - position) :])
            position = end
        if position < size:
            # it shrank under us: the promised length still has to be sent
            if announced:
                raise Refused("changed", "%s shrank while it was read" % path)
            return None
        return None if _changed(fd, kind, size, mtime_ns) else digest.hexdigest()
    finally:
        os.close(fd)


def _changed(fd: int, kind: str, size: int, mtime_ns: int) -> bool:
    found = os.fstat(fd)
    if kind == APPEND_ONLY:
        return found.st_size < size
    return (found.st_size, found.st_mtime_ns) != (size, mtime_ns)


def _open_inside(folder: str, path: str) -> Optional[int]:
    """The file, opened without following a link in any of its components."""
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = path.split("/")
        for part in parts[:-1]:
            inner = os.open(
                part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at
            )
            os.close(at)
            at = inner
        return os.open(
            parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at
        )
    except OSError:
        return None
    finally:
        os.close(at)


class _Batch:
    """Gathers small pieces into frames of a good size."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._buffer = bytearray()

    def add(self, piece: bytes) -> None:
        if not self._buffer and len(piece) >= wire.CHUNK:
            self._call.data(piece)
            return
        self._buffer += piece
        if len(self._buffer) >= wire.CHUNK:
            self.flush()

    def flush(self) -> None:
        if self._buffer:
            self._call.data(bytes(self._buffer))
            self._buffer.clear()
