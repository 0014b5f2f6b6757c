from __future__ import annotations

from runner.metrics import best_known, metric_of


def test_the_metric_is_the_jobs_choice_else_the_first_known() -> None:
    metrics = {"reward": 1.0, "eval/return": 2.0, "loss": 3.0}
    assert metric_of(metrics, None) == ("eval/return", 2.0)
    assert metric_of(metrics, "loss") == ("loss", 3.0)
    assert metric_of(metrics, "other") is None
    assert metric_of({"reward": True, "charts/episodic_return": 4}, None) == (
        "charts/episodic_return",
        4.0,
    )


def test_the_best_known_one_is_looked_for_in_the_whole_run() -> None:
    assert best_known([{"reward": 1.0}, {"loss": 2.0}, {"eval/return": 3.0}]) == "eval/return"
    assert best_known([{"loss": 2.0}, {}]) is None
