"""What a few seeds say: means, intervals, which of two groups is better, how many more decide.

Scores stand in strata (one for each task; a comparison on one task has one). A bootstrap draws from
each stratum for itself, as often as it has scores. It is drawn from a fixed seed: the same scores
give the same numbers each time. (pure)
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

RESAMPLES = 10_000
CONFIDENCE = 0.95
LEVEL = 0.05
"""The p below which a difference counts as one."""
POWER = 0.8
LEAST_SEEDS = 3
"""With fewer, drawing again gives back the scores themselves: no interval is told."""
MOST_SEEDS = 200
"""A difference that needs more seeds of each is called small, not planned for."""
_EXACT = 20
"""Ranks of up to so many scores a group are counted out; of more they are nearly normal."""
_Z_INTERVAL = 1.959964  # normal quantiles of 0.975 and of POWER
_Z_POWER = 0.841621

Strata = Sequence[Sequence[float]]
Interval = tuple[float, float]
Statistic = Callable[[Sequence[float]], float]


def mean(scores: Sequence[float]) -> float:
    """The arithmetic mean of at least one score."""
    return math.fsum(scores) / len(scores)


def iqm(scores: Sequence[float]) -> float:
    """The interquartile mean: without a quarter of the scores (rounded down) at each end."""
    cut = len(scores) // 4
    return mean(sorted(scores)[cut : len(scores) - cut])


def resampled(strata: Strata, count: int = RESAMPLES, stream: int = 0) -> list[list[list[float]]]:
    """`count` times the strata, each drawn anew with replacement.

    stream: which of several independent drawings; those that are compared must not share one.
    """
    draw = random.Random(f"runner compare {stream}").choices
    return [[draw(stratum, k=len(stratum)) for stratum in strata] for _ in range(count)]


def pooled(strata: Strata) -> list[float]:
    """All scores of all strata."""
    return [score for stratum in strata for score in stratum]


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which a share of ordered values lies, between two of them in proportion."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def interval_of(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The percentile interval of what a statistic came to in each resample."""
    ordered = sorted(values)
    tail = (1 - confidence) / 2
    return percentile(ordered, tail), percentile(ordered, 1 - tail)


def interval(statistic: Statistic, draws: Sequence[Strata]) -> Interval:
    """The interval of a statistic over all scores, from resamples."""
    return interval_of([statistic(pooled(strata)) for strata in draws])


def improvement(first: Sequence[float], second: Sequence[float]) -> float:
    """How probably a score of the first is above one of the second; equal ones count half."""
    ordered = sorted(second)
    wins = 0
    for score in first:
        wins += bisect.bisect_left(ordered, score) + bisect.bisect_right(ordered, score)
    return wins / (2 * len(first) * len(ordered))


def improvement_of(first: Strata, second: Strata) -> float:
    """The same, stratum by stratum, as the mean over them."""
    return mean([improvement(a, b) for a, b in zip(first, second, strict=True)])


def rank_p(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p of the rank-sum test (Mann-Whitney), exact for groups of up to 20."""
    doubled = _doubled_ranks([*first, *second])
    count, total = len(first), sum(doubled)
    expected = total * count / len(doubled)
    off = abs(sum(doubled[:count]) - expected)
    if max(count, len(second)) > _EXACT:
        spread = _rank_spread(doubled, count)
        return 1.0 if not spread else min(1.0, math.erfc(max(0.0, off - 1) / spread / math.sqrt(2)))
    ways = _sums(doubled, count)
    extreme = sum(times for rank_sum, times in ways.items() if abs(rank_sum - expected) >= off)
    return extreme / math.comb(len(doubled), count)


def _doubled_ranks(scores: Sequence[float]) -> list[int]:
    """Twice the rank of each score, ties sharing the mean of theirs: whole numbers."""
    ordered = sorted(scores)
    return [
        bisect.bisect_left(ordered, score) + bisect.bisect_right(ordered, score) + 1
        for score in scores
    ]


def _sums(values: Sequence[int], count: int) -> dict[int, int]:
    """How many ways there are to each sum of `count` of the values."""
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(count))]
    for value in values:
        for size in range(count, 0, -1):
            for before, times in ways[size - 1].items():
                ways[size][before + value] = ways[size].get(before + value, 0) + times
    return ways[count]


def _rank_spread(doubled: Sequence[int], count: int) -> float:
    """The standard deviation of a sum of `count` of these ranks, were there no difference."""
    size, middle = len(doubled), mean(doubled)
    variance = math.fsum((rank - middle) ** 2 for rank in doubled) / (size - 1)
    return math.sqrt(variance * count * (size - count) / size)


def seeds_to_decide(probability: float, level: float = LEVEL) -> int | None:
    """Seeds of each group with which a rank-sum test sees this probability of improvement in four
    of five cases (Noether's formula); None where that is more than MOST_SEEDS.
    """
    off = abs(probability - 0.5)
    if off < 1e-9:
        return None
    need = math.ceil((_Z_INTERVAL + _Z_POWER) ** 2 / (6 * off**2))
    while 2 / math.comb(2 * need, need) > level:  # fewer could not be told from chance at all
        need += 1
    return need if need <= MOST_SEEDS else None


@dataclass(frozen=True)
class Better:
    """How the first of two groups compares with the second."""

    probability: float
    """That a seed of the first is better than one of the second."""
    interval: Interval | None
    p: float
    decided: bool
    """Whether the interval leaves out one half, and the ranks are unlikely by chance alone."""
    more_seeds: int | None
    """Of each, to decide it if the difference is real; None: decided, or more than MOST_SEEDS."""


def compare(
    first: Sequence[float],
    second: Sequence[float],
    draws: tuple[Sequence[Strata], Sequence[Strata]],
    level: float = LEVEL,
) -> Better:
    """Two groups of at least one score each, larger being better.

    draws: their resamples, of one stratum each. level: the p below which it is decided.
    """
    probability, p = improvement(first, second), rank_p(first, second)
    found = None
    if min(len(first), len(second)) >= LEAST_SEEDS:
        pairs = zip(*draws, strict=True)
        found = interval_of([improvement_of(one, other) for one, other in pairs])
    decided = found is not None and not found[0] <= 0.5 <= found[1] and p <= level
    need = None if decided else seeds_to_decide(probability, level)
    have = min(len(first), len(second))
    return Better(probability, found, p, decided, need and max(1, need - have))
