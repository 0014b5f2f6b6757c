"""Firings of schedules that made no run, as `ps` shows them: only this machine knows of them."""

from __future__ import annotations

from datetime import datetime

from runner import states
from runner.app.context import Context
from runner.app.results import Contact, RunOnHost
from runner.errors import IntegrityError, NotFound
from runner.schedule.definition import SUBMITTED, Fired, Schedule, host_of, job_of
from runner.schedule_files import read_all
from runner.wire import RunStatus

SHOWN_FOR_S = 7 * 86_400.0


def unsubmitted(
    ctx: Context, host: str | None, now: float, *, everyone: bool = False
) -> list[RunOnHost]:
    """Those of the last week (everyone: all, of every project), on one host or on all."""
    found = []
    for shelf, schedule in read_all(None if everyone else ctx.project.root):
        if host is not None and host_of(schedule) != host:
            continue
        try:
            fired = shelf.progress().fired
        except IntegrityError:
            continue  # `schedule list` says so
        found += [
            _shown(ctx, schedule, each)
            for each in fired
            if each.state != SUBMITTED and (everyone or each.told_at > now - SHOWN_FOR_S)
        ]
    return found


def never_submitted(ctx: Context, word: str) -> NotFound | None:
    """That this id is one of a firing that made no run; None where it is not."""
    for run in unsubmitted(ctx, None, 0.0):
        if run.id == word and run.status.cause is not None:
            text = run.status.cause["text"]
            return NotFound(
                f"{word} was never submitted: {run.status.outcome}, {text}", "runner schedule list"
            )
    return None


def _shown(ctx: Context, schedule: Schedule, fired: Fired) -> RunOnHost:
    host = host_of(schedule)
    mine = schedule.root == str(ctx.project.root)
    meant = datetime.fromtimestamp(fired.at, schedule.tz)
    text = f"{schedule.name} of {meant:%Y-%m-%d %H:%M}: {fired.cause}, {fired.text}"
    status = RunStatus(
        id=fired.ids[0],
        state=states.ENDED,
        outcome=fired.state,
        cause={"kind": fired.cause, "text": text, "schedule": schedule.name},
        job=job_of(schedule),
        project={"id": schedule.project, "name": ctx.project.name if mine else schedule.project},
        tags=[schedule.name],
        submitted_at=fired.told_at,
        ended_at=fired.told_at,
        argv=list(schedule.command or ()),
    )
    return RunOnHost(status, Contact(host, at=fired.told_at))
