"""`tail`: a rank's log as it is written, from any byte, to the end of the run."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional, Tuple

import plain
import view
from paths import RunPaths

from runner import states, sums, wire
from verbs import Call, Refused, whole

SOONEST_S, LATEST_S = 0.003, 0.025
"""Bounds of a nap between two looks: short while bytes come, so that a line is seen at once; then a
tenth of the silence, so that a quiet log costs nothing that can be measured.
"""
STATE_POLL_S = 0.25
BLOCK = 64 * 1024
REMEMBERED = 256
"""Of what was sent last, so many bytes are looked at again before more is sent."""


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"run", "rank", "from"?: byte, "lines"?: n, "follow"} → DATA frames, each its offset first.

    EVENT {"start", "size", "ranks": how many the run has} comes first; {"state", "attempt",
    "submitted_at", "started_at"} whenever the run's state changes. The reply holds the offset
    reached and the run's status. "cuts" in the request: EVENT {"cut": [from, to]} stands for bytes
    that its log limit took; without it they come as NUL bytes. EVENT {"problem": text} tells what
    became of the log; {"anew": [reached, size]} that it became shorter than what was given ("held"
    in the request: up to there, by an earlier conversation), no longer holds it (where no log limit
    takes bytes), or that another file is the rank's log now: what follows begins at byte 0.
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
    call.event(start=start, size=size, ranks=nproc)
    is_limited = bool(pair and pair[0].get("log_limit_bytes"))
    stream = _Stream(call, paths, rank, start, is_limited and bool(request.get("cuts")))
    stream.remembers = pair is not None and not is_limited
    stream.held = min(start, whole(request, "held", 0))
    try:
        offset = stream.run(bool(request.get("follow", True)))
    finally:
        stream.close()
    pair = view.read_pair(paths)
    status = None
    if pair is None:
        call.run(paths.id)  # which tells of one that was removed meanwhile
    else:
        maker = view.View(call.workspace)
        status = maker.status(pair[0], pair[1], full=False).to_json()
    return {"offset": offset, "run": status}


def last_lines(path: str, size: int, count: int) -> int:
    """The offset at which the last `count` lines of a log of `size` bytes begin."""
    if count <= 0 or size == 0:
        return size
    with open(plain.open_file(path), "rb", buffering=0) as file:
        missing = count
        # a hole holds no lines, and may be larger than what is left
        for begin, end in reversed(list(sums.data_ranges(file.fileno(), 0, size))):
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


class _Stream:
    """A log on its way to the client, from an offset on."""

    def __init__(self, call: Call, paths: RunPaths, rank: int, offset: int, cuts: bool) -> None:
        self._call = call
        self._paths = paths
        self._rank = rank
        self._path = paths.log(rank)
        self._offset = offset
        self._cuts = cuts
        self._fd: Optional[int] = None
        self._told: Any = None
        self._problem: Optional[str] = None
        self.held = 0
        """The client has what lies before, or the log was seen to reach there."""
        self.remembers = False
        """Whether nobody but the job takes bytes of the log, once written, away."""
        self._last = b""

    def run(self, follow: bool) -> int:
        """Send all there is, and what comes until the run's end; the offset reached."""
        look_at = 0.0
        came_at = time.monotonic()
        while True:
            sent = self._send()
            now = time.monotonic()
            if sent:
                came_at = now
                continue
            if now >= look_at or not follow:
                look_at = now + STATE_POLL_S
                pair = view.read_pair(self._paths)
                self._say(pair)
                if not follow or pair is None or pair[1]["state"] == states.ENDED:
                    # the end was written after the last byte: one more look finds them all
                    if not self._find_new(pair) and not (follow and self._send()):
                        return self._offset
                    continue
                self._find_new(pair)
                self._call.keep_up()
            time.sleep(min(LATEST_S, max(SOONEST_S, (now - came_at) / 10)))

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _send(self) -> bool:
        """Send a piece; whether there was one."""
        if self._fd is None:
            self._fd = _open(self._path)
            if self._fd is None:
                return False
        size = os.fstat(self._fd).st_size
        if size < self._offset <= self.held:
            self._begin_anew(size)
        self.held = max(self.held, size)
        if self._offset >= size:
            return False  # the system does not look behind any place at all
        if not self._is_as_sent(self._fd):
            self._begin_anew(size)
        begin, block = _read(self._fd, self._offset, self._cuts)
        if begin > self._offset:
            self._call.event(cut=[self._offset, begin])
            self._offset = begin
        if block:
            self._call.data(wire.TAIL_HEAD.pack(self._offset) + block)
            self._offset += len(block)
            if self.remembers:
                self._last = (self._last + block[-REMEMBERED:])[-REMEMBERED:]
        return bool(block)

    def _is_as_sent(self, fd: int) -> bool:
        """Whether it still ends in what was sent last; else it was cut, and has grown again."""
        last = self._last
        return os.pread(fd, len(last), self._offset - len(last)) == last if last else True

    def _begin_anew(self, size: int) -> None:
        self._call.event(anew=[self._offset, size])
        self._offset = self.held = 0
        self._last = b""

    def _find_new(self, pair: Optional[view.Pair]) -> bool:
        """Turn to the file that is the rank's log now, where that is another one."""
        if self._fd is None or pair is None:
            return False
        ours = _identity(os.fstat(self._fd))
        try:
            here = _identity(os.lstat(self._path))
        except OSError:
            return False
        attempt = int(pair[1].get("attempt") or 0)
        if here == ours or here != view.own_log(self._paths, attempt, self._rank):
            return False
        fd = _open(self._path)
        if fd is None:
            return False
        self.close()
        self._fd = fd
        if self._offset:
            self._begin_anew(os.fstat(fd).st_size)
        return True

    def _say(self, pair: Optional[view.Pair]) -> None:
        """The run's state and what became of its logs, when that is new."""
        if pair is None:
            return
        mark = (pair[1]["state"], pair[1].get("attempt"))
        if mark != self._told:
            self._told = mark
            times = {"submitted_at": pair[0].get("accepted_at")}
            times["started_at"] = pair[1].get("started_at")
            self._call.event(state=mark[0], attempt=mark[1], **times)
        problem = view.log_problem(self._paths, int(mark[1] or 0))
        ran = mark[0] == states.ENDED and pair[1].get("ran_s")
        if problem is None and ran and plain.size(self._path) is None:
            problem = "%s is not there any more" % os.path.basename(self._path)
        if problem is not None and problem != self._problem:
            self._problem = problem
            self._call.event(problem=problem)


def _identity(found: os.stat_result) -> List[int]:
    return [found.st_dev, found.st_ino]


def _read(fd: int, offset: int, cuts: bool) -> Tuple[int, bytes]:
    """(where it begins, bytes) of the log from an offset on, behind a cut where one lies there."""
    while True:
        begin, end = offset, offset + wire.CHUNK
        if cuts:
            size = os.fstat(fd).st_size
            begin, end = next(sums.data_ranges(fd, offset, size), (offset, end))
        block = os.pread(fd, min(wire.CHUNK, end - begin), begin)
        if not cuts or not block:
            return begin, block
        # it may have been cut while it was read
        whole = (begin, begin + len(block))
        if next(sums.data_ranges(fd, *whole), whole) == whole:
            return begin, block


def _open(path: str) -> Optional[int]:
    try:
        return plain.open_file(path)
    except FileNotFoundError:
        return None


def _size(path: str) -> int:
    return plain.size(path) or 0
