"""Actions from a Gaussian that is squashed into a finite box, by torch to learn, by numpy to act.

Source: Haarnoja et al., "Soft Actor-Critic Algorithms and Applications" (2018).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch.nn.functional as F
from networks import perceptron
from numpy.typing import NDArray
from parameters import NumpyNetwork, layers_of
from torch import Tensor, nn

Floats = NDArray[np.float32]
LOG_STD = (-20.0, 2.0)  # limits of the logarithm of the policy's deviation, as published


class Actor(nn.Module):
    """A normal distribution squashed by tanh. sizes: (numbers seen, width, …, 2 * numbers acted).

    Its actions lie in [-1, 1]: what the box's own units are makes no difference to what is learned.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.layers = perceptron(sizes)

    def forward(self, seen: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, seen) and standard normal (batch, acted) to (batch, acted) and (batch,) log p."""
        mean, log_std = self.layers(seen).chunk(2, dim=-1)
        log_std = log_std.clamp(*LOG_STD)
        raw = mean + log_std.exp() * noise
        return raw.tanh(), squashed_log_prob(raw, noise, log_std)


def squashed_log_prob(raw: Tensor, noise: Tensor, log_std: Tensor) -> Tensor:
    """(batch,) logarithms of the densities of tanh(raw), raw = mean + exp(log_std) * noise.

    log(1 - tanh(x)^2) is written 2 * (log 2 - x - softplus(-2x)), which stays exact where tanh
    has rounded to 1. In a box, of half width h, the density is that of its share [-1, 1] over h.
    """
    normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return (normal - 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))).sum(-1)


class Policy:
    """The policy of a flat vector of an Actor's parameters, in numpy; sizes as the Actor's."""

    def __init__(self, flat: Tensor, sizes: Sequence[int], low: Floats, high: Floats) -> None:
        self.network = NumpyNetwork(layers_of(flat.numpy(), sizes))
        self.low, self.high = low, high
        ends = low.astype(np.float64), high.astype(np.float64)  # a float32 box may be too wide
        self.centre, self.half = (ends[0] + ends[1]) / 2, (ends[1] - ends[0]) / 2

    def __call__(self, observations: Floats) -> Floats:
        """The greedy policy: (n, numbers) observations to (n, acted) within the box."""
        mean = self.network(observations)[:, : len(self.low)]
        return self.in_box(np.tanh(mean))

    def sample(self, observations: Floats, noise: Floats) -> Floats:
        """(n, numbers) observations and standard normal (n, acted) to (n, acted) in [-1, 1]."""
        mean, log_std = np.split(self.network(observations), 2, axis=1)
        return np.tanh(mean + np.exp(np.clip(log_std, *LOG_STD)) * noise)

    def in_box(self, share: Floats) -> Floats:
        """(n, acted) in [-1, 1] to the box, all of it and nothing beside it."""
        return np.clip((self.centre + self.half * share).astype(np.float32), self.low, self.high)
