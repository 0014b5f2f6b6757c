"""Cancel: returns when nothing of a run is left and its GPU memory is back."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from runner import states
from runner.app import retrying
from runner.app.context import Context, seen, silent, unread
from runner.app.many import Connect, on_hosts
from runner.app.reports import CancelReport
from runner.app.results import Contact
from runner.app.runs import (
    RunRef,
    by_host,
    check_listed,
    contact_last_seen,
    last_seen_on,
)
from runner.endpoint import Worker
from runner.errors import (
    HostError,
    NotFound,
    OutcomeUnknown,
    RunnerError,
    SpecError,
    Unreachable,
    WorkerError,
)
from runner.model import Host
from runner.show.units import duration, plural
from runner.wire import is_number

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 15.0)
TICK_S = 1.0
T = TypeVar("T")


@dataclass
class Order:
    """How runs are to be stopped, and how far that is: it can be asked also after a Ctrl-C."""

    now: bool = False
    """KILL at once, without the grace."""
    until_s: float | None = None
    """How long a host that does not answer is asked again."""
    reports: dict[str, CancelReport] = field(default_factory=dict)
    """By run, as they come."""
    asked: set[str] = field(default_factory=set)
    """Runs whose worker has the word to stop."""
    sent: set[str] = field(default_factory=set)
    """Hosts that the word was sent to, whether it arrived or not."""
    wanted: dict[str, str] = field(default_factory=dict)
    """Run to host, of those to be stopped."""
    hosts: set[str] = field(default_factory=set)
    """Whose runs are all meant, and of which nothing is known yet."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.deadline = None if self.until_s is None else time.monotonic() + self.until_s

    def left_s(self) -> float:
        """How much longer a silent host is asked."""
        return 0.0 if self.deadline is None else self.deadline - time.monotonic()

    def unended(self) -> list[CancelReport]:
        """What is to be said of runs whose stop was interrupted."""
        out = []
        for run, host in self.wanted.items():
            if run not in self.reports:
                text = f"{host}: interrupted"
                asked = run in self.asked
                out.append(CancelReport(run, host, None, False, error=text, asked=asked))
        return out

    def unknown(self) -> list[str]:
        """The hosts of which an interrupt left it open what runs there."""
        return sorted(self.hosts - set(self.wanted.values()))


def cancel(ctx: Context, refs: Sequence[RunRef], order: Order | None = None) -> list[CancelReport]:
    """Stop these runs: TERM, their grace, KILL (`now`: KILL at once). One report each.

    A host that does not answer is reported with `error`: its runs were NOT stopped.
    """
    order = order or Order()
    order.wanted.update((ref.id, ref.host) for ref in refs)
    _set_apart(ctx, order, refs)
    groups = by_host(ctx, [ref for ref in refs if ref.id not in order.reports])
    wanted = {host.name: ids for host, ids in groups}

    def on_done(
        host: Host, found: dict[str, CancelReport] | None, error: RunnerError | None
    ) -> None:
        ids = wanted[host.name]
        if found is None:
            found = {run: _unreached(order, host, run, error) for run in ids}
        order.reports.update(found)
        if len(groups) > 1:
            ctx.report.note(_host_line(host.name, list(found.values())))

    on_hosts(
        ctx,
        [host for host, _ in groups],
        lambda host, connect: _keep_trying(
            ctx,
            order,
            host,
            lambda: _cancel(ctx, host, connect, wanted[host.name], order),
        ),
        what="cancel",
        patient=True,
        until=order.deadline,
        on_done=on_done,
    )
    ctx.report.done()
    return [order.reports[ref.id] for ref in refs]


def cancel_all(
    ctx: Context, host: str | None = None, order: Order | None = None
) -> tuple[list[CancelReport], list[Contact]]:
    """Stop every run of this project that has not ended, on all hosts or on one.

    How many there are is said before. A host that does not answer is reported with `error` under
    each run that was last seen alive there; one where none was is returned beside the reports.
    """
    order = order or Order()
    asked = [ctx.host(host)] if host else list(ctx.hosts.values())
    order.hosts.update(each.name for each in asked)

    def on_done(each: Host, found: list[CancelReport] | None, error: RunnerError | None) -> None:
        order.hosts.discard(each.name)
        if len(asked) > 1 and found:
            ctx.report.note(_host_line(each.name, found))

    answers = on_hosts(
        ctx,
        asked,
        lambda each, connect: _stop_all(ctx, each, connect, order),
        what="cancel",
        patient=True,
        until=order.deadline,
        on_done=on_done,
    )
    ctx.report.done()
    records = ctx.store.records()
    unseen = [] if host else unread(ctx)
    for each, _, error in answers:
        if error is None:
            continue
        live = [run for run, name in order.wanted.items() if name == each.name]
        if not live:
            check_listed(each, error, host is not None)
            seen_there = last_seen_on(ctx, each, error, records)
            live = [run.id for run in seen_there if run.status.state != states.ENDED]
        for run in live:
            order.reports.setdefault(run, _unreached(order, each, run, error))
        contact = contact_last_seen(each, error, records)
        # where no worker is and none of ours was, there is nothing to stop
        if not live and (contact.state != "no-worker" or host is not None):
            unseen.append(contact)
    if not order.reports and not unseen:
        ctx.report.note("nothing to stop: every run of this project has ended")
    return list(order.reports.values()), unseen


def _set_apart(ctx: Context, order: Order, refs: Sequence[RunRef]) -> None:
    """Report the runs whose host's file is wrong or gone: the others are stopped all the same."""
    for name in dict.fromkeys(ref.host for ref in refs):
        try:
            ctx.host(name)
        except (NotFound, SpecError) as error:
            for run in (ref.id for ref in refs if ref.host == name):
                report = _unreached(order, Host(name), run, error)
                if isinstance(error, NotFound):
                    text = f"{run}: it was on {name}, which is no host here now; NOT stopped"
                    report = replace(report, error=text)
                order.reports[run] = report


def _stop_all(ctx: Context, host: Host, connect: Connect, order: Order) -> list[CancelReport]:
    """Stop this project's runs on a host; how many there are is said before."""

    def ask(worker: Worker) -> list[str]:
        _, rows = worker.call("runs", project=ctx.project.id, all=False)
        found = [seen(ctx, worker, row) for row in rows]
        return [run.id for run in found if run.status.state != states.ENDED]

    def attempt() -> list[CancelReport]:
        ids = retrying.look(ctx.report, connect, ask)
        with order.lock:
            # two host files may lead to one worker: the first to ask stops its runs
            ids = [run for run in ids if order.wanted.setdefault(run, host.name) == host.name]
        if not ids:
            return []
        ctx.report.note(f"stopping {plural(len(ids), 'run')} of this project on {host.name}")
        found = _cancel(ctx, host, connect, ids, order)
        order.reports.update(found)
        return list(found.values())

    return _keep_trying(ctx, order, host, attempt)


def _keep_trying(ctx: Context, order: Order, host: Host, attempt: Callable[[], T]) -> T:
    """What `attempt` gives; as long as the order says, a host that is silent is asked again."""
    for pause_s in itertools.chain(PAUSES_S, itertools.repeat(PAUSES_S[-1])):
        try:
            return attempt()
        except (Unreachable, OutcomeUnknown):
            if order.left_s() <= pause_s:
                raise
            silent = f"{host.name}: no answer; nothing was stopped there yet; trying again"
            ctx.report.trouble(silent)
            until = time.monotonic() + pause_s
            while (rest_s := until - time.monotonic()) > 0:
                ctx.report.step(f"{silent}, {duration(order.left_s())} left")
                time.sleep(min(TICK_S, rest_s))
    raise AssertionError("unreachable")


def _unreached(order: Order, host: Host, run: str, error: RunnerError | None) -> CancelReport:
    """What is said where nothing was stopped: the way out too, where the error leads to it."""
    text, advice = str(error), error.advice if error is not None else ()
    if isinstance(error, SpecError):
        text = text.removesuffix(":")
    elif text.endswith(":"):
        text, advice = " ".join([text, *advice]), ()
    unsure = isinstance(error, OutcomeUnknown)
    return CancelReport(
        run,
        host.name,
        None,
        False,
        error=text,
        advice=advice,
        contact=silent(host.name, error).state,
        status=error.status if error is not None else HostError.status,
        asked=unsure,
        retry=isinstance(error, Unreachable) and order.until_s is None,
    )


def _host_line(host: str, reports: Sequence[CancelReport]) -> str:
    """What is said of a host once it is done, while others are waited for."""
    missed = [report for report in reports if report.error is not None]
    stopped = len(reports) - len(missed)
    parts = [f"{plural(stopped, 'run')} stopped"] if stopped else []
    parts += [f"{plural(len(missed), 'run')} NOT stopped"] if missed else []
    return f"{host}  {', '.join(parts)}"


def _cancel(
    ctx: Context, host: Host, connect: Connect, ids: list[str], order: Order
) -> dict[str, CancelReport]:
    again = False

    def on_event(event: Mapping[str, Any]) -> None:
        run, grace = event.get("run"), event.get("grace_s")
        with order.lock:
            if run in ids:
                order.asked.add(run)
        text = f"{run}  asked to stop"
        if not order.now and is_number(grace):
            text += f"; saving ({grace:g}s at most)"
        ctx.report.step(text)

    def ask(worker: Worker) -> list[Mapping[str, Any]]:
        nonlocal again
        with order.lock:
            again = host.name in order.sent
            order.sent.add(host.name)
        reply, _ = worker.call("cancel", ids=ids, now=order.now, on_event=on_event)
        rows = reply.get("results")
        if not isinstance(rows, list) or len(rows) != len(ids):
            raise WorkerError(f"{host.name}: the worker did not say what became of the runs")
        _, statuses = worker.call("runs", ids=ids)
        for body in statuses:
            seen(ctx, worker, body, ids)
        return rows

    unsure = OutcomeUnknown(f"{host.name}: the link broke")
    rows = retrying.act(ctx.report, connect, ask, unsure)
    found = {run: _report(ctx, host.name, run, row) for run, row in zip(ids, rows, strict=True)}
    for run, report in found.items():
        if again and report.outcome == states.CANCELLED:
            # asked for once more over a new link: it had ended because of us
            found[run] = replace(report, ended_before=False)
    return found


def _report(ctx: Context, host: str, run: str, row: Mapping[str, Any]) -> CancelReport:
    try:
        if row.get("unknown"):
            error = ctx.no_run(host, run)
            return CancelReport(
                run,
                host,
                None,
                False,
                error=error.message,
                advice=error.advice,
                status=error.status,
            )
        return CancelReport(
            run=run,
            host=host,
            outcome=row.get("outcome"),
            ended_before=bool(row.get("ended_before")),
            processes=int(row.get("processes") or 0),
            seconds=float(row.get("seconds") or 0.0),
            unread=bool(row.get("unread")),
            gpus=tuple(card for card in row.get("gpus") or [] if isinstance(card, dict)),
            left=tuple(int(pid) for pid in row.get("left") or []),
        )
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise WorkerError(f"{host}: what became of {run} cannot be read: {error}") from error
