"""What is told of a run or a host, in words: pure.

    ppo-c41hd FAILED on gpu2 at 03:02 after 2h11m: no disk left
    step 1.4M of 10M, return 912; last checkpoint step-1400000
    runner why ppo-c41hd

Of what the operator typed only names and the number of steps stand in it; parameters and argv may
be secrets. What a job said is on one line, its control characters written out.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, Dict, List, Optional, Sequence, Tuple

import causes
from plain import is_number

from runner import messages
from runner.states import OUTCOMES

Table = Dict[str, Any]
_RETURNS = ("eval/return", "reward", "charts/episodic_return", "rollout/ep_rew_mean")


def ended(
    spec: Table,
    state: Table,
    *,
    ident: str,
    host: str,
    zone: Optional[str] = None,
    checkpoint: Optional[str] = None,
) -> Table:
    """The message of a run's end. state: as it ended; zone: in which times are told."""
    outcome = str(state.get("outcome"))
    at = float(state.get("ended_at") or 0.0)
    cause = state.get("cause") or {}
    ran_s = float(state.get("ran_s") or 0.0)
    title = "%s %s on %s" % (spec["id"], outcome.upper(), host)
    first = "%s at %s" % (title, clock(at, zone))
    if ran_s >= 1:
        first += " after %s" % causes.span(ran_s)
    if cause.get("text") and outcome != "cancelled":
        first += ": %s" % messages.shown(cause["text"])
    reached = _reached(spec, state.get("final") or {})
    if checkpoint:
        reached += ("; " if reached else "") + "last checkpoint %s" % messages.shown(checkpoint, 80)
    command = "why" if outcome in ("failed", "skipped") else "status"
    lines = [first, reached, "runner %s %s" % (command, spec["id"])]
    body = _message(spec, state, "ended", ident, host, at, title, lines)
    return dict(body, outcome=outcome)


def sweep_ended(
    spec: Table,
    outcomes: Sequence[str],
    *,
    ident: str,
    host: str,
    at: float,
    zone: Optional[str] = None,
) -> Table:
    """The message of a sweep's end. spec: of one of its runs; outcomes: of all of them."""
    counts = {each: outcomes.count(each) for each in OUTCOMES if each in outcomes}
    worst = next(each for each in ("failed", "skipped", *counts) if each in counts)
    word = worst.upper() if len(counts) == 1 else "ENDED"
    title = "%s %s on %s" % (spec["sweep"], word, host)
    if len(counts) == 1:
        told = "all %d runs" % len(outcomes) if len(outcomes) > 1 else "its one run"
    else:
        told = ", ".join("%d %s" % (count, each) for each, count in counts.items())
    first = "%s at %s: %s" % (title, clock(at, zone), told)
    compared = spec.get("job") and "done" in counts
    lines = [first, "runner compare %s" % spec["sweep"] if compared else "runner ps --ended"]
    body = _message(spec, {}, "ended", ident, host, at, title, lines)
    return dict(body, run=None, outcome=worst, counts=counts)


def stuck(
    spec: Table, state: Table, text: str, *, ident: str, host: str, at: float, again: bool
) -> Table:
    """The message that a run does not move. again: it was stopped, and is started again."""
    title = "%s STUCK on %s" % (spec["id"], host)
    first = "%s: %s" % (title, messages.shown(text))
    if again:
        first += "; stopped, it goes on from its last checkpoint"
    reached = _reached(spec, state.get("final") or {})
    lines = [first, reached, "runner why %s" % spec["id"]]
    return _message(spec, state, "stuck", ident, host, at, title, lines)


def disk(*, ident: str, host: str, at: float, free: int, reserve: int, waiting: int) -> Table:
    """The message that a host's disk runs low."""
    title = "%s: disk runs low" % host
    first = "%s, %s free and %s are to stay free; nothing starts there" % (
        title,
        causes.size(free),
        causes.size(reserve),
    )
    if waiting:
        first += ", %d %s" % (waiting, "run waits" if waiting == 1 else "runs wait")
    lines = [first, "runner gc host=%s --dry-run" % host]
    return {
        "format": messages.FORMAT,
        "id": ident,
        "kind": "disk",
        "at": messages.stamp(at),
        "host": host,
        "title": title,
        "text": "\n".join(lines)[: messages.MOST_TEXT],
        "free_bytes": free,
        "reserve_bytes": reserve,
    }


def _message(
    spec: Table,
    state: Table,
    kind: str,
    ident: str,
    host: str,
    at: float,
    title: str,
    lines: List[str],
) -> Table:
    cause = state.get("cause")
    said: Optional[Table] = None
    if cause:
        said = {"kind": str(cause.get("kind")), "text": messages.shown(cause.get("text") or "")}
    return {
        "format": messages.FORMAT,
        "id": ident,
        "kind": kind,
        "at": messages.stamp(at),
        "host": host,
        "title": title,
        "text": "\n".join(filter(None, lines))[: messages.MOST_TEXT],
        "run": spec["id"],
        "sweep": spec.get("sweep"),
        "job": spec.get("job"),
        "name": spec.get("name"),
        "cause": said,
        "step": (state.get("final") or {}).get("step"),
        "steps": _steps(spec),
        "attempt": state.get("attempt"),
    }


def _steps(spec: Table) -> Optional[int]:
    value: Any = (spec.get("params") or {}).get("steps")
    return int(value) if is_number(value) else None


def _reached(spec: Table, final: Table) -> str:
    parts = []
    step: Any = final.get("step")
    if is_number(step):
        whole = _steps(spec)
        parts.append("step %s%s" % (count(step), " of %s" % count(whole) if whole else ""))
    found = _metric(final.get("metrics") or {}, spec.get("metric"))
    if found is not None:
        name = "return" if found[0] in _RETURNS else messages.shown(found[0], 60)
        parts.append("%s %.4g" % (name, found[1]))
    return ", ".join(parts)


def _metric(metrics: Table, chosen: Any) -> Optional[Tuple[str, float]]:
    for name in (chosen,) if chosen else _RETURNS:
        value: Any = metrics.get(name)
        if is_number(value):
            return str(name), float(value)
    return None


def count(number: float) -> str:
    """`1.4M`, `31k`, `812`."""
    value = float(number)
    for unit in ("", "k", "M"):
        if abs(value) < 999.5:
            return ("%.0f" % value if not unit else "%.1f" % value).replace(".0", "") + unit
        value /= 1000
    return ("%.1f" % value).replace(".0", "") + "G"


def clock(at: float, zone: Optional[str]) -> str:
    """`03:02` in a zone that is known here, else `01:02 UTC`."""
    try:
        from zoneinfo import ZoneInfo

        if zone and zone != "UTC":
            return datetime.fromtimestamp(at, ZoneInfo(zone)).strftime("%H:%M")
    except Exception:  # what a zone database of a strange image does is no reason to tell nothing
        pass
    return datetime.fromtimestamp(at, timezone.utc).strftime("%H:%M UTC")
