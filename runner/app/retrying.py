"""Asking again over a new connection where that is safe, and saying so where nobody can know.

A request that looks only may be sent again at any time. One that changes something may be sent
again because every such verb of a worker is idempotent: by an id or a token that the client made
(`submit`, `again`, `resume`), or by its nature (`cancel`, `drain`, `remove`, `gc`). What is asked
is the same each time; what became of it is unknown only once the worker was not heard again.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from runner.app.context import Context
from runner.app.results import Report
from runner.endpoint import LinkLost, Worker
from runner.errors import (
    HostError,
    OutcomeUnknown,
    ProvisionError,
    RunnerError,
    Unreachable,
    WorkerError,
)
from runner.model import Host
from runner.placement import suffix_elsewhere

LOOK_WAITS_S = (0.2, 1.0)
ACT_WAITS_S = (1.0, 2.0, 4.0)
_MOST_MOVES = 3
"""A container may be replaced just while it is asked."""

T = TypeVar("T")
Connect = Callable[[], Worker]


def look(
    report: Report,
    connect: Connect,
    ask: Callable[[Worker], T],
    waits_s: Sequence[float] | None = None,
) -> T:
    """What `ask` gives, which changes nothing there; a link that was lost is made again, twice
    (or as often as there are `waits_s`).

    Raises Unreachable when it cannot be made, LinkLost when it is lost once more.
    """
    for wait_s in (*(LOOK_WAITS_S if waits_s is None else waits_s), None):
        try:
            with connect() as worker:
                return ask(worker)
        except LinkLost as error:
            if wait_s is None:
                raise
            report.trouble(f"{error}; asking again")
            time.sleep(wait_s)
    raise AssertionError("unreachable")


def look_inside(ctx: Context, host: Host, ask: Callable[[Worker], T]) -> T:
    """What `ask` gives, which only the container that a run's processes are in can tell: the
    worker that is asked first names it.
    """
    container: str | None = None
    for _ in range(_MOST_MOVES):
        try:
            connect = functools.partial(ctx.connect, host, container=container)
            return look(ctx.report, connect, ask)
        except RunnerError as error:
            named = suffix_elsewhere(host, error.told) if error.code == "elsewhere" else None
            if named is None or named == container:
                raise
            container = named
    raise WorkerError(f"{host.name}: its workers send us round and round")


def act(
    report: Report,
    connect: Connect,
    do: Callable[[Worker], T],
    unsure: OutcomeUnknown,
    *,
    first: Worker | None = None,
    went_out: Callable[[], bool] | None = None,
    waits_s: Sequence[float] | None = None,
) -> T:
    """What `do` gives, which changes something and may be asked for more than once.

    first: a conversation that is open already. went_out: whether the request may have reached the
    worker; without it every link that was lost counts as that. Once it may have, and the worker
    cannot be asked again, `unsure` is raised; before, what keeps us from it.
    """
    sent = False
    for wait_s in (*(ACT_WAITS_S if waits_s is None else waits_s), None):
        try:
            with contextlib.nullcontext(first) if first is not None else connect() as worker:
                return do(worker)
        except (HostError, ProvisionError) as error:
            lost = isinstance(error, LinkLost)
            sent = sent or (lost if went_out is None else went_out())
            again = lost or (sent and isinstance(error, Unreachable))
            if not again or wait_s is None:
                if not sent:
                    raise
                raise _with_cause(unsure, error) from error
            report.trouble(f"{error}; trying again")
            time.sleep(wait_s)
        first = None
    raise AssertionError("unreachable")


def _with_cause(unsure: OutcomeUnknown, error: HostError | ProvisionError) -> OutcomeUnknown:
    """The same, with what keeps us from asking, where that is not the link alone."""
    if isinstance(error, LinkLost):
        return unsure
    return OutcomeUnknown(unsure.message, *unsure.advice, f"now: {error.message}")


def back_text(host: str, lost_at: float) -> str:
    """Says that what follows something goes on after a cut: `gpu1: link lost 02:31:07, back …`."""
    at = time.strftime("%H:%M:%S", time.localtime(lost_at))
    seconds = max(1, round(time.time() - lost_at))
    return f"{host}: link lost {at}, back after {seconds}s, nothing missed"
