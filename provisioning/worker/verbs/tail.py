"""`tail`: a rank's log as it is written, from any byte, to the end of the run."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional

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
    reply holds the offset reached and the run's status.
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
    offset = _stream(call, paths, path, start, bool(request.get("follow", True)))
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
        position, missing = size, count
        while position > 0:
            begin = max(0, position - BLOCK)
            file.seek(begin)
            block = file.read(position - begin)
            if position == size and block.endswith(b"\n"):
                missing += 1
            index = len(block)
            while True:
                index = block.rfind(b"\n", 0, index)
                if index < 0:
                    break
                missing -= 1
                if missing == 0:
                    return begin + index + 1
            position = begin
    return 0


def _stream(call: Call, paths: RunPaths, path: str, offset: int, follow: bool) -> int:
    fd: Optional[int] = None
    told: Any = None
    look_at = 0.0
    try:
        while True:
            if fd is None:
                fd = _open(path)
            block = os.pread(fd, wire.CHUNK, offset) if fd is not None else b""
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
                    rest = os.pread(fd, wire.CHUNK, offset) if fd is not None else b""
                    if not rest:
                        return offset
                    continue
                call.keep_up()
            time.sleep(POLL_S)
    finally:
        if fd is not None:
            os.close(fd)


def _open(path: str) -> Optional[int]:
    try:
        return plain.open_file(path)
    except FileNotFoundError:
        return None


def _size(path: str) -> int:
    return plain.size(path) or 0
