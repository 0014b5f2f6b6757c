"""Cancel: returns when nothing of a run is left and its GPU memory is back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner import states
from runner.app.context import Context, on_hosts, seen, silent
from runner.app.results import CancelReport, Contact
from runner.app.runs import RunRef, by_host, list_runs
from runner.errors import RunnerError, WorkerError
from runner.model import Host
from runner.show.units import plural
from runner.wire import is_number


def cancel(ctx: Context, refs: Sequence[RunRef], now: bool = False) -> list[CancelReport]:
    """Stop these runs: TERM, their grace, KILL (`now`: KILL at once). One report each.

    A host that does not answer is reported with `error`: its runs were NOT stopped.
    """
    groups = by_host(ctx, refs)
    wanted = {host.name: ids for host, ids in groups}
    answers = on_hosts([host for host, _ in groups], lambda host: _cancel(ctx, host, wanted, now))
    ctx.report.done()
    reports: dict[str, CancelReport] = {}
    for host, found, error in answers:
        for run in wanted[host.name]:
            if found is not None:
                reports[run] = found[run]
            else:
                reports[run] = _unreached(host, run, error)
    return [reports[ref.id] for ref in refs]


def cancel_all(
    ctx: Context, host: str | None = None, now: bool = False
) -> tuple[list[CancelReport], list[Contact]]:
    """Stop every run of this project that has not ended, on all hosts or on one.

    How many there are is said before. A host that does not answer is reported with `error` under
    each run that was last seen alive there; one where none was is returned beside the reports.
    """
    listing = list_runs(ctx, host)
    left = [run for run in listing.runs if run.status.state != states.ENDED]
    silent_hosts = {contact.host: contact for contact in listing.hosts if contact.state != "ok"}
    refs = [RunRef(run.id, run.host) for run in left if run.host not in silent_hosts]
    if refs:
        places = ", ".join(sorted({ref.host for ref in refs}))
        ctx.report.note(f"stopping {plural(len(refs), 'run')} of this project on {places}")
    reports = cancel(ctx, refs, now) if refs else []
    for run in left:
        contact = silent_hosts.get(run.host)
        if contact is not None:
            text = contact.error or f"{run.host}: no answer"
            reports.append(
                CancelReport(run.id, run.host, None, False, error=text, contact=contact.state)
            )
    unseen = [
        contact
        for name, contact in silent_hosts.items()
        if name not in {run.host for run in left}
        # where no worker is and none of ours was, there is nothing to stop
        and (contact.state != "no-worker" or host is not None)
    ]
    if not reports and not unseen:
        ctx.report.note("nothing to stop: every run of this project has ended")
    return reports, unseen


def _unreached(host: Host, run: str, error: RunnerError | None) -> CancelReport:
    """What is said where nothing was stopped: the way out too, where the error leads to it."""
    text = str(error)
    if error is not None and text.endswith(":"):
        text = " ".join([text, *error.advice])
    state = silent(host, error).state
    return CancelReport(run, host.name, None, False, error=text, contact=state)


def _cancel(
    ctx: Context, host: Host, wanted: Mapping[str, list[str]], now: bool
) -> dict[str, CancelReport]:
    ids = wanted[host.name]

    def on_event(event: Mapping[str, Any]) -> None:
        grace = event.get("grace_s")
        text = f"{event.get('run')}  asked to stop"
        if not now and is_number(grace):
            text += f"; saving ({grace:g}s at most)"
        ctx.report.step(text)

    with ctx.connect(host) as worker:
        reply, _ = worker.call("cancel", ids=ids, now=now, on_event=on_event)
        rows = reply.get("results")
        if not isinstance(rows, list) or len(rows) != len(ids):
            raise WorkerError(f"{host.name}: the worker did not say what became of the runs")
        _, statuses = worker.call("runs", ids=ids)
        for body in statuses:
            seen(ctx, worker, body)
    return {run: _report(host.name, run, row) for run, row in zip(ids, rows, strict=True)}


def _report(host: str, run: str, row: Mapping[str, Any]) -> CancelReport:
    try:
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
