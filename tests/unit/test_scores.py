from __future__ import annotations

from typing import Any

import pytest

from runner.comparing.scores import Series, common_step, score_at, series_of
from runner.wire import RunStatus


def series(reach: int | None, state: str = "ended", outcome: str | None = "done") -> Series:
    run = RunStatus(id="r", state=state, outcome=outcome)
    points = () if reach is None else tuple((step, step / 10) for step in range(0, reach + 1, 10))
    return Series(run, "h", points)


def test_only_finite_values_of_the_metric_are_points() -> None:
    rows: list[tuple[int, dict[str, float]]] = [
        (0, {"r": 1.0}),
        (1, {"r": float("nan")}),
        (2, {"x": 3.0}),
        (3, {"r": -1e300}),
    ]
    found = series_of(RunStatus("a", "running"), "h", "r", rows, [0.5, 1.0, 2.0])
    assert found.points == ((0, 1.0), (3, -1e150))
    assert found.seconds == (0.5, None)


def test_an_evaluation_counts_alone_and_anything_else_over_a_tenth_of_the_steps() -> None:
    assert score_at(series(100), 95, "eval/return") == 9.0
    assert score_at(series(100), 100, "reward") == 10.0
    run = RunStatus("r", "ended", "done")
    dense = Series(run, "h", tuple((step, float(step)) for step in range(101)))
    assert score_at(dense, 100, "reward") == 95.5
    assert score_at(dense, 50, "reward") == pytest.approx(48.0)
    assert score_at(series(60), 100, "reward") is None
    assert score_at(series(None), 0, "reward") is None


@pytest.mark.parametrize(
    ("groups", "step"),
    [
        ([[series(100), series(90)], [series(50)]], 50),
        ([[series(100), series(20, outcome="failed")]], 100),
        ([[series(100), series(30, "running", None)]], 100),
        ([[series(100)], [series(30, "running", None), series(40, "running", None)]], 30),
        ([[series(100)], [series(20, outcome="failed")]], 100),
        ([[series(20, outcome="failed"), series(10, outcome="failed")]], 20),
        ([[series(None)]], None),
    ],
)
def test_the_step_is_the_last_that_all_done_seeds_reached(groups: Any, step: int | None) -> None:
    assert common_step(groups) == step
