"""What is gathered before it is learned from: some steps of each environment, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from environments import Facts
from episodes import Episodes
from numpy.typing import NDArray

Floats = NDArray[np.float32]
NO_LIMITS = np.zeros(0, np.int64)


class Acts(Protocol):
    """A policy that can act at random."""

    facts: Facts
    log_std: Floats

    def outputs(self, seen: NDArray[Any]) -> Floats:
        """(n, *shape) observations to (n, k) logits or means."""

    def in_box(self, drawn: Floats) -> Floats:
        """Actions within the environment's box, from (n, k) as drawn."""


class Rollout:
    """What a rank's n environments went through in `steps` steps each, or fewer at the end."""

    def __init__(self, steps: int, n: int, facts: Facts) -> None:
        kind = torch.uint8 if facts.image else torch.float32
        # torch aligns its memory, so that sums come out the same in the next process
        self.seen: NDArray[Any] = torch.zeros(steps + 1, n, *facts.shape, dtype=kind).numpy()
        shape, kind = ((), torch.int64) if facts.actions else (facts.low.shape, torch.float32)
        self.actions: NDArray[Any] = torch.zeros(steps, n, *shape, dtype=kind).numpy()
        self.rewards: Floats = torch.zeros(steps, n).numpy()
        self.terminated, self.truncated = np.zeros((2, steps, n), np.bool_)
        self.limits: list[NDArray[Any]] = []  # observations reached at time limits, in order
        self.length = 0

    def collect(self, envs: Episodes, policy: Acts, rng: np.random.Generator, rows: int) -> None:
        """Step each environment `rows` times, by actions drawn from the policy."""
        self.length = rows
        self.limits.clear()
        self.terminated[:rows] = self.truncated[:rows] = False
        discrete, n = policy.facts.actions, len(envs.envs)
        # the likeliest of logits with Gumbel noise is a draw by their probabilities
        noise = (
            rng.gumbel(size=(rows, n, discrete)).astype(np.float32) if discrete
            else rng.standard_normal((rows, *self.actions.shape[1:]), np.float32)
            * np.exp(policy.log_std)
        )  # fmt: skip
        for t in range(rows):
            self.seen[t] = envs.seen
            drawn = policy.outputs(envs.seen) + noise[t]
            if discrete:
                self.actions[t] = chosen = drawn.argmax(1)
                given = chosen.tolist()
            else:
                self.actions[t], given = drawn, policy.in_box(drawn)
            rewards = self.rewards[t]
            for i, action in enumerate(given):
                after, rewards[i], real, limit = envs.step(i, action)
                if real:
                    self.terminated[t, i] = True
                elif limit:
                    self.truncated[t, i] = True
                    self.limits.append(np.array(after, self.seen.dtype))
        self.seen[rows] = envs.seen

    def first_bad(self) -> int | None:
        """How many steps lead to the first reward or observation that is not finite."""
        at, rows = np.nonzero(self.truncated[: self.length])[0], self.length
        return first_bad(self.rewards[:rows], self.seen[: rows + 1], at, self.limits)


def first_bad(
    rewards: Floats, seen: NDArray[Any],
    limits: NDArray[np.int64] = NO_LIMITS, reached: Sequence[NDArray[Any]] | NDArray[Any] = (),
) -> int | None:  # fmt: skip
    """How many steps lead to the first reward or observation that is not finite, if there is one.

    rewards: (T, …). seen: (T + 1, …). limits: (L,), the steps, counted from 0, that met a time
    limit; reached: (L, …), what they reached.
    """
    bad = [np.argwhere(~np.isfinite(rewards))[:, 0] + 1, np.argwhere(~np.isfinite(seen))[:, 0]]
    bad += [limits[k : k + 1] + 1 for k, at in enumerate(reached) if not np.isfinite(at).all()]
    steps = np.concatenate(bad)
    return int(steps.min()) if len(steps) else None
