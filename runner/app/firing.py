"""One firing: its runs are submitted, or it is written down why not.

Ids and seeds are drawn from the schedule and the local time, and the host is asked for these ids
first. So a firing that was cut, or comes a second time, finds its runs there and is the same one.
What could not be submitted is told of in `ps`; a silent host is asked again for an hour, or until
the next firing is due.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner import states
from runner.app import retrying, runs
from runner.app.context import Context, open_context, seen
from runner.app.schedule_code import code_context, put_back
from runner.app.submit import image_of, submit
from runner.errors import (
    OutcomeUnknown,
    ProvisionError,
    RunnerError,
    SpecError,
    Unreachable,
    WorkerError,
)
from runner.manifest import Snapshot
from runner.model import Host
from runner.schedule.definition import (
    FAILED,
    SKIPPED,
    SUBMITTED,
    TRY_AGAIN_FOR_S,
    Begun,
    Fired,
    Progress,
    Schedule,
    expected_id,
    seed_of,
    unmade,
)
from runner.schedule_files import Shelf
from runner.spec import SubmitRequest, parse_submit

_COMES_BACK = (Unreachable, OutcomeUnknown, ProvisionError)
"""A host that is silent, or whose Docker or container does not run (yet: it may be booting)."""
_MOST_SALTS = 4
"""Ids of five characters may be another run's already; then the next is drawn."""


class Log:
    """A report that goes into the schedule's log."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def note(self, text: str) -> None:
        self._shelf.say(text)

    def step(self, text: str) -> None:
        pass

    def trouble(self, text: str) -> None:
        self._shelf.say(text)

    def done(self) -> None:
        pass

    def warn(self, text: str) -> None:
        self._shelf.say(text)


def go_on(
    shelf: Shelf,
    schedule: Schedule,
    begun: Begun,
    clock: Callable[[], float],
    *,
    last_look: bool = False,
) -> Progress:
    """Submit what was begun; what becomes of it is written down, whatever that is.

    last_look: the next firing is due. It counts if it was submitted, and is given up if not.
    """
    log = Log(shelf)
    patient = False
    try:
        return _submit_begun(shelf, schedule, begun, log, clock, last_look=last_look)
    except _COMES_BACK as error:
        text = _one_line(error)
        patient = not last_look and clock() - begun.since < TRY_AGAIN_FOR_S
    except RunnerError as error:
        text = _one_line(error)
    except Exception as error:
        text = (
            f"a bug of the runner's ({type(error).__name__}); its traceback is in ~/.cache/runner"
        )
        log.warn(f"{begun.local}: {text}")
        _end(shelf, schedule, begun, FAILED, "not-submitted", text, clock())
        raise
    log.warn(f"{begun.local}: {text}")
    if patient:
        return shelf.change(lambda now: replace(now, begun=replace(begun, waits=text)))
    return _end(shelf, schedule, begun, FAILED, "not-submitted", text, clock())


def _submit_begun(
    shelf: Shelf,
    schedule: Schedule,
    begun: Begun,
    log: Log,
    clock: Callable[[], float],
    *,
    last_look: bool,
) -> Progress:
    ctx = context_of(schedule, log)
    request = request_of(schedule, begun.local)
    host = ctx.host(request.host)
    salt, there = _find_made(ctx, host, schedule, request, begun.local)
    if there:
        log.note(f"{begun.local}: was submitted already: {' '.join(there)}")
        return _made(shelf, begun, there, clock())
    if last_look:
        text = f"{begun.waits or 'cut before it was submitted'}; given up when the next was due"
        return _end(shelf, schedule, begun, FAILED, "not-submitted", text, clock())
    live = still_live(ctx, shelf, host, image_of(request, host))
    if live and schedule.overlap == "skip":
        text = f"{live[0]} had not ended"
        log.note(f"{begun.local}: skipped, {text}")
        return _end(shelf, schedule, begun, SKIPPED, "overlap", text, clock())
    if live and schedule.overlap == "queue":
        waiting = replace(begun, queued=True, waits=f"for {live[0]}")
        return shelf.change(lambda now: replace(now, begun=waiting))
    if live:
        _cancel(ctx, live, host, log)
    put_back(shelf)
    code, frozen = code_context(ctx, schedule, shelf)

    def announce(ids: list[str]) -> None:
        _made(shelf, begun, ids, clock())

    draw = random.Random(seed_of(schedule, begun.local, salt))
    ids = submit(code, request, announce, draw, many=True, frozen=frozen, unattended=True)
    log.note(f"{begun.local}: {' '.join(ids)}")
    return shelf.progress()


def context_of(schedule: Schedule, report: Any) -> Context:
    """The project, as it is where the schedule was added; this process goes there."""
    os.environ.update(schedule.env)
    for folder in (schedule.cwd, schedule.root):
        with contextlib.suppress(OSError):
            os.chdir(folder)
            break
    else:
        raise SpecError(f"{schedule.root} is gone, the project of schedule {schedule.name}")
    return open_context(report, Path(schedule.root))


def request_of(schedule: Schedule, local: str) -> SubmitRequest:
    """What is submitted; its words are those of one firing alone, for an intent that is left open.

    Its runs have the schedule's name as a tag.
    """
    request = parse_submit(schedule.words, schedule.command, is_program=lambda word: True)
    return replace(
        request,
        tags=tuple(dict.fromkeys((*request.tags, schedule.name))),
        words=(*request.words, f"@schedule={schedule.key} {local}"),
    )


def _find_made(
    ctx: Context, host: Host, schedule: Schedule, request: SubmitRequest, local: str
) -> tuple[int, list[str]]:
    """(which id this firing has, its runs as far as the host has them)."""
    for salt in range(_MOST_SALTS):
        name = expected_id(schedule, request.job, local, salt)
        found = _runs_of(ctx, host, request, name)
        if not found or all(schedule.name in run.status.tags for run in found):
            return salt, [run.id for run in found]
    raise WorkerError(f"{host.name}: has other runs with the ids of this firing")


def _runs_of(ctx: Context, host: Host, request: SubmitRequest, name: str) -> list[Any]:
    def ask(worker: Any) -> list[Any]:
        wanted = [name, f"{name}.1"]
        _, rows = worker.call("runs", ids=wanted)
        found = [seen(ctx, worker, row, wanted) for row in rows]
        if not any(run.id == f"{name}.1" for run in found):
            return found
        _, rows = worker.call("runs", project=ctx.project.id, all=True, sweep=name)
        return [seen(ctx, worker, row) for row in rows]

    image = image_of(request, host)
    return retrying.look(ctx.report, functools.partial(ctx.connect, host, image=image), ask)


def still_live(ctx: Context, shelf: Shelf, host: Host, image: str | None) -> list[str]:
    """The runs of earlier firings that have not ended; those that have are remembered.

    Raises Unreachable. A run that is not there any more has ended.
    """
    earlier = shelf.progress().live
    asked = [run for fired in earlier for run in fired.ids if not _is_known_ended(ctx, run)]

    def ask(worker: Any) -> set[str]:
        _, rows = worker.call("runs", ids=asked)
        found = [seen(ctx, worker, row, asked) for row in rows]
        return {run.id for run in found if run.status.state != states.ENDED}

    connect = functools.partial(ctx.connect, host, image=image)
    live = retrying.look(ctx.report, connect, ask) if asked else set()
    ended = [replace(fired, ended=True) for fired in earlier if not live.intersection(fired.ids)]
    if ended:
        shelf.change(lambda now: now.with_fired(*ended))
    return [run for run in asked if run in live]


def _is_known_ended(ctx: Context, run: str) -> bool:
    record = ctx.store.record(run)
    return record is not None and record.run.get("state") == states.ENDED


def _cancel(ctx: Context, live: Sequence[str], host: Host, log: Log) -> None:
    from runner.app import cancel

    refs = [runs.RunRef(run, host.name) for run in live]
    for report in cancel.cancel(ctx, refs):
        if report.error is not None:
            raise WorkerError(f"{report.run} could not be cancelled: {report.error}")
        log.note(f"{report.run} cancelled, as overlap=cancel says")


def _made(shelf: Shelf, begun: Begun, ids: Sequence[str], now: float) -> Progress:
    fired = Fired(begun.local, begun.at, SUBMITTED, ids=tuple(ids), told_at=now, late=begun.late)
    return shelf.change(lambda old: replace(old.with_fired(fired), begun=None))


def _end(
    shelf: Shelf, schedule: Schedule, begun: Begun, state: str, cause: str, text: str, now: float
) -> Progress:
    fired = unmade(schedule, begun.firing, state, cause, text, now)
    return shelf.change(lambda old: replace(old.with_fired(fired), begun=None))


def _one_line(error: RunnerError) -> str:
    lines = [error.message, *(line.strip() for line in error.advice)]
    return "; ".join(lines).replace(":; ", ": ")[:500]


def try_out(shelf: Shelf) -> None:
    """Everything of a firing but the submit, for `add`. Raises what a firing would meet."""
    from runner.app.asked import check_snapshot, resolve_request
    from runner.app.submit import read_code

    schedule = shelf.read()
    ctx = context_of(schedule, Log(shelf))
    request = request_of(schedule, "try")
    code, frozen = code_context(ctx, schedule, shelf)
    asked = resolve_request(code, request, many=True)
    snapshot: Snapshot = frozen or read_code(code)
    check_snapshot(code, request, asked.plan, snapshot)
    _runs_of(ctx, asked.host, request, expected_id(schedule, request.job, "try"))
