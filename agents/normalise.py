"""Running means and deviations of observations and returns, the same on every rank.

Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances" (1979), over batches that all ranks have reduced.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from runtime import Run

Floats = NDArray[np.float32]


class RunningMoments:
    """Count, mean and variance of all rows seen so far. shape: of one row."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0.0
        self.mean, self.var = np.zeros(shape), np.ones(shape)

    def update(self, rows: NDArray[Any], run: Run) -> None:
        """Take in (n, *shape) rows of this rank, and those of the others; a collective call."""
        shape = self.mean.shape
        rows = np.asarray(rows, np.float64).reshape(len(rows), self.mean.size)
        counted = run.reduce_sum(np.concatenate([[len(rows)], rows.sum(0)]))
        count = float(counted[0])  # a number of Python's, for model.pt holds none of numpy's
        if count == 0:
            return
        mean = counted[1:] / count
        # around the mean itself: a difference of squares loses small deviations of large numbers
        scatter = run.reduce_sum(np.square(rows - mean).sum(0))
        mean, scatter = mean.reshape(shape), scatter.reshape(shape)
        delta, whole = mean - self.mean, self.count + count
        scatter = self.var * self.count + scatter + np.square(delta) * self.count * count / whole
        # asarray: numpy turns what has no dimensions into a scalar
        self.var = np.asarray(scatter / whole)
        self.mean = np.asarray(self.mean + delta * count / whole)
        self.count = whole

    def apply(self, rows: NDArray[Any], limit: float = 10.0) -> Floats:
        """Rows of mean 0 and deviation 1, cut at the limit."""
        scaled = (rows - self.mean) / np.sqrt(self.var + 1e-8)
        return np.clip(scaled, -limit, limit).astype(np.float32)

    def state(self) -> dict[str, Any]:
        """For a checkpoint: numbers and tensors."""
        return {
            "count": self.count, "mean": torch.from_numpy(self.mean.copy()),
            "var": torch.from_numpy(self.var.copy()),
        }  # fmt: skip

    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned."""
        self.count = state["count"]
        self.mean, self.var = state["mean"].numpy().copy(), state["var"].numpy().copy()


class RewardScale:
    """Rewards over the deviation of their discounted sums; their mean is left as it is."""

    def __init__(self, num_envs: int, gamma: float) -> None:
        self.gamma = gamma
        self.moments = RunningMoments(())
        self._sums = np.zeros(num_envs)

    def update(self, rewards: Floats, ended: NDArray[np.bool_], run: Run) -> None:
        """Take in a rollout: (T, n) rewards and whether each ended its episode; collective."""
        rows = np.empty(rewards.shape)
        for t in range(len(rewards)):
            self._sums = self._sums * self.gamma + rewards[t]
            rows[t] = self._sums
            self._sums[ended[t]] = 0.0
        self.moments.update(rows.reshape(-1), run)

    def apply(self, rewards: Floats, limit: float = 10.0) -> Floats:
        """Scaled rewards, cut at the limit."""
        scaled = rewards / np.sqrt(self.moments.var + 1e-8)
        return np.clip(scaled, -limit, limit).astype(np.float32)

    def state(self) -> dict[str, Any]:
        """For a checkpoint; `own` is this rank's alone."""
        return {"moments": self.moments.state(), "own": self._sums.tolist()}

    def load(self, state: dict[str, Any], own: list[float]) -> None:
        """Take up what `state` returned. own: this rank's part of it."""
        self.moments.load(state["moments"])
        self._sums = np.asarray(own)
