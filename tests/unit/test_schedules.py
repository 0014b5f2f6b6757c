"""What people and programs see of schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.app.schedule import Seen
from runner.schedule.definition import Begun, Fired, Progress, Schedule
from runner.show.schedules import advice, schedule_rows
from runner.show.units import moment

NOW = 1_800_000_000.0
TELLS = Schedule("n", key="n-0", root="/p", project="p-1", cron="0 * * * *", zone="UTC")
TEXT = "gpu1: no answer"


def told(progress: Progress, **seen: Any) -> list[str]:
    each = Seen(TELLS, progress, next=None, fires=True, looked=NOW, **seen)
    return advice([each], NOW, has_cron=True)


def test_a_firing_that_waits_for_its_host_is_told_with_how_long_still() -> None:
    begun = Begun("l", NOW - 600, since=NOW - 600, waits=TEXT)
    (text,) = told(Progress(NOW, begun))
    until = moment(NOW + 3000, NOW)
    assert text == (
        f"{TELLS.name} of {moment(NOW - 600, NOW)} is not submitted yet, tried again until"
        f" {until}: {TEXT}"
    )
    assert told(Progress(NOW, replace(begun, queued=True))) == []
    (_, row) = schedule_rows([Seen(TELLS, Progress(NOW, begun), None, True, NOW)], NOW)
    assert row[-1] == f"tries again until {until}"


def test_a_firing_that_made_no_run_is_told_until_one_does() -> None:
    failed = Fired("l", NOW - 600, "failed", ("a",), "not-submitted", TEXT, told_at=NOW - 500)
    (text,) = told(Progress(NOW, None, (failed,)))
    assert text == f"{TELLS.name} of {moment(NOW - 600, NOW)} made no run: {TEXT}"
    good = Fired("m", NOW, "submitted", ("b",), told_at=NOW)
    assert told(Progress(NOW, None, (failed, good))) == []


def test_what_was_due_and_could_not_even_be_written_down_is_told() -> None:
    (text,) = told(Progress(NOW - 7200), said_last="progress.json cannot be written")
    assert "was due" in text and text.endswith("progress.json cannot be written")
    assert told(Progress(NOW - 200)) == []


def test_a_state_that_may_have_changed_since_is_not_shown_as_one() -> None:
    good = Fired("m", NOW, "submitted", ("b",), told_at=NOW)
    seen = Seen(TELLS, Progress(NOW, None, (good,)), None, True, NOW, states=("queued", "done"))
    (_, row) = schedule_rows([seen], NOW)
    assert row[-1].startswith("1 submitted, 1 DONE, ")
