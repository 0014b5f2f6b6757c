"""When a schedule fires, as cron writes it: five fields, or a word such as `@daily` (pure).

    minute  hour  day of month  month  day of week
    30      2     *             *      mon-fri

A field is a list of numbers, ranges `a-b` and `*`, the latter two also with a step `/n`; months and
days of the week have names. As everywhere in cron, a day fits when either of its two fields does,
but where one of them begins with `*` it must fit both.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import date

from runner.errors import SpecError
from runner.fields import did_you_mean, said

MONTHS = tuple(name.lower() for name in calendar.month_abbr)[1:]
WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EXAMPLE = "five fields, as '30 2 * * *': minute hour day month weekday"
_LEAP_YEAR = 2028
_PART = re.compile(r"(?:(\*)|([0-9a-z]+)(?:-([0-9a-z]+))?)(?:/([0-9]{1,9}))?")


@dataclass(frozen=True)
class _Field:
    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()
    first_name: int = 0
    """The number that the first of the names stands for."""


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, MONTHS, 1),
    _Field("day of week", 0, 7, WEEKDAYS),
)


@dataclass(frozen=True)
class Expression:
    """Which minutes of local time are meant."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    needs_both: bool
    """One of the two fields for days begins with `*`."""
    every_hour: bool
    """The field for hours begins with `*`: it goes by time that passes, not by the wall clock."""

    def fits(self, day: date) -> bool:
        """Whether it fires on this day."""
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return (of_month and of_week) if self.needs_both else (of_month or of_week)


def parse_expression(text: str) -> Expression:
    """The minutes that the text means. Raises SpecError that names the field."""
    words = text.split()
    if len(words) == 1 and words[0].startswith("@"):
        words = _word(words[0]).split()
    if len(words) != len(_FIELDS):
        extra = "; cron knows no seconds" if len(words) == 6 else ""
        raise SpecError(f"{said(text)} has {len(words)} fields{extra}; it must have {_EXAMPLE}")
    values = [_values(field, word) for field, word in zip(_FIELDS, words, strict=True)]
    found = Expression(
        minutes=tuple(sorted(values[0])),
        hours=tuple(sorted(values[1])),
        days=frozenset(values[2]),
        months=frozenset(values[3]),
        weekdays=frozenset(number % 7 for number in values[4]),
        needs_both="*" in (words[2][0], words[4][0]),
        every_hour=words[1].startswith("*"),
    )
    if not _has_a_day(found):
        raise SpecError(f"{said(text)} never fires: there is no such day")
    return found


def _word(word: str) -> str:
    if word.lower() == "@reboot":
        raise SpecError("@reboot is no time; a schedule fires at times, as '30 2 * * *'")
    if word.lower() not in WORDS:
        known = ", ".join(WORDS)
        raise SpecError(f"{said(word)} is none of {known}{did_you_mean(word, WORDS)}")
    return WORDS[word.lower()]


def _values(field: _Field, text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        found |= _part(field, part, text)
    return found


def _part(field: _Field, part: str, text: str) -> set[int]:
    """The numbers of one part of a list."""
    match = _PART.fullmatch(part.lower())
    if match is None:
        raise _wrong(field, text, f"has {said(part)}" if part != text else "is not read")
    star, first, last, step = match.groups()
    if star:
        low, high = field.least, 6 if field.names is WEEKDAYS else field.most
    else:
        low = _number(field, first, text)
        high = low if last is None else _number(field, last, text)
        if step and last is None:
            raise _wrong(field, text, f"has a step without a range (as {low}-{field.most}/{step})")
    if high < low:
        raise _wrong(field, text, f"has a range that ends before it begins ({part})")
    if step is not None and not 1 <= int(step) <= field.most:
        raise _wrong(field, text, f"has the step {step}")
    return set(range(low, high + 1, int(step or 1)))


def _number(field: _Field, word: str, text: str) -> int:
    if word in field.names:
        return field.first_name + field.names.index(word)
    number = int(word) if word.isdigit() and len(word) < 9 else -1
    if not field.least <= number <= field.most:
        raise _wrong(field, text, f"has {said(word)}" if word != text.lower() else "")
    return number


def _wrong(field: _Field, text: str, why: str) -> SpecError:
    names = f" or {field.names[0]} to {field.names[-1]}" if field.names else ""
    head = f"{field.name} {said(text)} {why}" if why else f"{field.name} is {said(text)}"
    return SpecError(
        f"{head}; it takes {field.least} to {field.most}{names}, lists, ranges and steps"
    )


def _has_a_day(found: Expression) -> bool:
    """Whether any day fits; sooner or later every date falls on every day of the week."""
    return not found.needs_both or any(
        day in found.days
        for month in found.months
        for day in range(1, calendar.monthrange(_LEAP_YEAR, month)[1] + 1)
    )
