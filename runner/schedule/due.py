"""What is to be done now, given what was done (pure).

A schedule remembers up to which instant it was looked after. What lies between that and now is due:
the last of it fires, unless it is late and missed firings are to be skipped; what came before it
was missed. Nothing is due twice, since that instant only moves on: a clock that was put back waits
until it is passed again. One that was so far ahead that this would take long was wrong, and is not
believed any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo

from runner.schedule.expression import Expression
from runner.schedule.instants import Firing, firings

ONCE, SKIP = "once", "skip"
LATE_S = 300.0
"""Later than this, cron did not come by in time: the machine was off or asleep."""
MOST_TOLD = 20
"""Missed firings that are named; of more the last."""
LOOK_BACK_S = 31 * 86_400.0
"""How far back missed firings are counted."""
AHEAD_S = 86_400.0
"""A clock that was this far ahead of now was wrong."""


@dataclass(frozen=True)
class Due:
    """What is to be done."""

    fire: Firing | None
    late: bool
    """It fires although its time is long past."""
    missed: tuple[Firing, ...]
    """Those to be told of as missed."""
    more: int
    """Missed ones before those."""
    handled: float
    """Up to when nothing is due any more, once this is done."""


def find_due(
    expression: Expression, zone: tzinfo, *, missed: str, handled: float, now: float
) -> Due:
    """What is due at `now`. missed: `once` or `skip`. handled: see `Due.handled`."""
    if handled > now + AHEAD_S:
        handled = now
    found: list[Firing] = []
    for firing in firings(expression, zone, max(handled, now - LOOK_BACK_S)):
        if firing.at > now:
            break
        found.append(firing)
    if not found:
        return Due(None, False, (), 0, max(handled, now))
    late = now - found[-1].at > LATE_S
    fire = None if late and missed == SKIP else found.pop()
    told = found[-MOST_TOLD:]
    return Due(fire, late and fire is not None, tuple(told), len(found) - len(told), now)
