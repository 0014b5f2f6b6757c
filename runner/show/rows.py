"""Runs in a line each: the table of `ps`, and the line a run ends with (pure)."""

from __future__ import annotations

import collections
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from runner import states
from runner.app.results import RunOnHost, SweepScore
from runner.metrics import metric_of
from runner.show.readings import (
    COLOURS,
    cause_text,
    elapsed_s,
    limit_left,
    share_done,
    short_cause,
    steps_total,
    stuck_note,
    time_left,
)
from runner.show.screen import Paint, escaped
from runner.show.units import ago, duration, moment, number, steps
from runner.wire import RunStatus

MOST_MEMBERS = 20
"""Of a sweep with more, only those that live or failed have lines of their own."""
_NEAR_S = 600.0
_NEAR_SHARE = 0.1
"""A time limit is near when so much of it is left, or less."""


def run_rows(
    runs: Sequence[RunOnHost],
    now: float,
    *,
    everyone: bool = False,
    scores: Mapping[str, SweepScore] | None = None,
) -> tuple[list[list[Any]], tuple[int, ...]]:
    """The table of `ps` and which of its columns hold numbers.

    A sweep's runs stand together under a line of their own, in the place of the first; `everyone`
    names each, and the projects. scores, of ended runs alone: what sweeps reached; of these only
    the runs that are not done have lines, and when each ended is told.
    """
    when = "TIME" if scores is None else "ENDED"
    head = ["RUN", "STATE", "HOST", "GPU", "STEPS", "", "RETURN", when, "NOTE"]
    if everyone:
        head.insert(1, "PROJECT")
    rows: list[list[Any]] = [head]
    for group in _groups(runs):
        added = (
            _group_rows(group, now, everyone)
            if scores is None
            else _ended_rows(group, now, everyone, scores)
        )
        if everyone:
            project = str(group[0].status.project.get("name", "-"))
            for row in added:
                row.insert(1, project)
        rows += added
    filled = [
        i
        for i in range(len(head))
        if head[i] in ("STATE", "NOTE") or any(row[i] for row in rows[1:])
    ]
    first_number = head.index("STEPS")
    right = tuple(filled.index(i) for i in range(first_number, first_number + 4) if i in filled)
    return [[row[i] for i in filled] for row in rows], right


def _groups(runs: Sequence[RunOnHost]) -> list[list[RunOnHost]]:
    """Runs alone, and those of a sweep together by their numbers."""
    groups: dict[tuple[str, str], list[RunOnHost]] = {}
    for run in runs:
        alone = ("", run.host + "/" + run.id)
        groups.setdefault((run.status.sweep, run.host) if run.status.sweep else alone, []).append(
            run
        )
    return [
        sorted(group, key=lambda run: (member_number(run) or 0, run.id))
        for group in groups.values()
    ]


def member_number(run: RunOnHost) -> int | None:
    """3 of `dqn-9x2mp.3`; None for a run of no sweep."""
    sweep, _, number = run.id.rpartition(".")
    if not sweep or sweep != run.status.sweep or not re.fullmatch(r"[0-9]{1,6}", number):
        return None
    return int(number)


def _group_rows(group: Sequence[RunOnHost], now: float, everyone: bool) -> list[list[Any]]:
    sweep = group[0].status.sweep
    if not sweep:
        return [_row(run, now) for run in group]
    # ended runs that are not listed, or are gone, count as well
    total = max(len(group), *(member_number(run) or 0 for run in group))
    ended = total - sum(run.status.state != states.ENDED for run in group)
    names = {run.status.name for run in group}
    name = (names.pop() or "") if len(names) == 1 else None
    line = [sweep, f"{ended} of {total}", group[0].host, "", "", "", "", "", name or ""]
    shown = list(group) if everyone else shortened(group)
    differs = differing(group)
    rows = [
        line,
        *(_row(run, now, member=True, named=name is None, differs=differs) for run in shown),
    ]
    left = [run for run in group if run not in shown]
    if left:
        words = collections.Counter(states.shown(r.status.state, r.status.outcome) for r in left)
        note = ", ".join(f"{count} {word}" for word, count in words.items())
        rows.append(["  …", "", "", "", "", "", "", "", note])
    return rows


def _ended_rows(
    group: Sequence[RunOnHost], now: float, everyone: bool, scores: Mapping[str, SweepScore]
) -> list[list[Any]]:
    """A run with when it ended; of a sweep what it reached, and what is not done."""
    sweep = group[0].status.sweep
    shown = [r for r in group if everyone or not sweep or r.status.outcome != states.DONE]
    rows = _group_rows(group, now, True) if sweep else []
    line = rows[:1]
    if line:
        ended = max((run.status.ended_at or 0.0 for run in group), default=0.0)
        name = str(line[0][-1])
        line[0][-2:] = [
            moment(ended, now),
            "; ".join(filter(None, [name, _reached(sweep, scores, now)])),
        ]
    named = not sweep or len({run.status.name for run in group}) > 1
    differs = differing(group) if sweep else ()
    for run in shown:
        row = _row(run, now, member=bool(sweep), named=named, differs=differs)
        row[-2] = moment(run.status.ended_at, now)
        line.append(row)
    return line


def _reached(sweep: str | None, scores: Mapping[str, SweepScore], now: float) -> str:
    """`IQM 487 (494 on Mon)`."""
    score = scores.get(sweep or "")
    if score is None:
        return ""
    before = score.before
    was = f" ({number(before.iqm)} {_on(before.ended_at, now)})" if before else ""
    return f"IQM {number(score.iqm)}{was}"


def _on(at: float, now: float) -> str:
    """When it was reached before: `earlier today`, `on Mon`, `on 2026-11-03`."""
    day = moment(at, now).split()[0]
    return "earlier today" if ":" in day else f"on {day}"


def differing(group: Sequence[RunOnHost]) -> tuple[str, ...]:
    """Names of the parameters, and `image`, that are not the same in all runs of a sweep."""
    tables = [_chosen(run.status) for run in group]
    names = dict.fromkeys(name for table in tables for name in table)
    return tuple(name for name in names if len({repr(table.get(name)) for table in tables}) > 1)


def _chosen(status: RunStatus) -> dict[str, Any]:
    return {"image": status.image, **status.params}


def shortened(group: Sequence[RunOnHost]) -> list[RunOnHost]:
    """The runs of a sweep that have lines of their own."""
    if len(group) <= MOST_MEMBERS:
        return list(group)
    told = (states.FAILED, states.SKIPPED)
    return [r for r in group if r.status.state in states.LIVE or r.status.outcome in told]


def _row(
    run: RunOnHost,
    now: float,
    *,
    member: bool = False,
    named: bool = True,
    differs: Sequence[str] = (),
) -> list[Any]:
    status = run.status
    word = states.shown(status.state, status.outcome)
    share = share_done(status)
    value = metric_of(status.metrics, status.metric)
    number_of = member_number(run) if member else None
    label = run.id if not member else "  " + (run.id if number_of is None else f".{number_of}")
    return [
        label,
        (word, COLOURS.get(word)),
        run.host,
        ",".join(str(gpu.get("index", "?")) for gpu in status.gpus) if holds_gpus(status) else "",
        steps_text(status),
        "" if share is None or status.outcome == states.DONE else f"{share:.0%}",
        "" if value is None else number(value[1]),
        duration(elapsed_s(run, now)),
        note(run, now, member=member, named=named, differs=differs),
    ]


def note(
    run: RunOnHost,
    now: float,
    *,
    member: bool = False,
    named: bool = True,
    differs: Sequence[str] = (),
    with_left: bool = True,
) -> str:
    """What is worth knowing of a run beside its figures.

    member: of a sweep, whose runs differ in `differs`; named: its name is not said elsewhere;
    with_left: nor is the time it still needs.
    """
    return "; ".join([*_swept(run.status, differs, member), *_notes(run, now, named, with_left)])


def _swept(status: RunStatus, differs: Sequence[str], member: bool) -> list[str]:
    """What tells a run of a sweep from the others: `seed=1 lr=0.001`, or its command."""
    chosen = _chosen(status)
    words = [f"{name}={chosen[name]}" for name in differs if chosen.get(name) is not None]
    command = [shlex.join(status.argv)] if member and not status.job and status.argv else []
    return [*([" ".join(words)] if words else []), *command]


def holds_gpus(status: RunStatus) -> bool:
    return status.state in states.LIVE


def steps_text(status: RunStatus) -> str:
    """`31k/50k`; nothing where it told no step."""
    if status.step is None:
        return ""
    total = steps_total(status)
    return steps(status.step) + (f"/{steps(total)}" if total else "")


def _notes(run: RunOnHost, now: float, named: bool, with_left: bool) -> list[str]:
    status = run.status
    command = [shlex.join(status.argv)] if status.argv and not status.job else []
    notes = ([status.name] if status.name else command) if named else []
    if run.contact.state != "ok":
        seen = run.contact.at
        notes.append(f"seen {ago(seen, now)}" if seen is not None else "not seen")
    if status.state == states.ENDED:
        notes += [short_cause(status), "pulled" if run.pulled else ""]
        return [note for note in notes if note]
    notes += stuck_note(run, now)
    if status.state == states.QUEUED:
        notes += _queue_notes(status)
    if status.priority:
        notes.append(f"priority {status.priority}")
    attempt = status.attempt + (status.state == states.QUEUED and status.attempt > 0)
    if attempt > 1:
        notes.append(f"attempt {attempt}")
    left = time_left(status) if with_left else None
    limit = limit_left(run, now)
    if limit is not None and limit <= max(_NEAR_S, _NEAR_SHARE * (status.time_limit_s or 0)):
        notes.append(f"time limit in {duration(limit)}")
    return notes + ([f"{duration(left)} left"] if left is not None and left >= 1 else [])


def _queue_notes(status: RunStatus) -> list[str]:
    if (status.waits or {}).get("kind") == "drained":
        return ["drained"]
    if status.reason:
        return [status.reason]
    if status.position is None:
        return []
    return ["next" if status.position == 1 else f"{status.position - 1} before it"]


def ending_line(run: RunOnHost, paint: Paint | None = None) -> str:
    """`dqn-7k3fa  FAILED  exit 1, after 3m`."""
    status = run.status
    word = states.shown(status.state, status.outcome)
    facts = [cause_text(status)] if cause_text(status) else []
    if status.started_at is not None and status.ended_at is not None:
        facts.append(f"after {duration(elapsed_s(run, status.ended_at))}")
    shown = (paint or Paint())(escaped(word), COLOURS.get(word))
    return f"{escaped(run.id)}  {shown}  {escaped(', '.join(facts))}".rstrip()
