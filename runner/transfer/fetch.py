"""Artifacts of a run brought here, each whole and verified or not there."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import wire
from runner.endpoint import Worker
from runner.errors import IntegrityError, SpecError, WorkerError
from runner.manifest import Fetch

PARTS = ".parts"
"""Where files gather until they are whole: no name a worker can send lies there."""
_PIECE = 1 << 20
_HOLE = 4096
_ZEROS = bytes(_HOLE)


@dataclass(frozen=True)
class Fetched:
    """A file that was brought, verified and renamed into place."""

    fetch: Fetch
    sha256: str
    local_mtime_ns: int


def fetch(
    worker: Worker,
    run: str,
    wanted: list[Fetch],
    top: Path,
    *,
    on_bytes: Callable[[Fetch, int], None] = lambda fetch, count: None,
) -> tuple[list[Fetched], list[Fetch]]:
    """Bring artifacts below `top`: (those that are whole and verified, those that changed).

    Each gathers in `PARTS` and is renamed into place when its sha256 is the one the worker read; of
    a log that grew only the new bytes come, and the whole is verified. What lay there before a
    failed pull is still there. A file whose first bytes here are not those of the worker any more
    counts as changed: it is to be fetched from its first byte. Raises IntegrityError, SpecError
    (no room here).
    """
    if not wanted:
        return [], []
    request = worker.open("files", run=run)
    rows = [
        [item.file.kind, item.file.path, item.offset, item.file.size, item.file.mtime_ns]
        for item in wanted
    ]
    request.send_rows(rows)
    sinks = _Sinks(worker.host.name, wanted, top, on_bytes)
    try:
        for kind, payload in request.frames():
            if kind == wire.DATA:
                sinks.feed(payload)
        sums = request.reply.get("sums")
        if not isinstance(sums, list) or len(sums) != len(wanted):
            raise WorkerError(f"{worker.host.name}: the worker did not say the files' digests")
        done = sinks.finish(sums)
        with contextlib.suppress(OSError):  # others are still being gathered
            (top / PARTS).rmdir()
        return done
    except OSError as error:
        raise SpecError(f"{top}: {error.strerror}; what was there before is untouched") from error
    finally:
        sinks.close()


class _Sinks:
    """Where the bytes of a `files` stream go."""

    def __init__(
        self, host: str, wanted: list[Fetch], top: Path, on_bytes: Callable[[Fetch, int], None]
    ) -> None:
        self._host = host
        self._wanted = wanted
        self._top = top
        self._on_bytes = on_bytes
        self._buffer = bytearray()
        self._index: int | None = None
        self._left = 0
        self._file: Any = None
        self._sums: dict[int, Any] = {}

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while self._buffer:
            if self._index is None:
                if len(self._buffer) < wire.PART_HEAD.size:
                    return
                index, size = wire.PART_HEAD.unpack_from(self._buffer)
                del self._buffer[: wire.PART_HEAD.size]
                self._begin(index, size)
            piece = bytes(self._buffer[: self._left])
            del self._buffer[: len(piece)]
            write_sparse(self._file, piece)
            assert self._index is not None
            self._sums[self._index].update(piece)
            self._left -= len(piece)
            self._on_bytes(self._wanted[self._index], len(piece))
            if self._left == 0:
                self._close_file()
                self._index = None

    def finish(self, sums: list[Any]) -> tuple[list[Fetched], list[Fetch]]:
        done, changed = [], []
        for index, item in enumerate(self._wanted):
            said = sums[index]
            part = part_path(self._top, item.file.name)
            if said is None:
                with contextlib.suppress(FileNotFoundError):
                    part.unlink()
                changed.append(item)
                continue
            if index not in self._sums:
                self._begin_empty(index)
            if self._sums[index].hexdigest() != said:
                part.unlink(missing_ok=True)
                if item.offset:
                    changed.append(item)
                    continue
                raise IntegrityError(
                    f"{self._host}: {item.file.name} arrived damaged; type the same words again"
                )
            place = self._top / item.file.name
            os.chmod(part, 0o755 if item.file.executable else 0o644)
            os.rename(part, place)
            done.append(Fetched(item, str(said), place.stat().st_mtime_ns))
        return done, changed

    def close(self) -> None:
        if self._file is not None and not self._file.closed:
            with contextlib.suppress(OSError):  # what came so far is gone on from the next time
                self._close_file()

    def _close_file(self) -> None:
        with self._file:
            self._file.truncate(self._file.tell())

    def _begin(self, index: int, size: int) -> None:
        if index >= len(self._wanted) or index in self._sums:
            raise WorkerError(f"{self._host}: the worker sent a file nobody asked for")
        item = self._wanted[index]
        if size != item.file.size - item.offset or size <= 0:
            raise WorkerError(f"{self._host}: {item.file.name}: {size} bytes, not as listed")
        self._index, self._left = index, size
        self._file, self._sums[index] = self._open(item)

    def _begin_empty(self, index: int) -> None:
        file, self._sums[index] = self._open(self._wanted[index])
        file.close()

    def _open(self, item: Fetch) -> tuple[Any, Any]:
        """The file it gathers in, with the bytes before the offset, and their sum."""
        part = part_path(self._top, item.file.name)
        make_parents(self._top, item.file.name)
        part.parent.mkdir(mode=0o700, exist_ok=True)
        digest = hashlib.sha256()
        if item.offset and (not part.exists() or part.stat().st_size < item.offset):
            with open(self._top / item.file.name, "rb") as old, open(part, "wb") as new:
                _copy(old, new, item.offset)
                new.truncate(item.offset)
        if item.offset:
            with open(part, "rb") as old:
                left = item.offset
                while left and (block := old.read(min(_PIECE, left))):
                    digest.update(block)
                    left -= len(block)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(part, flags, 0o644)
        os.ftruncate(fd, item.offset)
        os.lseek(fd, item.offset, os.SEEK_SET)
        return os.fdopen(fd, "wb"), digest


def write_sparse(file: Any, data: bytes) -> None:
    """Write at the end of a file, which stays a hole where blocks are all zeros.

    The caller truncates it to its position in the end: zeros may be the last that came.
    """
    position: int = file.tell()
    begin = end = 0
    while end < len(data):
        length = min(_HOLE - (position + end) % _HOLE, len(data) - end)
        is_hole = data[end] == 0 and data[end : end + length] == _ZEROS[:length]
        if is_hole:
            file.write(data[begin:end])
            begin = end + length
            file.seek(position + begin)
        end += length
    file.write(data[begin:])


def part_path(top: Path, name: str) -> Path:
    """Where a file's bytes gather until it is whole."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return top / PARTS / digest[:32]


def make_parents(top: Path, name: str) -> None:
    """The folders of a file below `top`; a link among them is refused. Raises SpecError."""
    here = top
    for part in name.split("/")[:-1]:
        here = here / part
        try:
            here.mkdir(mode=0o755)
        except FileExistsError:
            if here.is_symlink() or not here.is_dir():
                raise SpecError(f"{here} is not a folder; move it away and pull again") from None


def _copy(source: Any, target: Any, count: int) -> None:
    while count and (block := source.read(min(_PIECE, count))):
        write_sparse(target, block)
        count -= len(block)
