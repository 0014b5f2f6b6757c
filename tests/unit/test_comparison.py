from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from runner.comparing.comparison import COUNTED, MISSING, SAME_SEED, Comparison, compare
from runner.comparing.scores import Series
from runner.show.compare import sentences
from runner.wire import RunStatus


def seed(
    name: str, lr: float, number: int, score: float | None, reach: int = 100, **fields: Any
) -> Series:
    """A run that reached a score at its last step."""
    fields = {"state": "ended", "outcome": "done", **fields}
    run = RunStatus(id=name, job="dqn", params={"seed": number, "lr": lr}, **fields)
    points = () if score is None else ((0, 0.0), (reach, score))
    return Series(run, "gpu1", points)


def group(lr: float, scores: Sequence[float], name: str = "g") -> list[Series]:
    return [seed(f"{name}{lr}.{i}", lr, i, score) for i, score in enumerate(scores, 1)]


def compared(series: Sequence[Series], **how: Any) -> Comparison:
    found = compare(series, "eval/return", **how)
    assert found is not None
    return found


HIGH, LOW = group(3e-4, [487, 500, 402, 471.5, 495]), group(1e-3, [431, 187, 489, 318.25, 455])


def test_the_better_group_is_named_whatever_the_order() -> None:
    for series in (HIGH + LOW, LOW + HIGH):
        found = compared(series)
        (pair,) = found.pairs
        assert found.groups[pair.best].label == "lr=3e-4"
        assert pair.better.probability == 0.8 and not pair.better.decided
        assert found.groups[pair.best].iqm_with_missing is None is pair.with_missing


def test_seeds_whose_values_end_though_they_went_on_are_named() -> None:
    ended = [seed(f"bad.{n}", 1e-3, n, 9.0 + n, reach=50, step=100) for n in (1, 2)]
    shorter = seed("short", 1e-3, 3, 9.0, reach=50, step=50)
    found = compared([*HIGH, *ended, shorter])
    assert found.step == 50
    assert [each.series.run.id for each in found.held_back] == ["bad.1", "bad.2"]
    text = " ".join(sentences(found))
    assert "eval/return of bad.1, bad.2 has no number after 50, though training went on" in text
    assert compared(HIGH + LOW).held_back == ()


def test_smaller_may_be_better() -> None:
    found = compared(HIGH + LOW, lower=True)
    assert found.groups[found.pairs[0].best].label == "lr=1e-3"
    assert found.pairs[0].better.probability == 0.8


def test_a_seed_that_failed_is_missing_and_what_it_may_mean_is_told() -> None:
    failed = seed("bad", 3e-4, 9, 20.0, reach=12, outcome="failed")
    going = seed("going", 3e-4, 10, 20.0, reach=50, state="running", outcome=None)
    queued = seed("queued", 3e-4, 11, None, state="queued", outcome=None)
    found = compared([*HIGH, failed, going, queued, *LOW])
    first = found.groups[0]
    assert [each.series.run.id for each in first.missing] == ["bad", "going", "queued"]
    assert {each.use for each in first.seeds} == {COUNTED, MISSING}
    assert first.iqm is not None and first.iqm.value == 484.5
    assert first.iqm_with_missing == pytest.approx((402 + 187 + 471.5 + 487) / 4)
    assert found.pairs[0].with_missing is not None
    assert found.pairs[0].with_missing < found.pairs[0].better.probability


def test_a_seed_that_failed_after_the_step_counts() -> None:
    late = seed("late", 3e-4, 9, 300.0, reach=150, outcome="failed")
    found = compared([*HIGH, late, *LOW])
    assert found.step == 100 and not found.groups[0].missing


def test_the_same_seed_twice_counts_once_and_is_told() -> None:
    again = seed("again", 3e-4, 1, 480.0)
    broken = seed("broken", 3e-4, 2, None, outcome="failed")
    found = compared([*HIGH, again, broken, *LOW])
    used = {each.series.run.id: each.use for each in found.groups[0].seeds}
    assert used["g0.0003.1"] == SAME_SEED == used["broken"]
    assert used["again"] == used["g0.0003.2"] == COUNTED
    assert not found.groups[0].missing


def test_several_others_share_the_chance_of_error() -> None:
    third = group(5e-3, [12.5, 14, 9.75, 30, 11])
    found = compared(HIGH + LOW + third)
    assert [(pair.best, pair.other) for pair in found.pairs] == [(0, 1), (0, 2)]
    assert found.level == 0.025
    assert [pair.better.decided for pair in found.pairs] == [False, True]


def test_a_group_without_any_score_stays_in_the_table() -> None:
    found = compared([*HIGH, seed("a", 1e-3, 1, None, outcome="failed")])
    assert found.groups[1].iqm is None and not found.pairs
    assert compare([seed("a", 1e-3, 1, None)], "reward") is None
    assert compare(HIGH, "eval/return", step=5000) is None


def test_another_step_may_be_asked_for() -> None:
    assert compared(HIGH + LOW, step=50).groups[0].scores == [0.0] * 5
