"""Many hosts at once: all are asked side by side, and who says nothing is not waited for."""

from __future__ import annotations

import contextlib
import functools
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from runner.app.context import Context, Slow
from runner.carriers.base import CONNECT_TIMEOUT_S
from runner.children import end_new_at_exit
from runner.endpoint import LinkLost, Worker
from runner.errors import RunnerError
from runner.model import Host
from runner.show.units import duration

MOST_AT_ONCE = 50
LEAST_S = 8.0
"""A login that takes 2 to 6 s is an ordinary one: a far host, a slow one, a jump on the way."""
TIMES = 3.0
ANSWER_S = 30.0
"""How long a worker that spoke may take to answer; its disk may hang while it beats."""
TICK_S = 0.5
MOST_NAMED = 3

T = TypeVar("T")
Connect = Callable[[], Worker]
"""Opens a conversation with the host that is being asked; its worker has said what it is."""
Answer = tuple[Host, "T | None", "RunnerError | None"]


def patience_s(took_s: Sequence[float], hosts: int) -> float:
    """How long a host may take to speak, where `took_s` is what those took that did so far.

    Three times the slowest of the quicker half, so that a slow network or a busy machine makes
    nobody dead; 8 s at least, and at most what one host alone is given. Nobody spoke: that.
    """
    if not took_s:
        return CONNECT_TIMEOUT_S
    half = sorted(took_s)[: max(1, hosts // 2)]
    return min(CONNECT_TIMEOUT_S, max(LEAST_S, TIMES * half[-1]))


def waiting_line(what: str, hosts: int, waiting: Sequence[str], left_s: float | None = None) -> str:
    """`ps  47 of 50 hosts; waiting for gpu3, gpu9`."""
    text = f"{what}  {hosts - len(waiting)} of {hosts} hosts"
    if waiting:
        more = len(waiting) - MOST_NAMED
        text += f"; waiting for {', '.join(waiting[:MOST_NAMED])}"
        text += f" and {more} more" if more > 0 else ""
    return text if left_s is None else f"{text}; {duration(max(0.0, left_s))} left"


def on_hosts(
    ctx: Context,
    hosts: Iterable[Host],
    act: Callable[[Host, Connect], T],
    *,
    what: str,
    patient: bool = False,
    answer_s: float | None = ANSWER_S,
    until: float | None = None,
    on_done: Callable[[Host, T | None, RunnerError | None], None] | None = None,
) -> list[Answer[T]]:
    """`act` on each host at the same time: (host, what came, what went wrong), in their order.

    Of several, those that have not spoken after a while (`patience_s`), or have not answered after
    `answer_s`, get a Slow and are left behind. patient: everyone is waited for, as one host alone
    is. what: the command, for the line that tells how far it is; until: when it will end, by the
    monotonic clock, for the same. on_done: told each answer as it comes.
    """
    listed = list(hosts)
    if len(listed) > 1:
        limit_s = None if patient else answer_s
        return _Round(ctx, listed, act, what, patient, limit_s, until, on_done).answers()
    found = []
    for host in listed:
        connect = functools.partial(ctx.connect, host)
        answer = _attempt(host, functools.partial(act, host, connect))
        if on_done is not None:
            on_done(*answer)
        found.append(answer)
    return found


def _attempt(host: Host, act: Callable[[], T]) -> Answer[T]:
    try:
        return host, act(), None
    except RunnerError as error:
        return host, None, error


@dataclass(eq=False)
class _Asked:
    """One host that is being asked, by a thread of its own."""

    host: Host
    began: float = 0.0
    spoke: float | None = None
    """When its worker said what it is, the first time."""
    left: bool = False
    """Nobody waits for it any more."""
    worker: Worker | None = None
    """The newest conversation with it."""


class _Round(Generic[T]):
    """Several hosts asked once. What its threads share is changed under `_lock` alone."""

    def __init__(
        self,
        ctx: Context,
        hosts: Sequence[Host],
        act: Callable[[Host, Connect], T],
        what: str,
        patient: bool,
        answer_s: float | None,
        until: float | None,
        on_done: Callable[[Host, T | None, RunnerError | None], None] | None,
    ) -> None:
        self._ctx = ctx
        self._act = act
        self._what = what
        self._patient = patient
        self._answer_s = answer_s
        self._until = until
        self._on_done = on_done
        self._asked = [_Asked(host) for host in hosts]
        self._answers: dict[int, Answer[T]] = {}
        self._came: queue.SimpleQueue[tuple[int, Answer[T] | None, BaseException | None]]
        self._came = queue.SimpleQueue()
        self._lock = threading.Lock()

    def answers(self) -> list[Answer[T]]:
        """Everyone's, once each has come or is not waited for."""
        end_new_at_exit()
        waiting = deque(range(len(self._asked)))
        under_way: set[int] = set()
        while waiting or under_way:
            while waiting and len(under_way) < MOST_AT_ONCE:
                number = waiting.popleft()
                under_way.add(number)
                self._asked[number].began = time.monotonic()
                # daemons: who is left behind keeps no process alive
                threading.Thread(target=self._ask, args=(number,), daemon=True).start()
            self._tell([*sorted(under_way), *waiting])
            under_way.difference_update(self._take())
            under_way.difference_update(self._overdue(under_way))
        return [self._answers[number] for number in range(len(self._asked))]

    def _tell(self, waiting: Sequence[int]) -> None:
        names = [self._asked[number].host.name for number in waiting]
        left_s = None if self._until is None else self._until - time.monotonic()
        self._ctx.report.step(waiting_line(self._what, len(self._asked), names, left_s))

    def _take(self) -> list[int]:
        """Those whose answer has come; waits a moment for one."""
        numbers = []
        with contextlib.suppress(queue.Empty):
            block = True
            while True:
                number, answer, bug = self._came.get(block, TICK_S)
                block = False
                if self._asked[number].left:
                    continue
                if bug is not None:
                    raise bug
                assert answer is not None
                self._settle(number, answer)
                numbers.append(number)
        return numbers

    def _settle(self, number: int, answer: Answer[T]) -> None:
        self._answers[number] = answer
        if self._on_done is not None:
            self._on_done(*answer)

    def _overdue(self, under_way: Iterable[int]) -> list[int]:
        if self._patient:
            return []
        now = time.monotonic()
        answer_s = math.inf if self._answer_s is None else self._answer_s
        with self._lock:
            took_s = [each.spoke - each.began for each in self._asked if each.spoke is not None]
            limit_s = patience_s(took_s, len(self._asked))
            late = []
            for number in under_way:
                asked = self._asked[number]
                if asked.spoke is None and now - asked.began > limit_s:
                    late.append((number, f"no answer within {limit_s:.0f} s; slow or gone"))
                elif asked.spoke is not None and now - asked.spoke > answer_s:
                    late.append((number, f"it is there, but gave no answer in {answer_s:.0f} s"))
            for number, _ in late:
                self._asked[number].left = True
        for number, text in late:
            asked = self._asked[number]
            if asked.worker is not None:
                threading.Thread(target=asked.worker.close, daemon=True).start()
            self._settle(number, (asked.host, None, Slow(f"{asked.host.name}: {text}")))
        return [number for number, _ in late]

    def _ask(self, number: int) -> None:
        asked = self._asked[number]
        try:
            answer = _attempt(asked.host, lambda: self._act(asked.host, lambda: self._open(asked)))
        except BaseException as bug:  # the edge of a thread: whoever waits must hear of it
            self._came.put((number, None, bug))
        else:
            self._came.put((number, answer, None))

    def _open(self, asked: _Asked) -> Worker:
        self._stop_if_left(asked)
        worker = self._ctx.connect(asked.host, many=True)
        with self._lock:
            asked.worker = worker
        try:
            worker.hello  # noqa: B018 - waits for it
            with self._lock:
                if asked.spoke is None:
                    asked.spoke = time.monotonic()
            self._stop_if_left(asked)
        except BaseException:
            worker.close()
            raise
        return worker

    def _stop_if_left(self, asked: _Asked) -> None:
        if asked.left:
            raise LinkLost(f"{asked.host.name}: nobody waits for it any more")
