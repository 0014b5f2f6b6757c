from __future__ import annotations

from typing import Any

from runner.show.readings import limit_left, ran, repeated, time_left
from tests.helpers.statuses import NOW, run


def test_a_time_left_is_given_only_when_it_is_no_guess() -> None:
    good: dict[str, Any] = {
        "started_at": NOW - 100,
        "progress_at": NOW,
        "attempt": 1,
        "step": 500,
        "params": {"steps": 1000},
    }
    assert time_left(run(**good).status) == 100.0
    changes: list[dict[str, Any]] = [
        {"attempt": 2},
        {"step": 1},
        {"params": {}},
        {"params": {"steps": True}},
    ]
    for change in changes:
        assert time_left(run(**{**good, **change}).status) is None
    assert time_left(run(state="queued", **good).status) is None


def test_a_time_limit_counts_the_attempts_before() -> None:
    live: dict[str, Any] = {"started_at": NOW - 60, "ran_s": 100.0, "time_limit_s": 200.0}
    assert (ran(run(**live), NOW), limit_left(run(**live), NOW)) == (160.0, 40.0)
    assert limit_left(run(**{**live, "ran_s": 500.0}), NOW) == 0.0
    assert limit_left(run(**{**live, "time_limit_s": None}), NOW) is None
    for state in ("queued", "ended"):
        assert (ran(run(state=state, **live), NOW), limit_left(run(state=state, **live), NOW)) == (
            100.0,
            None,
        )


def test_how_often_the_same_fault_came() -> None:
    said = [{"repeated": 3}, {"repeated": True}, {"repeated": float("nan")}, {}, None]
    assert [repeated(run(cause=cause).status) for cause in said] == [3, 2, 2, 1, 1]
