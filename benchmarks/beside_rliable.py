"""The statistics of `compare` beside rliable's, both computed now on the same numbers.

    pip install -e '.[statistics]'
    python benchmarks/beside_rliable.py [reps=50000]

Estimates and the probability of improvement must be the same numbers; the ends of intervals are
drawn by either with its own generator, and are compared by the width of rliable's interval.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pairs
import readings
from readings import Reading
from rliable import library, metrics  # type: ignore[import-not-found,unused-ignore]

from runner.comparing import bootstrap

GROUPS = {
    "five close": [487.0, 500.0, 402.0, 471.5, 495.0],
    "five wide": [431.0, 187.0, 489.0, 318.25, 455.0],
    "three": [12.5, 14.0, 9.75],
    "with ties": [2.0, 2.0, 0.0, 3.0, 5.0, 1.0],
    "one far off": [12.5, 14.0, 9.75, 30.0, 11.0, 2900.0],
    "negative": [-120.0, -180.5, -151.0, -165.25, -149.0, -170.0, -133.0, -190.0],
}
AT_MOST_SHARE = 0.03
"""Of an interval's width, between ends that are drawn."""


def of_rliable(kind: str, scores: list[float], reps: int) -> tuple[float, float, float]:
    """An estimate and its interval."""
    aggregate = {"IQM": metrics.aggregate_iqm, "mean": metrics.aggregate_mean}[kind]

    def function(rows: Any) -> Any:
        return np.array([aggregate(rows)])

    table = {"a": np.array(scores)[:, None]}
    state = np.random.RandomState(0)
    found, ends = library.get_interval_estimates(table, function, reps=reps, random_state=state)
    return float(found["a"][0]), float(ends["a"][0][0]), float(ends["a"][1][0])


def estimates(reps: int) -> list[Reading]:
    """How far ours lie from rliable's, of each statistic over all groups."""
    made = []
    for kind, statistic in (("IQM", bootstrap.iqm), ("mean", bootstrap.mean)):
        values, shares = [], []
        for scores in GROUPS.values():
            value, low, high = of_rliable(kind, scores, reps)
            ours = bootstrap.interval(statistic, bootstrap.resampled([scores], reps))
            values.append(abs(statistic(scores) - value) / max(1.0, abs(value)))
            shares += [abs(a - b) / (high - low) for a, b in zip(ours, (low, high), strict=True)]
        made.append(Reading(f"{kind}: the largest difference", "", [max(values)], 1e-9))
        told = "of the interval's width, the ends"
        made.append(Reading(f"{kind}: {told}", "", [max(shares)], AT_MOST_SHARE))
    return made


def improvements() -> Reading:
    """The same of the probability of improvement, over all pairs of groups."""
    found = []
    for first in GROUPS.values():
        for second in GROUPS.values():
            theirs = metrics.probability_of_improvement(
                np.array(first)[:, None], np.array(second)[:, None]
            )
            found.append(abs(bootstrap.improvement(first, second) - float(theirs)))
    return Reading("probability of improvement: the largest difference", "", [max(found)], 1e-9)


def main(words: list[str]) -> None:
    """Compute and report."""
    reps = int(pairs.settings(words, {"reps": "50000"})["reps"])
    title = f"beside rliable, {len(GROUPS)} groups of 3 to 8 scores, {reps:,} resamples"
    readings.report("beside-rliable", title, [*estimates(reps), improvements()])


if __name__ == "__main__":
    main(sys.argv[1:])
