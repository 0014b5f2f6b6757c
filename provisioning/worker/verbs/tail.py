"""`tail`: a rank's log as it is written, from any byte, to the end of the run."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional, Tuple

import logcap
import paths as paths_module
import plain
import view
from paths import RunPaths

from runner import states, wire
from verbs import Call, Refused, whole

POLL_S = 0.03
STATE_POLL_S = 0.25
BLOCK = 64 * 1024


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"run", "rank", "from"?: byte, "lines"?: n, "follow"} → DATA frames, each its offset first.

    EVENT {"start", "size"} comes first; {"state", "reason"} whenever the run's state changes. The
    reply holds the offset reached and the run's status. "cuts" in the request: EVENT {"cut": [from,
    to]} stands for bytes that its log limit took; without it they come as NUL bytes.
    """
    paths = call.run(request.get("run"))
    rank = whole(request, "rank", 0)
    pair = view.read_pair(paths)
    nproc = int(pair[0].get("nproc", 1)) if pair else 1
    if not 0 <= rank < nproc:
        raise Refused("bad-rank", "%s has %d rank(s), from 0" % (paths.id, nproc))
    path = paths.log(rank)
    size = _size(path)
    start = whole(request, "from", 0)
    if request.get("lines") is not None:
        start = last_lines(path, size, whole(request, "lines"))
    if start < 0:
        raise Refused("bad-request", "a log has no byte %d" % start)
    call.event(start=start, size=size)
    cuts = bool(request.get("cuts")) and bool(pair and pair[0].get("log_limit_bytes"))
    offset = _stream(call, paths, path, start, bool(request.get("follow", True)), cuts)
    pair = view.read_pair(paths)
    status = None
    if pair is not None:
        maker = view.View(call.workspace, paths_module.find_leases(dict(os.environ)), [pair])
        status = maker.status(pair[0], pair[1], full=False).to_json()
    return {"offset": offset, "run": status}


def last_lines(path: str, size: int, count: int) -> int:
    """The offset at which the last `count` lines of a log of `size` bytes begin."""
    if count <= 0 or size == 0:
        return size
    with open(plain.open_file(path), "rb", buffering=0) as file:
        missing = count
        # a hole holds no lines, and may be larger than what is left
        for begin, end in reversed(list(logcap.data_ranges(file.fileno(), 0, size))):
            position = end
            while position > begin:
                start = max(begin, position - BLOCK)
                file.seek(start)
                block = file.read(position - start)
                if position == size and block.endswith(b"\n"):
                    missing += 1
                index = len(block)
                while True:
                    index = block.rfind(b"\n", 0, index)
                    if index < 0:
                        break
                    missing -= 1
                    if missing == 0:
                        return start + index + 1
                position = start
    return 0


def _stream(call: Call, paths: RunPaths, path: str, offset: int, follow: bool, cuts: bool) -> int:
    fd: Optional[int] = None
    told: Any = None
    look_at = 0.0
    try:
        while True:
            if fd is None:
                fd = _open(path)
            begin, block = _read(fd, offset, cuts)
            if begin > offset:
                call.event(cut=[offset, begin])
                offset = begin
            if block:
                call.data(wire.TAIL_HEAD.pack(offset) + block)
                offset += len(block)
                continue
            if not follow:
                return offset
            now = time.monotonic()
            if now >= look_at:
                look_at = now + STATE_POLL_S
                pair = view.read_pair(paths)
                mark = (pair[1]["state"], pair[1].get("attempt")) if pair else None
                if mark != told and pair is not None:
                    told = mark
                    call.event(state=pair[1]["state"], attempt=pair[1].get("attempt"))
                if pair is None or pair[1]["state"] == states.ENDED:
                    # the end was written after the last byte: one more look finds them all
                    if fd is None:
                        fd = _open(path)
                    if not _read(fd, offset, cuts)[1]:
                        return offset
                    continue
                call.keep_up()
            time.sleep(POLL_S)
    finally:
        if fd is not None:
            os.close(fd)


def _read(fd: Optional[int], offset: int, cuts: bool) -> Tuple[int, bytes]:
    """(where it begins, bytes) of the log from an offset on, behind a cut where one lies there."""
    while fd is not None:
        begin, end = offset, offset + wire.CHUNK
        if cuts:
            size = os.fstat(fd).st_size
            begin, end = next(logcap.data_ranges(fd, offset, size), (offset, end))
        block = os.pread(fd, min(wire.CHUNK, end - begin), begin)
        if not cuts or not block:
            return begin, block
        # it may have been cut while it was read
        whole = (begin, begin + len(block))
        if next(logcap.data_ranges(fd, *whole), whole) == whole:
            return begin, block
    return offset, b""


def _open(path: str) -> Optional[int]:
    try:
        return plain.open_file(path)
    except FileNotFoundError:
        return None


def _size(path: str) -> int:
    return plain.size(path) or 0
