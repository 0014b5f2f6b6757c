"""The numbers of rliable 1.2.0 (arch 7.2.0, scipy 1.17.1, numpy 2.4.6), made once by

    rly.get_interval_estimates({"a": scores}, lambda x: np.array([metrics.aggregate_iqm(x)]),
                               reps=200_000, random_state=np.random.RandomState(0))

and the same with `aggregate_mean`, and `probability_of_improvement` (20,000 resamples), where
scores are runs by tasks; p by `scipy.stats.mannwhitneyu`.
"""

from __future__ import annotations

import random

import pytest

from runner.comparing import bootstrap
from runner.comparing.bootstrap import compare, interval, iqm, mean, rank_p, resampled

A = [487.0, 500.0, 402.0, 471.5, 495.0]
B = [431.0, 187.0, 489.0, 318.25, 455.0]
C = [12.5, 14.0, 9.75, 30.0, 11.0]
TIED = [2.0, 2.0, 0.0, 3.0, 5.0, 1.0]
RLIABLE = [
    ([A], iqm, 484.5, (425.1667, 498.3333)),
    ([A], mean, 471.1, (435.5, 495.4)),
    ([B], iqm, 401.41667, (230.75, 477.6667)),
    ([B], mean, 376.05, (266.85, 463.8)),
    ([C], iqm, 12.5, (10.16667, 24.66667)),
    ([C], mean, 15.45, (10.8, 23.0)),
    ([TIED], iqm, 2.0, (0.75, 3.75)),
    ([A, B, C], iqm, 310.63889, (251.97222, 361.80556)),
    ([A, B, C], mean, 287.53333, (251.33333, 318.58333)),
]


@pytest.mark.parametrize(("strata", "statistic", "value", "ends"), RLIABLE)
def test_estimates_are_rliables(
    strata: list[list[float]],
    statistic: bootstrap.Statistic,
    value: float,
    ends: tuple[float, float],
) -> None:
    assert statistic(bootstrap.pooled(strata)) == pytest.approx(value)
    spread = ends[1] - ends[0]
    assert interval(statistic, resampled(strata)) == pytest.approx(ends, abs=0.02 * spread)


def of_pair(first: list[float], second: list[float]) -> bootstrap.Better:
    return compare(first, second, (resampled([first], stream=0), resampled([second], stream=1)))


def test_the_probability_of_improvement_is_rliables() -> None:
    found = of_pair(A, B)
    assert found.probability == 0.8
    assert found.interval == pytest.approx((0.44, 1.0), abs=0.02)
    tied = of_pair([1.0, 2.0, 2.0, 3.0], TIED)
    assert tied.probability == 0.5
    assert tied.interval == pytest.approx((1 / 6, 5 / 6), abs=0.03)


def test_ranks_are_counted_out_or_nearly_normal() -> None:
    assert rank_p(A, B) == pytest.approx(0.150793650)
    assert rank_p(B, A) == rank_p(A, B)
    many = [float(i) for i in range(25)], [i + 0.5 for i in range(5, 35)]
    assert rank_p(*many) == pytest.approx(0.001817006)
    assert rank_p([1.0] * 3, [1.0] * 4) == rank_p([1.0] * 30, [1.0] * 30) == 1.0


def test_three_against_three_decide_nothing_however_far_they_lie_apart() -> None:
    found = of_pair([10.0, 11.0, 12.0], [1.0, 2.0, 3.0])
    assert (found.probability, found.interval) == (1.0, (1.0, 1.0))
    assert found.p == pytest.approx(0.1) and not found.decided
    assert found.more_seeds is not None and found.more_seeds >= 1
    assert of_pair(A, C).decided


def test_few_seeds_give_no_interval_and_equal_ones_no_plan() -> None:
    assert of_pair([1.0, 2.0], A).interval is None
    same = of_pair([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (same.decided, same.more_seeds) == (False, None)


def test_the_same_scores_give_the_same_numbers_and_groups_are_drawn_apart() -> None:
    assert resampled([A], 50) == resampled([A], 50)
    assert resampled([A], 50, stream=1) != resampled([A], 50, stream=2)
    assert all(set(drawn) <= set(A) for (drawn,) in resampled([A], 50))


def test_so_many_seeds_do_decide_it_in_about_four_of_five_cases() -> None:
    """Two normal groups whose probability of improvement is 0.76: the plan is kept."""
    need = bootstrap.seeds_to_decide(0.76)
    assert need == 20
    draw = random.Random(1)
    seen = 0
    for _ in range(200):
        first = [draw.gauss(1.0, 1.0) for _ in range(need)]
        second = [draw.gauss(0.0, 1.0) for _ in range(need)]
        seen += rank_p(first, second) <= bootstrap.LEVEL
    assert 0.7 <= seen / 200 <= 0.95
