"""Groups of seeds compared at one step: scores, intervals, what is missing and what that may mean.

Nothing is left out without being named: a run that has no score at the step is among `missing`, and
what the result would be if it had been as bad as the worst seed is computed beside it. (pure)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.comparing import bootstrap
from runner.comparing.bootstrap import Better, Interval, Strata
from runner.comparing.groups import (
    Configuration,
    Differences,
    Group,
    differences,
    group_runs,
    seed_of,
)
from runner.comparing.scores import Series, common_step, score_at

COUNTED = "counted"
SAME_SEED = "same-seed"
"""Another run of the group has the same seed and came later."""
MISSING = "missing"


@dataclass(frozen=True)
class Seed:
    """One run in its group."""

    series: Series
    seed: str | None
    use: str
    """COUNTED, MISSING or SAME_SEED."""
    score: float | None


@dataclass(frozen=True)
class Estimate:
    """A statistic and its interval; None where there are too few seeds for one."""

    value: float
    interval: Interval | None


@dataclass(frozen=True)
class Summary:
    """A group with its scores."""

    label: str
    configuration: Configuration
    seeds: tuple[Seed, ...]
    iqm: Estimate | None
    mean: Estimate | None
    iqm_with_missing: float | None
    """The IQM if each missing seed had the worst score of all groups; None: none is missing."""

    @property
    def counted(self) -> tuple[Seed, ...]:
        """The seeds that have a score."""
        return tuple(seed for seed in self.seeds if seed.use == COUNTED)

    @property
    def missing(self) -> tuple[Seed, ...]:
        """Those that should have one, and have none."""
        return tuple(seed for seed in self.seeds if seed.use == MISSING)

    @property
    def scores(self) -> list[float]:
        """The scores that count."""
        return [seed.score for seed in self.counted if seed.score is not None]


@dataclass(frozen=True)
class Pair:
    """The best group and another one."""

    best: int
    other: int
    better: Better
    differences: Differences
    with_missing: float | None
    """The probability if each missing seed had the worst score; None where none is missing."""


@dataclass(frozen=True)
class Comparison:
    """What `compare` tells."""

    metric: str
    step: int
    lower: bool
    """Smaller values are better."""
    groups: tuple[Summary, ...]
    pairs: tuple[Pair, ...]
    differences: Differences
    """Among all groups."""
    gone: tuple[str, ...] = ()
    """Members of the sweeps that are on no host any more."""
    level: float = bootstrap.LEVEL
    """The p below which a pair is decided: less where there are several."""

    @property
    def held_back(self) -> tuple[Seed, ...]:
        """Seeds that went on as far as others did, but whose values end where all are compared.

        So it is where a value is no number from some step on: such values are not kept.
        """
        counted = [seed for group in self.groups for seed in group.counted]
        furthest = max((seed.series.reach or 0 for seed in counted), default=0)
        return tuple(
            seed
            for seed in counted
            if seed.series.reach == self.step < furthest <= (seed.series.run.step or 0)
        )


def compare(
    series: Sequence[Series],
    metric: str,
    *,
    step: int | None = None,
    lower: bool = False,
    gone: Sequence[str] = (),
    pool_code: bool = False,
) -> Comparison | None:
    """The comparison at a step, or at the last one that all can be compared at.

    pool_code: as of `group_runs`. None where no run has a value by then.
    """
    by_id = {each.run.id: each for each in series}
    found = group_runs([each.run for each in series], pool_code=pool_code)
    members = [[by_id[run.id] for run in group.runs] for group in found]
    at = step if step is not None else common_step(members)
    if at is None:
        return None
    seeds = [_seeds(group, at, metric) for group in members]
    scores = [[seed.score for seed in group if seed.score is not None] for group in seeds]
    if not any(scores):
        return None
    everything = [score for group in scores for score in group]
    worst = max(everything) if lower else min(everything)
    draws = [
        bootstrap.resampled([mine], stream=number) if len(mine) >= bootstrap.LEAST_SEEDS else []
        for number, mine in enumerate(scores)
    ]
    groups = [
        _summary(group, tuple(mine), worst, drawn)
        for group, mine, drawn in zip(found, seeds, draws, strict=True)
    ]
    pairs, level = _pairs(groups, draws, worst, lower)
    alike = differences([group.configuration for group in groups])
    return Comparison(metric, at, lower, tuple(groups), pairs, alike, tuple(gone), level)


def _seeds(group: Sequence[Series], step: int, metric: str) -> list[Seed]:
    """Each run's score and use. Of runs with one seed the last that has a score counts."""
    scores = [score_at(each, step, metric) for each in group]
    names = [seed_of(each.run) for each in group]
    chosen: dict[str, int] = {}
    for i, name in enumerate(names):
        if name is None:
            continue
        before = chosen.get(name)
        if before is None or scores[before] is None or scores[i] is not None:
            chosen[name] = i
    seeds = []
    for i, each in enumerate(group):
        name, score = names[i], scores[i]
        if name is not None and chosen[name] != i:
            seeds.append(Seed(each, name, SAME_SEED, None))
        else:
            seeds.append(Seed(each, name, MISSING if score is None else COUNTED, score))
    return seeds


def _summary(
    group: Group, seeds: tuple[Seed, ...], worst: float, draws: Sequence[Strata]
) -> Summary:
    scores = [seed.score for seed in seeds if seed.score is not None]
    lost = sum(seed.use == MISSING for seed in seeds)
    with_missing = bootstrap.iqm(scores + [worst] * lost) if lost and scores else None
    iqm = mean = None
    if scores:
        iqm = Estimate(
            bootstrap.iqm(scores), bootstrap.interval(bootstrap.iqm, draws) if draws else None
        )
        mean = Estimate(
            bootstrap.mean(scores), bootstrap.interval(bootstrap.mean, draws) if draws else None
        )
    return Summary(group.label, group.configuration, seeds, iqm, mean, with_missing)


def _pairs(
    groups: Sequence[Summary], draws: Sequence[Sequence[Strata]], worst: float, lower: bool
) -> tuple[tuple[Pair, ...], float]:
    """The best group beside each other one that has scores, and the p that decides.

    Best is who has the best IQM; several pairs share the 5 % between them.
    """
    values = {i: group.iqm.value for i, group in enumerate(groups) if group.iqm is not None}
    if len(values) < 2:
        return (), bootstrap.LEVEL
    best = (min if lower else max)(values, key=values.__getitem__)
    others = [i for i in values if i != best]
    level = bootstrap.LEVEL / len(others)
    pairs = []
    for other in others:
        # that a score is smaller is as probable as that one of the other group is larger
        high, low = (other, best) if lower else (best, other)
        first, second = groups[high], groups[low]
        with_missing = None
        if first.missing or second.missing:
            with_missing = bootstrap.improvement(
                *(each.scores + [worst] * len(each.missing) for each in (first, second))
            )
        pairs.append(
            Pair(
                best,
                other,
                bootstrap.compare(first.scores, second.scores, (draws[high], draws[low]), level),
                differences([groups[best].configuration, groups[other].configuration]),
                with_missing,
            )
        )
    return tuple(pairs), level
