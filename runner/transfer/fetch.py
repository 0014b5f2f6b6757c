"""Artifacts of a run brought here, each whole and verified or not there."""

from __future__ import annotations

import contextlib
import json
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from runner import wire
from runner.endpoint import LinkLost, Request, Worker
from runner.errors import RunnerError, SpecError, Unreachable
from runner.manifest import Fetch, Known
from runner.show.units import size
from runner.transfer import lanes as cutting
from runner.transfer import parts
from runner.transfer.arrivals import Arrivals, Ended, Fetched
from runner.transfer.lanes import Unit
from runner.transfer.places import Places

AHEAD = 2
"""Batches a connection has asked for at a time, so that it never waits for a question's way."""
_ROWS_BYTES = 200_000
"""Of a frame of rows, before it is compressed; what came of a question is a frame of its own."""


def fetch(
    worker: Worker,
    run: str,
    wanted: Sequence[Fetch],
    places: Places,
    *,
    ready: Sequence[tuple[Fetch, Known]] = (),
    lanes: int = 1,
    connect: Callable[[int], Worker] | None = None,
    on_bytes: Callable[[Fetch, int], None] = lambda fetch, count: None,
) -> Fetched:
    """Bring artifacts below a folder; all of a checkpoint is put into place when all of it is here.

    Each gathers in `.parts` and is renamed into place when its sha256 is the one the worker read. A
    log that grew is appended to where it lies, and what was appended is taken back when the sum is
    another. What lay there before a failed pull is still there, and what came is gone on from.
    ready: what is here and verified already. connect: gives further connections, by number, for up
    to `lanes`; that some cannot be had is no failure. Raises IntegrityError, SpecError (no room
    here), what a worker's refusal means.
    """
    lanes = lanes if connect is not None else 1
    cut = cutting.cut(wanted, lanes)
    arrivals = Arrivals(worker.host.name, wanted, cut, places, on_bytes)
    try:
        arrivals.stage_ready(ready)
        if wanted:
            _Transfer(arrivals, run, cut).run(worker, lanes, connect)
        return arrivals.result()
    except OSError as error:
        raise _no_room(places, error, arrivals.result().bytes) from error
    finally:
        arrivals.close()


class _Transfer:
    """The connections over which things come."""

    def __init__(self, arrivals: Arrivals, run: str, cut: cutting.Cut) -> None:
        self._arrivals = arrivals
        self._run = run
        self._cut = cut
        self._lock = threading.Condition()
        self._batches = deque(list(batch) for batch in cut.batches)
        self._busy: set[int] = set()
        """Further connections that have been asked for something."""
        self._others: list[Worker] = []
        self._failure: BaseException | None = None
        self._stops = False

    def run(self, worker: Worker, lanes: int, connect: Callable[[int], Worker] | None) -> None:
        own = list(self._cut.own)
        for unit in own:
            self._arrivals.begin_growth(unit)
        own = [unit for unit in own if not unit.is_over]
        for number in range(1, lanes):
            threading.Thread(target=self._other_lane, args=(number, connect), daemon=True).start()
        try:
            sums = self._ask_sums(worker)
            while not self._stops:
                self._lane(worker, own)
                own = []
                with self._lock:
                    # one that is still connecting is not waited for
                    while self._busy and self._failure is None:
                        self._lock.wait(0.2)
                    # what a connection that was lost left is fetched over this one
                    self._stops = not self._batches or self._failure is not None
            if self._failure is not None:
                raise self._failure
            if sums is not None:
                self._read(sums, list(self._cut.sums))
        finally:
            self._stop()

    def _ask_sums(self, worker: Worker) -> Request | None:
        if not self._cut.sums:
            return None
        request = worker.open("files", run=self._run)
        self._send(request, self._cut.sums)
        request.end()
        return request

    def _other_lane(self, number: int, connect: Callable[[int], Worker]) -> None:
        taken: list[Unit] = []
        try:
            with connect(number) as worker:
                with self._lock:
                    if self._stops:
                        return
                    self._others.append(worker)
                self._lane(worker, [], number, taken)
        except Unreachable:
            self._give_back(taken)
        except RunnerError as error:
            if taken:
                self._failure = self._failure or error
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            with self._lock:
                self._busy.discard(number)
                self._lock.notify_all()

    def _lane(
        self,
        worker: Worker,
        own: list[Unit],
        number: int = 0,
        taken: list[Unit] | None = None,
    ) -> None:
        """Fetch what is there to be fetched over one connection."""
        asked: list[Unit] = [] if taken is None else taken
        batches = [own] if own else []
        if not batches and not self._batches:
            return
        request = worker.open("files", run=self._run)
        ends: deque[int] = deque()
        """Of the batches under way, in `asked`."""
        ended = False
        position = 0

        def ask() -> None:
            """Have AHEAD batches under way, as long as there are any.

            A link that is found lost here is no reason to drop what came before: the frames say so
            themselves, once the last one is taken in.
            """
            nonlocal ended
            while not ended and len(ends) < AHEAD:
                batch = batches.pop(0) if batches else self._take(number)
                asked.extend(batch)
                ended = not batch
                try:
                    if batch:
                        ends.append(len(asked))
                        self._send(request, batch)
                    else:
                        request.end()
                except LinkLost:
                    ended = True

        ask()
        for kind, payload in request.frames():
            if kind == wire.DATA:
                self._arrivals.feed(asked, payload)
            if self._failure is not None:
                return
            while position < len(asked) and asked[position].is_over:
                position += 1
            while ends and ends[0] <= position:
                ends.popleft()
            ask()
        self._arrivals.check_over(asked)

    def _read(self, request: Request, units: list[Unit]) -> None:
        for kind, payload in request.frames():
            if kind == wire.DATA:
                self._arrivals.feed(units, payload)
        self._arrivals.check_over(units)

    def _send(self, request: Request, units: Iterable[Unit]) -> None:
        rows: list[str] = []
        count = 0
        for unit in units:
            file = self._arrivals.wanted[unit.item].file
            row: list[Any] = [file.kind, file.path, unit.summed, unit.start, unit.end]
            text = json.dumps([*row, file.size, file.mtime_ns, unit.prefix], separators=(",", ":"))
            if rows and count + len(text) > _ROWS_BYTES:
                _send_rows(request, rows)
                rows, count = [], 0
            rows.append(text)
            count += len(text) + 1
        _send_rows(request, rows)

    def _take(self, number: int) -> list[Unit]:
        with self._lock:
            if self._stops or not self._batches:
                return []
            if number:
                self._busy.add(number)
            return self._batches.popleft()

    def _give_back(self, taken: list[Unit]) -> None:
        left = [self._arrivals.again(unit) for unit in taken if not unit.is_over]
        if left:
            with self._lock:
                self._batches.append(left)

    def _stop(self) -> None:
        with self._lock:
            self._stops = True
            self._failure = self._failure or Ended()
            others, self._others = self._others, []
        for worker in others:
            with contextlib.suppress(OSError):
                worker.close()


def _send_rows(request: Request, rows: list[str]) -> None:
    request.send(zlib.compress(f"[{','.join(rows)}]".encode("ascii"), 1))


def _no_room(places: Places, error: OSError, count: int) -> SpecError:
    text = f"{places.top}: {error.strerror}; what was there before is untouched"
    kept = f"what came, {size(count)}, is kept in {parts.PARTS} for the next pull"
    return SpecError(text, *([kept] if count else []))
