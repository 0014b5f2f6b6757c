"""Times as people type them: `yesterday`, `mon`, `02:30`, a date, `12h` (pure)."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta

from runner.fields import parse_duration

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
EXAMPLES = "yesterday, mon, 02:30, 2026-11-03, 2026-11-03T02:30+01:00, or 12h for the last 12 hours"


def parse_since(text: str, now: float) -> float:
    """Seconds since the epoch of the moment meant, in the local zone where none is given.

    A day means its beginning, a weekday the last one (today, where it is that day), an hour the
    last time it was so late, a duration that long ago. Raises ValueError for anything else, and
    for what is still to come.
    """
    word = text.strip().lower()
    moment = _day(word, datetime.fromtimestamp(now)) or _exact(text.strip())
    at = moment.timestamp() if moment is not None else _ago(word, now)
    if at > now:
        raise ValueError("that is still to come")
    return at


def _day(word: str, now: datetime) -> datetime | None:
    day: date | None = None
    if word in ("today", "yesterday"):
        day = now.date() - timedelta(days=word == "yesterday")
    elif len(word) >= 3 and any(name.startswith(word) for name in _DAYS):
        number = next(i for i, name in enumerate(_DAYS) if name.startswith(word))
        day = now.date() - timedelta(days=(now.weekday() - number) % 7)
    elif re.fullmatch(r"[0-2]?[0-9]:[0-5][0-9]", word):
        hour, _, minute = word.partition(":")
        if int(hour) > 23:
            return None
        clock = time(int(hour), int(minute))
        day = now.date() - timedelta(days=clock > now.time())
        return datetime.combine(day, clock)
    return None if day is None else datetime.combine(day, time())


def _exact(text: str) -> datetime | None:
    if not re.match(r"[0-9]{4}-", text):
        return None
    try:
        return datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        return None


def _ago(word: str, now: float) -> float:
    try:
        return now - parse_duration(word)
    except ValueError:
        raise ValueError(f"it takes {EXAMPLES}") from None
