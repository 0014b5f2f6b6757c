"""Advantages of a rollout, by generalised advantage estimation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from runtime import Run

Floats = NDArray[np.float32]


def gae(
    rewards: Floats, values: Floats, reached: Floats, ended: NDArray[np.bool_],
    *, gamma: float, lam: float,
) -> Floats:  # fmt: skip
    """(T, n) advantages; a return to learn values from is advantage + value.

    Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation"
    (2016). All arguments are (T, n). values: of the observation acted on. reached: of the
    observation that step reached: 0 after a real end, its value at a time limit. ended: whether
    the step ended its episode, either way; nothing is summed across that.
    """
    deltas = rewards + gamma * reached - values
    through = gamma * lam * (1.0 - ended.astype(np.float32))
    out = np.empty_like(deltas)
    sum_ = np.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        sum_ = deltas[t] + through[t] * sum_
        out[t] = sum_
    return out


def normalised(advantage: Floats, run: Run) -> Floats:
    """Of mean 0 and deviation 1 over the rollouts of all ranks; a collective call."""
    wide = advantage.astype(np.float64)
    count, total = run.reduce_sum(np.array([wide.size, wide.sum()]))
    wide -= total / count
    squares = run.reduce_sum(np.array([np.square(wide).sum()]))[0]
    return (wide / (np.sqrt(squares / count) + 1e-8)).astype(np.float32)
