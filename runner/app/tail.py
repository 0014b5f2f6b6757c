"""Following a run's log: every byte once, in order, through cut links, to the end of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from runner import states, wire
from runner.app import retrying
from runner.app.context import UNKNOWN_WORKER, Context, seen
from runner.app.results import RunOnHost
from runner.app.runs import RunRef
from runner.endpoint import Request, Worker, wire_json
from runner.errors import HostError, ProvisionError, RunnerError, Unreachable, WorkerError

RETRY_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
WITHOUT_WORKER_S = 300.0
"""How long a host that answers may lack its worker: its container, or Docker, may start anew."""
MOST_RANKS = 256
"""As many as a worker sends at once."""

WriteBytes = Callable[[bytes], None]
WriteRank = Callable[[int, int, bytes], None]
"""Takes bytes of a rank: which one, of how many, and the bytes."""
OnFirst = Callable[["float | None"], None]
"""Told before the first byte how long the run was queued, where that is known."""


def tail(
    ctx: Context,
    ref: RunRef,
    rank: int,
    start: int | None,
    lines: int | None,
    follow: bool,
    write: WriteBytes,
    warn: Callable[[str], None] | None = None,
    on_first: OnFirst | None = None,
) -> RunOnHost:
    """Hand a rank's bytes to `write` as they come; the run as it stood at the end.

    start: first byte wanted (None: 0). lines: only the last so many, instead. A link that is lost
    while following is made again and goes on at the next byte; `report` says so. warn: told of what
    became of the log, when bytes may be missing (None: `report`). Raises HostError when another
    worker answers then.
    """
    log = _Log(rank, start or 0)
    follower = _Follower(
        ctx, ref, [log], lines, follow, lambda rank, ranks, data: write(data), warn, on_first
    )
    return follower.follow()


def tail_all(
    ctx: Context,
    ref: RunRef,
    lines: int | None,
    follow: bool,
    write: WriteRank,
    warn: Callable[[str], None] | None = None,
) -> RunOnHost:
    """The same for every rank of a run at once; lines: of each."""
    follower = _Follower(ctx, ref, [_Log(0)], lines, follow, write, warn, None, merged=True)
    return follower.follow()


@dataclass
class _Log:
    """What was seen of one rank's log so far, over any number of conversations."""

    rank: int
    offset: int = 0
    began: bool = False
    problem: str = ""


class _Follower:
    """Logs of one run, over any number of conversations."""

    def __init__(
        self,
        ctx: Context,
        ref: RunRef,
        logs: list[_Log],
        lines: int | None,
        follow: bool,
        write: WriteRank,
        warn: Callable[[str], None] | None,
        on_first: OnFirst | None,
        merged: bool = False,
    ) -> None:
        self._ctx = ctx
        self._ref = ref
        self._logs = logs
        self._lines = lines
        self._follow = follow
        self._write = write
        self._warn = warn or ctx.report.note
        self._on_first = on_first
        self._merged = merged
        self._queued_s: float | None = None
        self._worker: Any = None
        self._lost_at: float | None = None

    def follow(self) -> RunOnHost:
        """Until the end, over as many conversations as it takes."""
        host = self._ctx.host(self._ref.host)
        tries = 0
        while True:
            try:
                with self._ctx.connect(host) as worker:
                    self._know(worker)
                    result = self._converse(worker)
                    self._ctx.report.done()
                    return result
            except (Unreachable, ProvisionError) as error:
                if self._lost_at is None:
                    self._lost_at, tries = time.time(), 0
                if not self._goes_on_after(error):
                    raise
                self._ctx.report.trouble(f"{error}; trying again")
                time.sleep(RETRY_WAITS_S[min(tries, len(RETRY_WAITS_S) - 1)])
                tries += 1

    def _goes_on_after(self, error: RunnerError) -> bool:
        if not self._follow or not self._logs[0].began or self._lost_at is None:
            return False
        return isinstance(error, Unreachable) or time.time() - self._lost_at < WITHOUT_WORKER_S

    def _know(self, worker: Worker) -> None:
        """Raises HostError for another worker than before: its logs are not the ones we read."""
        told = worker.hello.get("worker")
        if told in (None, UNKNOWN_WORKER):
            return
        if self._worker not in (None, told):
            raise HostError(
                f"{self._ref.host}: another worker answers now ({told}, not {self._worker}); "
                f"{self._ref.id}'s log was read up to byte {self._logs[0].offset}",
                f"runner status {self._ref.id}",
            )
        self._worker = told

    def _converse(self, worker: Worker) -> RunOnHost:
        host = worker.host.name
        first = self._ask(worker, self._logs[0], None)
        requests = {first: self._logs[0]}
        if self._merged:
            start = first.event()
            self._on_event(self._logs[0], start)
            for rank in range(1, _count_ranks(start, host)):
                if rank == len(self._logs):
                    self._logs.append(_Log(rank))
                requests[self._ask(worker, self._logs[rank], first)] = self._logs[rank]
        for request, kind, payload in worker.frames_of(list(requests)):
            if kind == wire.EVENT:
                self._on_event(requests[request], wire_json(payload, host))
            elif len(payload) < wire.TAIL_HEAD.size:
                raise WorkerError(f"{host}: a piece of the log without its place")
            else:
                self._on_data(requests[request], payload, host)
        return seen(self._ctx, worker, first.reply.get("run"), [self._ref.id])

    def _ask(self, worker: Worker, log: _Log, beside: Request | None) -> Request:
        arguments: dict[str, Any] = {
            "run": self._ref.id,
            "rank": log.rank,
            "from": log.offset,
            "held": log.offset if log.began else 0,
            "lines": None if log.began else self._lines,
            "follow": self._follow,
            "cuts": True,
        }
        return worker.open("tail", beside=beside, **arguments)

    def _on_event(self, log: _Log, event: dict[str, Any]) -> None:
        start = event.get("start")
        if isinstance(start, int) and wire.is_number(start):
            self._on_start(log, start, event.get("size"))
        elif "cut" in event:
            _pass_over(log, event["cut"])
        elif "anew" in event:
            self._on_anew(log, event["anew"])
        elif isinstance(event.get("problem"), str):
            self._on_problem(log, event["problem"])
        elif event.get("state") == states.QUEUED:
            self._ctx.report.step(f"{self._ref.id}  queued")
        elif "state" in event:
            self._ctx.report.done()
            times: list[Any] = [event.get("submitted_at"), event.get("started_at")]
            if all(map(wire.is_number, times)):
                self._queued_s = max(0.0, times[1] - times[0])

    def _on_start(self, log: _Log, start: int, size: Any) -> None:
        if self._lost_at is not None:
            self._ctx.report.done()
            self._ctx.report.note(retrying.back_text(self._ref.host, self._lost_at))
            self._lost_at = None
        if log.began:
            return
        log.offset, log.began = start, True
        if not wire.is_number(size):
            return
        if start > size:
            name = f"rank-{log.rank}.log"
            self._ctx.report.done()
            self._warn(f"--from {start} is beyond the end of {name}, which has {_size(size)}")
        elif start > 0 and self._lines is not None and log is self._logs[0]:
            of_what = "each rank" if self._merged else _size(size)
            self._ctx.report.note(f"last {self._lines} lines of {of_what}; all: --from 0")

    def _on_anew(self, log: _Log, where: Any) -> None:
        """The log no longer holds what we have of it, or is another file now."""
        if not _is_pair(where):
            return
        self._ctx.report.done()
        became = (
            f"became shorter, from {_size(log.offset)} to {_size(where[1])}"
            if where[1] < log.offset
            else f"was written anew, {_size(where[1])} by now"
        )
        self._warn(f"rank-{log.rank}.log {became}; here it goes on from its start")
        log.offset = 0

    def _on_problem(self, log: _Log, text: str) -> None:
        """Once for each, over all ranks and conversations."""
        if text not in [each.problem for each in self._logs]:
            self._ctx.report.done()
            self._warn(f"{self._ref.id}: {text}")
        log.problem = text

    def _on_data(self, log: _Log, payload: bytes, host: str) -> None:
        (offset,) = wire.TAIL_HEAD.unpack_from(payload)
        data = payload[wire.TAIL_HEAD.size :]
        if offset > log.offset:
            raise WorkerError(f"{host}: bytes {log.offset} to {offset} of the log did not come")
        fresh = data[log.offset - offset :]
        if fresh:
            if self._on_first is not None:
                self._on_first(self._queued_s)
                self._on_first = None
            self._write(log.rank, len(self._logs), fresh)
            log.offset += len(fresh)


def _pass_over(log: _Log, cut: Any) -> None:
    """Bytes that are gone for good; a line of the log's own stands before them."""
    if _is_pair(cut) and cut[0] <= log.offset < cut[1]:
        log.offset = int(cut[1])


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(wire.is_number, value))


def _count_ranks(start: dict[str, Any], host: str) -> int:
    ranks = start.get("ranks")
    if not isinstance(ranks, int) or not 1 <= ranks <= MOST_RANKS:
        raise WorkerError(f"{host}: ranks is {ranks!r}, not a number from 1 to {MOST_RANKS}")
    return ranks


def _size(count: int) -> str:
    return f"{count} bytes" if count < 10_000 else f"{count / 1e6:.1f} MB"
