"""Which of a run's metrics is shown: the job's own choice, else the first known one (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runner.wire import is_metric

KNOWN_METRICS = ("eval/return", "reward", "charts/episodic_return", "rollout/ep_rew_mean")


def metric_of(metrics: Mapping[str, Any], chosen: str | None) -> tuple[str, float] | None:
    """The metric to show: the job's choice, else the first known one present."""
    for name in (chosen,) if chosen else KNOWN_METRICS:
        value: Any = metrics.get(name)
        if is_metric(value):
            return name, float(value)
    return None


def best_known(tables: Iterable[Mapping[str, Any]]) -> str | None:
    """The first known metric that is anywhere in a run: evaluations come later than rewards."""
    there: set[str] = set()
    for metrics in tables:
        found = metric_of(metrics, None)
        if found is not None:
            there.add(found[0])
    return next((name for name in KNOWN_METRICS if name in there), None)
