"""Schedules as people and programs see them (pure)."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from runner import states
from runner.schedule.definition import (
    FAILED,
    FIXED,
    SUBMITTED,
    TRY_AGAIN_FOR_S,
    Fired,
    Schedule,
    host_of,
)
from runner.schedule.due import LATE_S
from runner.schedule.instants import Firing, firings
from runner.show.units import DAY_S, duration, moment, rfc3339

if TYPE_CHECKING:
    from runner.app.schedule import Seen
    from runner.schedule_files import Shelf

QUIET_S = 7200.0
"""Cron comes by at least each hour; twice that without it is worth a word."""


def schedule_rows(found: Sequence[Seen], now: float) -> list[list[Any]]:
    """The table of `schedule list`."""
    rows: list[list[Any]] = [["NAME", "WHEN", "HOST", "NEXT", "LAST"]]
    for each in found:
        schedule = each.schedule
        rows.append(
            [
                schedule.name,
                f"{schedule.cron}  {schedule.zone}",
                host_of(schedule),
                "paused" if schedule.paused else _next(each, now),
                _last(each, now),
            ]
        )
    return rows


def _next(each: Seen, now: float) -> str:
    if not each.fires:
        return "does not fire"
    return _when(each.schedule, each.next.at, now) if each.next is not None else "-"


def _when(schedule: Schedule, at: float, now: float) -> str:
    """`02:30 (9h)` today or tomorrow, then `Fri 22:00`, then `2027-02-01`: in its own zone."""
    then = datetime.fromtimestamp(at, schedule.tz)
    if 0 <= at - now < DAY_S:
        return f"{then:%H:%M} ({duration(at - now)})"
    return f"{then:%a %H:%M}" if abs(at - now) < 6 * DAY_S else f"{then:%Y-%m-%d}"


def _last(each: Seen, now: float) -> str:
    if each.progress is None:
        return "its record is damaged"
    if each.progress.begun is not None:
        begun = each.progress.begun
        return f"waits {begun.waits}" if begun.queued else f"tries again until {_until(each, now)}"
    if not each.progress.fired:
        return "-"
    last = max(each.progress.fired, key=lambda fired: fired.told_at)
    if last.state != SUBMITTED:
        return f"{last.state}: {last.cause}, {moment(last.at, now)}"
    counts = collections.Counter(
        state.upper() if state in states.OUTCOMES else "submitted" for state in each.states
    )
    words = ", ".join(f"{count} {word}" for word, count in counts.items()) or "submitted"
    when = f"asleep; ran {moment(last.told_at, now)}" if last.late else moment(last.at, now)
    return f"{words}, {when}"


def _until(each: Seen, now: float) -> str:
    begun = each.progress.begun if each.progress is not None else None
    assert begun is not None
    return moment(begun.since + TRY_AGAIN_FOR_S, now)


def _unmade(each: Seen, now: float) -> list[str]:
    """That its last firing made no run yet, or none at all, and why."""
    name, progress = each.schedule.name, each.progress
    if progress is None:
        return []
    begun = progress.begun
    if begun is not None:
        if begun.queued or not begun.waits:
            return []
        when = moment(begun.at, now)
        until = _until(each, now)
        return [f"{name} of {when} is not submitted yet, tried again until {until}: {begun.waits}"]
    last = max(progress.fired, key=lambda fired: fired.told_at, default=None)
    if last is not None and last.state == FAILED:
        return [f"{name} of {moment(last.at, now)} made no run: {last.text}"]
    due = next(firings(each.schedule.expression, each.schedule.tz, progress.handled))
    if each.looked is not None and due.at + LATE_S < each.looked:
        why = f": {each.said_last}" if each.said_last else ""
        return [f"{name} was due {moment(due.at, now)}, and nothing came of it{why}"]
    return []


def advice(found: Sequence[Seen], now: float, *, has_cron: bool) -> list[str]:
    """What whoever keeps them should know, a text each."""
    out = []
    if not has_cron and any(not each.schedule.paused for each in found):
        out.append("no cron runs here now: no schedule fires until one does")
    for each in found:
        schedule = each.schedule
        name = schedule.name
        if each.progress is None:
            out.append(f"{name}: its record is damaged\n  runner schedule remove {name}")
        if schedule.paused:
            continue
        if not each.fires:
            text = f"{name} has no line in your crontab any more and never fires"
            out.append(f"{text}\n  runner schedule update {name}")
        elif (each.looked or schedule.code_at) < now - QUIET_S:
            since = moment(each.looked, now) if each.looked else "it was added"
            out.append(f"{name}: cron did not come by since {since}; does it run?")
        out += _unmade(each, now)
    return out


def lost(keys: Sequence[str], stranded: Sequence[tuple[Shelf, Schedule]]) -> list[str]:
    """What fires for nothing: lines without a schedule, schedules without a project."""
    lines = [(key, f"your crontab has a line of {key}, which is no schedule") for key in keys]
    for shelf, schedule in stranded:
        told = f"{schedule.name} is of a project that is not in {schedule.root} any more"
        lines.append((shelf.key, told))
    return [f"{told}; take it away:\n  runner schedule remove {key}" for key, told in lines]


def notes(found: Sequence[Seen], now: float) -> list[str]:
    """What may be of interest."""
    return [
        f"{each.schedule.name} trains code of {moment(each.schedule.code_at, now)}; your tree"
        f" differs in {each.changed} file{'' if each.changed == 1 else 's'}; to train it:\n"
        f"  runner schedule update {each.schedule.name}"
        for each in found
        if each.schedule.code == FIXED and each.changed
    ]


def firing_lines(schedule: Schedule, found: Sequence[Firing]) -> list[str]:
    """`2027-03-27 02:30 +01:00`, a line each, with what the clocks do."""
    return [
        f"{_wall(schedule, each)} {_offset(schedule, each)}"
        + (f"   {each.note}" if each.note else "")
        for each in found
    ]


def next_document(schedule: Schedule, found: Sequence[Firing]) -> dict[str, Any]:
    """What `schedule next --json` prints."""
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "tz": schedule.zone,
        "next": [
            {
                "at": rfc3339(each.at),
                "local": _wall(schedule, each),
                "offset": _offset(schedule, each),
                "meant": each.local,
                "note": each.note or None,
            }
            for each in found
        ],
    }


def list_document(found: Sequence[Seen]) -> dict[str, Any]:
    """What `schedule list --json` prints; `env.` values of words are left out."""
    rows = []
    for each in found:
        schedule = each.schedule
        progress = each.progress
        rows.append(
            {
                "name": schedule.name,
                "key": schedule.key,
                "cron": schedule.cron,
                "tz": schedule.zone,
                "host": host_of(schedule),
                "overlap": schedule.overlap,
                "missed": schedule.missed,
                "code": schedule.code,
                "code_at": rfc3339(schedule.code_at),
                "changed_files": each.changed,
                "paused": schedule.paused,
                "fires": each.fires,
                "looked_at": rfc3339(each.looked),
                "next_at": rfc3339(each.next.at) if each.next is not None else None,
                "waits": progress.begun.waits if progress and progress.begun else None,
                "firings": [fired_document(one) for one in (progress.fired if progress else ())],
            }
        )
    return {"schedules": rows}


def fired_document(fired: Fired) -> dict[str, Any]:
    """One firing and what became of it."""
    return {
        "local": fired.local,
        "at": rfc3339(fired.at),
        "state": fired.state,
        "runs": list(fired.ids) if fired.state == SUBMITTED else [],
        "cause": fired.cause,
        "text": fired.text or None,
        "told_at": rfc3339(fired.told_at),
        "late": fired.late,
    }


def _wall(schedule: Schedule, firing: Firing) -> str:
    return f"{datetime.fromtimestamp(firing.at, schedule.tz):%Y-%m-%d %H:%M}"


def _offset(schedule: Schedule, firing: Firing) -> str:
    text = f"{datetime.fromtimestamp(firing.at, schedule.tz):%z}"
    return f"{text[:3]}:{text[3:5]}"
