from __future__ import annotations

import time
from datetime import datetime

import pytest

from runner.moments import parse_since

NOW = datetime(2026, 11, 5, 9, 30).timestamp()  # a Thursday


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("today", "2026-11-05T00:00"),
        ("Yesterday", "2026-11-04T00:00"),
        ("thu", "2026-11-05T00:00"),
        ("monday", "2026-11-02T00:00"),
        ("fri", "2026-10-30T00:00"),
        ("09:30", "2026-11-05T09:30"),
        ("22:15", "2026-11-04T22:15"),
        ("2026-11-03", "2026-11-03T00:00"),
        ("2026-11-03 02:30", "2026-11-03T02:30"),
        ("12h", "2026-11-04T21:30"),
        ("1h30m", "2026-11-05T08:00"),
    ],
)
def test_a_moment_in_the_local_zone(text: str, meant: str) -> None:
    assert parse_since(text, NOW) == datetime.fromisoformat(meant).timestamp()


def test_an_offset_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse_since("2026-11-03T02:30:00Z", NOW) == 1793673000.0
        assert parse_since("2026-11-03T02:30+01:00", NOW) == 1793669400.0
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text", ["", "now", "m", "mondays", "25:00", "12", "2026-13-01", "-2h", "tomorrow", "12:5"]
)
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(ValueError, match="yesterday, mon, 02:30"):
        parse_since(text, NOW)


def test_what_is_still_to_come() -> None:
    with pytest.raises(ValueError, match="still to come"):
        parse_since("2026-11-06", NOW)
