"""Snapshot up, artifacts down, over one conversation."""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import tree, wire
from runner.endpoint import Request, Worker, wire_json
from runner.errors import IntegrityError, SpecError, WorkerError
from runner.manifest import Fetch, Snapshot

PARTS = ".parts"
"""Where files gather until they are whole: no name a worker can send lies there."""
AT_ONCE = 8
"""Submits of a sweep under way at a time."""
_PIECE = 1 << 20
_HOLE = 4096
_ZEROS = bytes(_HOLE)


@dataclass(frozen=True)
class Accepted:
    """A worker's answer to a submit."""

    run: Mapping[str, Any]
    repeated: bool
    gpus: int
    sent_files: int
    sent_bytes: int


def submit(
    worker: Worker,
    root: Path,
    snapshot: Snapshot,
    spec: Mapping[str, Any],
    *,
    secrets: Mapping[str, str],
    holds_snapshot: bool,
    on_sent: Callable[[int, int], None] = lambda done, whole: None,
    on_handed: Callable[[], None] = lambda: None,
) -> Accepted:
    """Hand a run over: only contents the worker lacks travel. See verbs/submit.py for the steps.

    secrets: values in base64. holds_snapshot: the worker is believed to have it, so that its list
    need not travel; if it does not, it asks. on_sent: bytes of contents sent so far, and to send.
    on_handed: called before the last byte goes out, without which the worker makes no run.
    """
    rows = [list(row) for row in snapshot.rows]
    request = worker.open(
        "submit", spec=dict(spec), manifest=not holds_snapshot, secrets=dict(secrets)
    )
    if not holds_snapshot:
        request.send_rows(rows)
    answers = request.frames()
    sent = sent_bytes = 0
    listed, given = not holds_snapshot, False
    for kind, payload in answers:
        if kind != wire.EVENT:
            raise WorkerError(f"{worker.host.name}: the worker answered out of turn")
        need = wire_json(payload, worker.host.name).get("need")
        if need == "manifest" and not listed:
            listed = True
            request.send_rows(rows)
        elif isinstance(need, list) and not given:
            given = True
            sent, sent_bytes = len(need), _send_contents(request, root, snapshot, need, on_sent)
            on_handed()
            request.end()
        else:
            raise WorkerError(f"{worker.host.name}: the worker answered out of turn")
    return _accepted(worker, request.reply, spec, sent, sent_bytes)


def submit_more(
    worker: Worker, specs: Iterable[Mapping[str, Any]], *, secrets: Mapping[str, str]
) -> Iterator[Accepted]:
    """Hand over further runs of a snapshot that the worker just took; answers in their order.

    Several are under way at a time, so that a slow link costs its delay once for all of those.
    """
    under_way: deque[tuple[Request, Mapping[str, Any]]] = deque()
    for spec in specs:
        request = worker.open("submit", spec=dict(spec), manifest=False, secrets=dict(secrets))
        request.end()  # of contents, none of which can be needed
        under_way.append((request, spec))
        if len(under_way) == AT_ONCE:
            yield _answer(worker, *under_way.popleft())
    while under_way:
        yield _answer(worker, *under_way.popleft())


def _answer(worker: Worker, request: Request, spec: Mapping[str, Any]) -> Accepted:
    for kind, payload in request.frames():
        if kind != wire.EVENT or wire_json(payload, worker.host.name).get("need") != []:
            raise WorkerError(f"{worker.host.name}: the worker answered out of turn")
    return _accepted(worker, request.reply, spec, 0, 0)


def _accepted(
    worker: Worker, reply: Mapping[str, Any], spec: Mapping[str, Any], sent: int, sent_bytes: int
) -> Accepted:
    run = reply.get("run")
    if not isinstance(run, dict) or run.get("id") != spec["id"]:
        raise WorkerError(f"{worker.host.name}: the worker answered for another run")
    gpus = reply.get("gpus") or 0
    if not isinstance(gpus, int):
        raise WorkerError(f"{worker.host.name}: the worker's answer cannot be read: gpus {gpus!r}")
    return Accepted(run, bool(reply.get("repeated")), gpus, sent, sent_bytes)


def _send_contents(
    request: Any,
    root: Path,
    snapshot: Snapshot,
    need: Iterable[Any],
    on_sent: Callable[[int, int], None],
) -> int:
    paths = snapshot.paths
    sizes = {row[4]: row[3] for row in snapshot.rows if row[1] == "f"}
    wanted = [str(digest) for digest in need]
    whole = sum(sizes.get(digest, 0) for digest in wanted)
    done = 0
    zipper = zlib.compressobj(1)
    for digest in wanted:
        if digest not in paths:
            raise WorkerError("the worker asked for a content that is not in the snapshot")
        head = wire.PACK_HEAD.pack(bytes.fromhex(digest), sizes[digest])
        request.send(zipper.compress(head))
        for piece in tree.read_content(root, paths[digest], sizes[digest], digest):
            request.send(zipper.compress(piece))
            done += len(piece)
            on_sent(done, whole)
    request.send(zipper.flush())
    return done


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
