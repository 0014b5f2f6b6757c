"""What is said of runs that could not be stopped: one line for a host, and what to type."""

from __future__ import annotations

from typing import Any

from runner.app.reports import CancelReport
from runner.show.stops import missed_lines

DEAD = {"error": "gpu3: no answer for 20 s", "status": 3, "contact": "unreachable"}


def missed(run: str, host: str = "gpu3", **fields: Any) -> CancelReport:
    return CancelReport(run, host, None, False, **fields)


def test_a_silent_host_is_told_once_with_the_way_to_keep_trying() -> None:
    assert missed_lines([missed("sac-t0w8e", **DEAD, retry=True)]) == [
        "gpu3: no answer for 20 s; sac-t0w8e was NOT stopped; to keep trying:",
        "  runner cancel sac-t0w8e --until 1h",
    ]
    two = [missed("a-1", **DEAD, retry=True), missed("a-2", **DEAD, retry=True)]
    assert missed_lines(two) == [
        "gpu3: no answer for 20 s; a-1, a-2 were NOT stopped; to keep trying:",
        "  runner cancel a-1 a-2 --until 1h",
    ]
    assert missed_lines(two, whole=True)[1] == "  runner cancel host=gpu3 --until 1h"


def test_many_runs_are_not_all_named() -> None:
    (line,) = missed_lines([missed(f"a-{number}", **DEAD) for number in range(9)])
    assert line.endswith("; a-0, a-1, a-2, a-3, a-4 and 4 more were NOT stopped")


def test_what_is_not_known_is_not_called_stopped_nor_left() -> None:
    lines = missed_lines([missed("a-1", error="gpu3: the link broke", status=9, asked=True)])
    assert lines == [
        "gpu3: the link broke; a-1 may or may not be stopped; the same settles it:",
        "  runner cancel a-1",
    ]
    (line,) = missed_lines([missed("a-1", error="gpu3: interrupted", asked=True)])
    assert line == "gpu3: interrupted; a-1 was asked to stop and may not have ended yet"


def test_a_run_that_is_not_there_is_told_with_what_explains_it() -> None:
    gone = missed("a-1", error="gpu3: no run a-1 there any more", status=6, advice=("why",))
    assert missed_lines([gone]) == ["gpu3: no run a-1 there any more", "  why"]


def test_what_went_well_needs_no_line() -> None:
    assert missed_lines([CancelReport("a-1", "gpu1", "cancelled", False)]) == []
