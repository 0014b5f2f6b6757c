"""What cron does each time it comes by: see what is due, write it down, have it done.

What is due is written down before anything is done of it, so that a firing which was cut is known
and gone on with. Most looks find nothing to do; so that these cost little, what submits is only
loaded when it is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from runner import notify_file
from runner.schedule.definition import SKIPPED, Begun, Fired, Progress, Schedule, unmade
from runner.schedule.due import Due, find_due
from runner.schedule_files import Shelf

WAIT_S = 120.0
"""For whoever fires or changes it just now; two at once are one after the other."""


def come_by(shelf: Shelf, clock: Callable[[], float] = time.time) -> Progress:
    """Do what is due. Raises Conflict when another does it just now, IntegrityError, NotFound."""
    try:
        progress = _look(shelf, clock)
    finally:
        # whatever became of it, and not under the lock: a receiver may hang
        if notify_file.path_of().exists():
            from runner.app.telling import tell

            tell(shelf, clock)
    return progress


def _look(shelf: Shelf, clock: Callable[[], float]) -> Progress:
    with shelf.locked(wait_s=WAIT_S):
        schedule = shelf.read()
        os.environ.update(schedule.env)
        shelf.put_looked()
        progress = shelf.progress()
        if schedule.paused:
            return progress
        now = clock()
        due = find_due(
            schedule.expression,
            schedule.tz,
            missed=schedule.missed,
            handled=progress.handled,
            now=now,
        )
        if progress.begun is not None:
            from runner.app.firing import go_on

            last_look = due.fire is not None and not progress.begun.queued
            progress = go_on(shelf, schedule, progress.begun, clock, last_look=last_look)
        if due.fire or due.missed or due.handled < progress.handled:
            progress = taken_up(schedule, progress, due, now)
            shelf.put_progress(progress)
            begun = progress.begun
            if begun is not None and due.fire is not None and begun.local == due.fire.local:
                from runner.app.firing import go_on

                progress = go_on(shelf, schedule, begun, clock)
        return progress


def taken_up(schedule: Schedule, progress: Progress, due: Due, now: float) -> Progress:
    """What is due is written down before anything is done of it; one alone can wait in line."""
    ended: list[Fired] = []
    for firing in due.missed:
        text = "the machine was off or asleep"
        if firing is due.missed[0] and due.more:
            text += f", as for {due.more} before it"
        ended.append(unmade(schedule, firing, SKIPPED, "missed", text, now))
    begun, fire = progress.begun, due.fire
    if fire is not None and any(each.local == fire.local for each in progress.fired):
        fire = None  # the clock was put back far
    if fire is not None and begun is not None:
        text = f"that of {begun.local.replace('T', ' ')} still waits"
        ended.append(unmade(schedule, fire, SKIPPED, "overlap", text, now))
    elif fire is not None:
        begun = Begun(fire.local, fire.at, since=now, late=due.late)
    return replace(progress.with_fired(*ended), handled=due.handled, begun=begun)
