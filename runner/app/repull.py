"""Pulling again and again while runs go on, through lost links, until all of each is here."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner import states
from runner.app import retrying
from runner.app.context import Context
from runner.app.pull import Round, Wish, folder_of, locked, pull_round
from runner.app.reports import PullReport
from runner.app.runs import RunRef
from runner.endpoint import Worker
from runner.errors import Unreachable
from runner.model import Host

WINDOW_BYTES = 64 << 10
"""Of a log that grew so much before what is new is verified each time, the whole in the end."""
SHORTEST_S = 2.0
LONGEST_S = 60.0
TIMES = 10.0
"""Unless told otherwise looking takes no more than a tenth of the time."""
RETRY_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
ROUNDS_AFTER_END = 3
"""How often files are looked for that are still being written though their run has ended."""


def pause_s(looks_s: Sequence[float], every_s: float | None) -> float:
    """How long to wait between two looks, of which the last ones took so long."""
    if every_s is not None:
        return every_s
    return min(LONGEST_S, max(SHORTEST_S, TIMES * sum(looks_s)))


def watch(
    ctx: Context,
    refs: Sequence[RunRef],
    to: Path | None,
    wish: Wish,
    every_s: float | None,
    on_round: Callable[[PullReport], None],
) -> list[PullReport]:
    """Pull runs until each has ended and all of it is here; what came of each in all.

    on_round: told of each round that brought something. A link that is lost is made again, and
    `report` says so. Raises what `pull` raises; Unreachable only for a host not heard so far.
    """
    runs = [_Watched(ref, folder_of(ctx, ref, to)) for ref in refs]
    links = {ref.host: _Link(ctx, ctx.host(ref.host)) for ref in refs}
    try:
        while True:
            for run in runs:
                if not run.is_over and links[run.ref.host].is_due:
                    _look(ctx, run, links[run.ref.host], wish, on_round)
            going = [run for run in runs if not run.is_over]
            if not going:
                return [run.report for run in runs]
            pause = pause_s([run.look_s for run in going], every_s)
            again = [link.due_in_s for link in links.values() if link.lost_at is not None]
            names = going[0].ref.id if len(going) == 1 else f"{len(going)} runs"
            if not again:
                ctx.report.step(f"watching {names}")
            time.sleep(min([pause, *again]))
    finally:
        for link in links.values():
            link.close()


def _look(
    ctx: Context,
    run: _Watched,
    link: _Link,
    wish: Wish,
    on_round: Callable[[PullReport], None],
) -> None:
    try:
        worker = link.worker()
        with locked(ctx, run.ref, run.top):
            found = pull_round(ctx, worker, run.ref, run.top, wish, WINDOW_BYTES)
            run.add(found, on_round)
            if found.run.status.state == states.ENDED:
                # what was verified in pieces is verified as a whole before it counts
                found = pull_round(ctx, worker, run.ref, run.top, wish)
                run.add(found, on_round)
                run.ended_rounds += 1
                run.is_over = found.is_over or run.ended_rounds >= ROUNDS_AFTER_END
    except Unreachable as error:
        link.lose(error)


@dataclass
class _Watched:
    """One run, and what came of it so far."""

    ref: RunRef
    top: Path
    is_over: bool = False
    ended_rounds: int = 0
    look_s: float = 0.0
    report: PullReport = field(init=False)

    def __post_init__(self) -> None:
        self.report = PullReport(self.ref.id, self.top, 0, 0, 0.0, 0)

    def add(self, found: Round, on_round: Callable[[PullReport], None]) -> None:
        new, before = found.report, self.report
        self.look_s = found.look_s
        if new.files or new.mirrored:
            on_round(new)
        self.report = dataclasses.replace(
            new,
            files=before.files + new.files,
            bytes=before.bytes + new.bytes,
            seconds=before.seconds + new.seconds,
            gone=tuple(sorted({*before.gone, *new.gone})),
            mirrored=before.mirrored + new.mirrored,
        )


class _Link:
    """The conversation with one host, made again when it is lost."""

    def __init__(self, ctx: Context, host: Host) -> None:
        self._ctx = ctx
        self._host = host
        self._worker: Worker | None = None
        self._began = False
        self._tries = 0
        self._next_at = 0.0
        self.lost_at: float | None = None

    @property
    def due_in_s(self) -> float:
        return max(0.0, self._next_at - time.monotonic())

    @property
    def is_due(self) -> bool:
        return self.due_in_s == 0.0

    def worker(self) -> Worker:
        if self._worker is None:
            self._worker = self._ctx.connect(self._host)
            _ = self._worker.hello  # it is there once it has spoken
            self._began = True
        if self.lost_at is not None:
            self._ctx.report.done()
            self._ctx.report.note(retrying.back_text(self._host.name, self.lost_at))
            self.lost_at, self._tries = None, 0
        return self._worker

    def lose(self, error: Unreachable) -> None:
        """Raises it again when the host was never heard."""
        self.close()
        if not self._began:
            raise error
        if self.lost_at is None:
            self.lost_at = time.time()
        self._ctx.lost.add(self._host.name)
        self._ctx.report.trouble(f"{error}; trying again")
        pause = RETRY_WAITS_S[min(self._tries, len(RETRY_WAITS_S) - 1)]
        self._tries += 1
        self._next_at = time.monotonic() + pause

    def close(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(OSError):
                worker.close()
