"""The instants at which a schedule fires in a zone (pure).

Two kinds, as cron's users know them. Where hours are named, each local time is one firing: one that
the clock jumps over fires where it lands, one that comes twice fires the first time; what lands on
the same instant is one firing. Where the field for hours begins with `*` it goes by the time that
passes: what is jumped over is not there, what comes twice fires twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo

from runner.schedule.expression import Expression

_MINUTE_S = 60
_MOST_JUMP_MINUTES = 48 * 60
"""Of a clock; a whole day was left out in Samoa."""
_SETTLED_S = 3 * 3600
"""No clock goes back further, over midnight."""
_LAST_YEAR = 9990
AGAIN = "/2"
"""Behind a local time that comes for the second time."""


@dataclass(frozen=True, order=True)
class Firing:
    """One instant of a schedule."""

    at: float
    """Seconds since the epoch."""
    local: str
    """The local time that was meant, as 2027-03-28T02:30, with `AGAIN` the second time."""
    note: str = ""
    """What the clocks do there."""


def firings(expression: Expression, zone: tzinfo, after: float) -> Iterator[Firing]:
    """Every instant later than `after`, in order, each once."""
    day = datetime.fromtimestamp(after, zone).date() - timedelta(days=2)
    waiting: list[Firing] = []
    last = after
    while day.year < _LAST_YEAR:
        waiting = sorted([*waiting, *_of_day(expression, zone, day)])
        day += timedelta(days=1)
        settled = datetime(day.year, day.month, day.day, tzinfo=zone).timestamp() - _SETTLED_S
        for firing in [each for each in waiting if each.at < settled]:
            if firing.at > last:
                last = firing.at
                yield firing
        waiting = [each for each in waiting if each.at >= settled]


def _of_day(expression: Expression, zone: tzinfo, day: date) -> Iterator[Firing]:
    if not expression.fits(day):
        return
    for hour in expression.hours:
        for minute in expression.minutes:
            wall = datetime(day.year, day.month, day.day, hour, minute)
            yield from _at(wall, zone, expression.every_hour)


def _at(wall: datetime, zone: tzinfo, passing: bool) -> Iterator[Firing]:
    """The instants that a time on the wall stands for; passing: also none, or two."""
    local = wall.isoformat(timespec="minutes")
    first = wall.replace(tzinfo=zone).timestamp()
    if _wall(first, zone) != wall:
        if not passing:
            note = f"clocks go forward, there is no {wall:%H:%M} that night"
            yield Firing(_landing(wall, zone), local, note)
        return
    second = wall.replace(tzinfo=zone, fold=1).timestamp()
    if second == first:
        yield Firing(first, local)
        return
    yield Firing(first, local, f"clocks go back, the first of two {wall:%H:%M}")
    if passing:
        yield Firing(second, local + AGAIN, f"clocks go back, the second {wall:%H:%M}")


def _landing(wall: datetime, zone: tzinfo) -> float:
    """The instant at which the clock jumps over this time."""
    for minutes in range(1, _MOST_JUMP_MINUTES):
        before = wall - timedelta(minutes=minutes)
        at = before.replace(tzinfo=zone, fold=1).timestamp()
        if _wall(at, zone) == before:
            return at + _MINUTE_S
    raise AssertionError(f"{zone}: no time before {wall}")


def _wall(at: float, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None, fold=0)
