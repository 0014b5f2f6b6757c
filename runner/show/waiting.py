"""What a queued run waits for, from `RunStatus.waits` and the runs that it names (pure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from runner import states
from runner.app.results import RunOnHost
from runner.show.advice import Reason, advise, gc, listed, said, time_to_go
from runner.show.readings import cause_of
from runner.show.units import duration, memory, moment, plural, size
from runner.wire import RunStatus, is_number

if TYPE_CHECKING:
    from runner.app.reports import WhyFacts


def why_waiting(run: RunOnHost, facts: WhyFacts, clock: float) -> Reason:
    """The reason of a queued run. clock: the worker's."""
    waits = run.status.waits or {}
    kind = str(waits.get("kind") or "queued")
    make = {
        "order": _order,
        "gpus": _gpus,
        "slot": _slot,
        "after": _after,
        "drained": _drained,
        "disk": _disk,
        "pause": _pause,
        "no-worker": _no_worker,
    }.get(kind)
    if make is not None:
        return make(run, waits, facts, clock)
    place = run.status.position
    text = said(run.status.reason or "waits for its turn")
    return Reason(kind, text + (f"; place {place} in the queue" if place else ""))


def with_last_end(status: RunStatus, reason: Reason) -> Reason:
    """The same, with what ended its last attempt."""
    cause = cause_of(status)
    if not cause or not status.attempt or reason.kind == "pause":
        return reason
    text = f"{reason.text}; attempt {status.attempt} ended: {said(cause)}"
    return dataclasses.replace(reason, text=text)


def _order(run: RunOnHost, waits: Mapping[str, Any], facts: WhyFacts, clock: float) -> Reason:
    behind = said(waits.get("behind"))
    place = run.status.position
    text = f"waits behind {behind} on {run.host}"
    text += f", place {place} in the queue" if place else ""
    queued = (one for one in facts.others.values() if one.state == states.QUEUED)
    first = next((one for one in queued if one.position == 1), None)
    if first is None or (first.waits or {}).get("kind") == "order":
        return Reason("order", text, advice=advise("", "why", behind, names=[behind]))
    held_up = why_waiting(RunOnHost(first, run.contact), facts, clock)
    text += f"; {said(first.id)}, the first there, {held_up.text}"
    return Reason("order", text, advice=held_up.advice)


def _gpus(run: RunOnHost, waits: Mapping[str, Any], facts: WhyFacts, clock: float) -> Reason:
    want: Any = waits.get("want")
    text = f"waits for {plural(want, 'GPU') if is_number(want) else 'a GPU'} on {run.host}"
    if waits.get("query_failed"):
        failed = said(waits["query_failed"])
        return Reason("gpus", f"{text}: {failed}")
    cards: dict[str, list[str]] = {}
    for row in _rows(waits.get("holders")):
        holder = str(row.get("run") or "")
        name = f"{holder}'s{time_to_go(facts.others.get(holder), clock)}" if holder else ""
        if not holder:
            name = f"another worker's ({said(row['worker'])})" if row.get("worker") else "leased"
        cards.setdefault(said(name), []).append(_index(row))
    parts = [
        f"{','.join(indices)} {'is' if len(indices) == 1 else 'are'} {name}"
        for name, indices in cards.items()
    ]
    parts += [_stranger(row, clock) for row in _rows(waits.get("strangers"))]
    return Reason("gpus", text + (": " + ", ".join(parts) if parts else ""))


def _rows(value: Any) -> list[Mapping[str, Any]]:
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def _index(row: Mapping[str, Any]) -> str:
    return str(row.get("index")) if is_number(row.get("index")) else "?"


def _stranger(row: Mapping[str, Any], clock: float) -> str:
    """`1 is used by bob's python (pid 4127, 9.4 GiB) since 14:02`."""
    program = said(row["program"]) if row.get("program") else ""
    who = f"{said(row['user'])}'s {program or 'process'}" if row.get("user") else program
    if row.get("left"):
        return f"{_index(row)} was used by others until just now; given away after 5s without them"
    marks = [f"pid {row['pid']}"] if is_number(row.get("pid")) else []
    marks += [memory(row["used_mib"])] if is_number(row.get("used_mib")) else []
    text = f"{_index(row)} is used by {who or 'somebody outside the runner'}"
    text += f" ({', '.join(marks)})" if marks else ""
    since: Any = row.get("since_at")
    return text + (f" since {moment(since, clock)}" if is_number(since) else "")


def _no_worker(run: RunOnHost, waits: Mapping[str, Any], facts: WhyFacts, clock: float) -> Reason:
    image = str(waits.get("image") or "-")
    text = f"waits for a worker of image {said(image)}, which {run.host} has not"
    words = ["provision", f"host={run.host}", f"image={image}"]
    return Reason("no-worker", text, advice=advise("", *words, names=[image]))


def _slot(run: RunOnHost, waits: Mapping[str, Any], facts: WhyFacts, clock: float) -> Reason:
    text = f"waits for a slot on {run.host}"
    found = waits.get("holders")
    holders = []
    for row in found if isinstance(found, list) else []:
        name = said(row.get("run") if isinstance(row, Mapping) else row)
        holders.append(name + time_to_go(facts.others.get(name), clock))
    return Reason("slot", f"{text}, held by {listed(holders)}" if holders else text)


def _after(run: RunOnHost, waits: Mapping[str, Any], facts: WhyFacts, clock: float) -> Reason:
    found = waits.get("runs")
    names = [said(name) for name in (found if isinstance(found, list) else run.status.after)]
    parts = []
    for name in names:
        other = facts.others.get(name)
        word = "" if other is None else f" ({states.shown(other.state, other.outcome)})"
        parts.append(f"{name}{word}{time_to_go(other, clock)}")
    advice = advise("", "why", names[0], names=names[:1]) if names else ()
    return Reason("after", f"waits for {listed(parts) or 'others'} to end done", advice=advice)


def _drained(run: RunOnHost, waits: Mapping[str, Any], facts: WhyFacts, clock: float) -> Reason:
    since: Any = waits.get("since_at")
    when = f" since {moment(since, clock)}" if is_number(since) else ""
    text = f"waits: {run.host} is drained{when}, nothing new starts there"
    return Reason("drained", text, advice=advise("", "undrain", f"host={run.host}"))


def _disk(run: RunOnHost, waits: Mapping[str, Any], facts: WhyFacts, clock: float) -> Reason:
    free, reserve = waits.get("free_bytes"), waits.get("reserve_bytes")
    text = f"waits for room on the disk of {run.host}"
    if is_number(free) and is_number(reserve):
        text += f": {size(free)} free, {size(reserve)} are kept in reserve"
    return Reason("disk", text, advice=gc(run))


def _pause(run: RunOnHost, waits: Mapping[str, Any], facts: WhyFacts, clock: float) -> Reason:
    until: Any = waits.get("until_at")
    soon = f" in {duration(max(0.0, until - clock))}" if is_number(until) else " soon"
    text = f"starts again{soon}, as attempt {run.status.attempt + 1}"
    why = waits.get("why") or cause_of(run.status)
    left = run.status.restarts_left
    text += f", after: {said(why)}" if why else ""
    return Reason("pause", text + (f"; {plural(left, 'restart')} left" if left else ""))
