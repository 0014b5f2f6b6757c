"""Curves of groups over steps or over time: what their seeds reached, and how sure that is (pure).

A group's curve goes on as long as all its counted seeds do: where one ended, a mean of the others
would jump, and not because anybody learned.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from runner.comparing import bootstrap
from runner.comparing.comparison import COUNTED, MISSING, Comparison, Summary
from runner.comparing.scores import Series

STEPS = "environment steps"
SECONDS = "running time"
GRID = 60
MOST_POINTS = 240
"""Of a seed's own line; more are averaged between neighbours."""
BAND_RESAMPLES = 1000
"""At each place of the curve; its ends are no figures that are told."""

Point = tuple[float, float]


@dataclass(frozen=True)
class SeedCurve:
    """One seed's own points."""

    run: str
    counted: bool
    points: tuple[Point, ...]


@dataclass(frozen=True)
class GroupCurve:
    """The IQM over a group's counted seeds, and its interval at each place."""

    label: str
    points: tuple[Point, ...]
    low: tuple[float, ...]
    """Empty where there are too few seeds for an interval."""
    high: tuple[float, ...]
    seeds: tuple[SeedCurve, ...]


def group_curves(found: Comparison, axis: str) -> list[GroupCurve]:
    """One for each group, in their order; without points where the axis has none."""
    return [_curve(group, axis, number) for number, group in enumerate(found.groups)]


def _curve(group: Summary, axis: str, number: int) -> GroupCurve:
    seeds = []
    for seed in group.seeds:
        points = _points(seed.series, axis)
        if points and seed.use in (COUNTED, MISSING):
            counted = seed.use == COUNTED
            seeds.append(SeedCurve(seed.series.run.id, counted, _averaged(points)))
    lines = [list(seed.points) for seed in seeds if seed.counted]
    if not lines or len(lines) < len(group.counted):
        return GroupCurve(group.label, (), (), (), tuple(seeds))
    first = max(line[0][0] for line in lines)
    last = min(line[-1][0] for line in lines)
    places = [first] if last == first else []
    if last > first:
        places = [first + (last - first) * i / (GRID - 1) for i in range(GRID)]
    points, low, high = [], [], []
    for i, place in enumerate(places):
        values = [value_at(line, place) for line in lines]
        points.append((place, bootstrap.iqm(values)))
        if len(values) >= bootstrap.LEAST_SEEDS:
            draws = bootstrap.resampled([values], BAND_RESAMPLES, number * GRID + i)
            ends = bootstrap.interval(bootstrap.iqm, draws)
            low.append(ends[0])
            high.append(ends[1])
    return GroupCurve(group.label, tuple(points), tuple(low), tuple(high), tuple(seeds))


def _points(series: Series, axis: str) -> list[Point]:
    if axis == STEPS:
        return [(float(step), value) for step, value in series.points]
    timed = [
        (seconds, value)
        for seconds, (_, value) in zip(series.seconds, series.points, strict=False)
        if seconds is not None
    ]
    return sorted(timed) if len(timed) == len(series.points) else []


def _averaged(points: Sequence[Point]) -> tuple[Point, ...]:
    """At most MOST_POINTS, each the mean of neighbours."""
    size = -(-len(points) // MOST_POINTS)
    parts = [points[i : i + size] for i in range(0, len(points), size)]
    return tuple((part[-1][0], bootstrap.mean([value for _, value in part])) for part in parts)


def value_at(line: Sequence[Point], place: float) -> float:
    """The value on the line between the points beside a place within it."""
    right = bisect_right(line, place, key=lambda point: point[0])
    if right == 0:
        return line[0][1]
    if right == len(line):
        return line[-1][1]
    (x0, y0), (x1, y1) = line[right - 1], line[right]
    return y0 + (y1 - y0) * (place - x0) / (x1 - x0)
