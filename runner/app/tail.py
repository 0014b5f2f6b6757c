"""Following a run's log: every byte once, in order, through cut links, to the end of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from runner import states, wire
from runner.app.context import Context, seen
from runner.app.results import RunOnHost
from runner.app.runs import RunRef
from runner.endpoint import Worker, wire_json
from runner.errors import Unreachable, WorkerError

RETRY_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)


def tail(
    ctx: Context,
    ref: RunRef,
    rank: int,
    start: int | None,
    lines: int | None,
    follow: bool,
    write: Callable[[bytes], None],
    warn: Callable[[str], None] | None = None,
) -> RunOnHost:
    """Hand a rank's bytes to `write` as they come; the run as it stood at the end.

    start: first byte wanted (None: 0). lines: only the last so many, instead. A link that is lost
    while following is made again and goes on at the next byte; `report` says so. warn: told of what
    became of the log, when bytes may be missing (None: `report`).
    """
    follower = _Follower(ctx, ref, rank, start or 0, lines, follow, write, warn)
    host = ctx.host(ref.host)
    tries = 0
    lost_at: float | None = None
    while True:
        try:
            with ctx.connect(host) as worker:
                if lost_at is not None:
                    follower.say_back(lost_at)
                    lost_at = None
                result = follower.run(worker)
                ctx.report.done()
                return result
        except Unreachable as error:
            if not follow or not follower.began:
                raise
            if lost_at is None:
                lost_at, tries = time.time(), 0
            pause = RETRY_WAITS_S[min(tries, len(RETRY_WAITS_S) - 1)]
            tries += 1
            ctx.report.step(f"{error}; trying again")
            time.sleep(pause)


class _Follower:
    """What was seen so far, over any number of conversations."""

    def __init__(
        self,
        ctx: Context,
        ref: RunRef,
        rank: int,
        start: int,
        lines: int | None,
        follow: bool,
        write: Callable[[bytes], None],
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._ctx = ctx
        self._ref = ref
        self._rank = rank
        self._offset = start
        self._lines = lines
        self._follow = follow
        self._write = write
        self._warn = warn or ctx.report.note
        self._warned = ""
        self.began = False

    def say_back(self, lost_at: float) -> None:
        at = time.strftime("%H:%M:%S", time.localtime(lost_at))
        seconds = max(1, round(time.time() - lost_at))
        self._ctx.report.done()
        self._ctx.report.note(
            f"{self._ref.host}: link lost {at}, back after {seconds}s, nothing missed"
        )

    def run(self, worker: Worker) -> RunOnHost:
        begin: dict[str, Any] = {"from": self._offset}
        request = worker.open(
            "tail",
            run=self._ref.id,
            rank=self._rank,
            follow=self._follow,
            lines=None if self.began else self._lines,
            cuts=True,
            held=self._offset if self.began else 0,
            **begin,
        )
        for kind, payload in request.frames():
            if kind == wire.EVENT:
                self._on_event(wire_json(payload, worker.host.name))
            elif len(payload) < wire.TAIL_HEAD.size:
                raise WorkerError(f"{worker.host.name}: a piece of the log without its place")
            else:
                self._on_data(payload, worker.host.name)
        return seen(self._ctx, worker, request.reply.get("run"))

    def _on_event(self, event: dict[str, Any]) -> None:
        start = event.get("start")
        if isinstance(start, int) and wire.is_number(start):
            if not self.began:
                self._offset = start
                size: Any = event.get("size")
                if start > 0 and self._lines is not None and wire.is_number(size):
                    self._ctx.report.note(
                        f"last {self._lines} lines of {_size(size)}; all: --from 0"
                    )
            self.began = True
        elif "cut" in event:
            self._on_cut(event["cut"])
        elif "anew" in event:
            self._on_anew(event["anew"])
        elif isinstance(event.get("problem"), str):
            self._on_problem(event["problem"])
        elif event.get("state") == states.QUEUED:
            self._ctx.report.step(f"{self._ref.id}  queued")
        elif "state" in event:
            self._ctx.report.done()

    def _on_cut(self, cut: Any) -> None:
        """Bytes that are gone for good; a line of the log's own stands before them."""
        good = isinstance(cut, list) and len(cut) == 2 and all(map(wire.is_number, cut))
        if good and cut[0] <= self._offset < cut[1]:
            self._offset = int(cut[1])

    def _on_anew(self, where: Any) -> None:
        """The log became shorter than what we have, or is another file now."""
        good = isinstance(where, list) and len(where) == 2 and all(map(wire.is_number, where))
        if not good:
            return
        self._ctx.report.done()
        self._warn(
            f"rank-{self._rank}.log became shorter, from {_size(self._offset)} to "
            f"{_size(where[1])}; here it goes on from its start"
        )
        self._offset = 0

    def _on_problem(self, text: str) -> None:
        """Once for each, over all conversations."""
        if text != self._warned:
            self._warned = text
            self._ctx.report.done()
            self._warn(f"{self._ref.id}: {text}")

    def _on_data(self, payload: bytes, host: str) -> None:
        (offset,) = wire.TAIL_HEAD.unpack_from(payload)
        data = payload[wire.TAIL_HEAD.size :]
        if offset > self._offset:
            raise WorkerError(f"{host}: bytes {self._offset} to {offset} of the log did not come")
        fresh = data[self._offset - offset :]
        if fresh:
            self._write(fresh)
            self._offset += len(fresh)


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1e6:.1f} MB"
