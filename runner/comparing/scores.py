"""What a seed reached at a step, and which step all can be compared at (pure)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runner import states
from runner.comparing import bootstrap
from runner.wire import RunStatus

WINDOW = 0.1
"""Of the steps so far: over so many the values of what is no evaluation are averaged."""
MOST = 1e150
"""Larger values count as this, so that sums and squares of them are numbers."""


@dataclass(frozen=True)
class Series:
    """One run and its metric, by step; only finite values."""

    run: RunStatus
    host: str
    points: tuple[tuple[int, float], ...] = ()
    seconds: tuple[float | None, ...] = ()
    """How long the run had run at each point, without the pauses between attempts."""
    problem: str | None = None
    """Why nothing is known of its points: what kept us from its host."""

    @property
    def reach(self) -> int | None:
        """The last step with a value."""
        return self.points[-1][0] if self.points else None

    @property
    def is_done(self) -> bool:
        """Whether it ended as it should."""
        return self.run.state == states.ENDED and self.run.outcome == states.DONE

    @property
    def is_going(self) -> bool:
        """Whether more may come."""
        return self.run.state != states.ENDED


def series_of(
    run: RunStatus,
    host: str,
    metric: str,
    rows: Iterable[tuple[int, Mapping[str, float]]],
    seconds: Sequence[float | None] = (),
) -> Series:
    """A run's points of one metric."""
    points, times = [], []
    for i, (step, metrics) in enumerate(rows):
        value = metrics.get(metric)
        if value is not None and math.isfinite(value):
            points.append((step, max(-MOST, min(MOST, value))))
            times.append(seconds[i] if i < len(seconds) else None)
    return Series(run, host, tuple(points), tuple(times))


def is_evaluation(metric: str) -> bool:
    """Whether each value is a mean over episodes already, so that the newest one counts alone."""
    return "eval" in metric.lower()


def score_at(series: Series, step: int, metric: str) -> float | None:
    """What a run reached by a step; None where it did not come so far.

    Of an evaluation the newest value up to the step, of anything else the mean over the last tenth
    of the steps.
    """
    if series.reach is None or series.reach < step:
        return None
    end = bisect_right(series.points, (step, math.inf))
    if end == 0:
        return None
    last = series.points[end - 1]
    if is_evaluation(metric):
        return last[1]
    first = last[0] - WINDOW * abs(step)
    begin = min(end - 1, bisect_right(series.points, (math.floor(first), math.inf)))
    return bootstrap.mean([value for _, value in series.points[begin:end]])


def common_step(groups: Sequence[Sequence[Series]]) -> int | None:
    """The last step that all done seeds reached; of a group with none, those that still go on.

    A group of failed seeds alone has no say. None: nobody has a value.
    """
    reached = []
    for group in groups:
        done = [each.reach for each in group if each.is_done and each.reach is not None]
        going = [each.reach for each in group if each.is_going and each.reach is not None]
        reached += done or going
    left = [each.reach for group in groups for each in group if each.reach is not None]
    return min(reached) if reached else max(left, default=None)
