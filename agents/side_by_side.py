"""Networks of the same sizes side by side: one operation serves a layer of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Floats = NDArray[np.float32]


class SideBySide(nn.Module):
    """So many perceptrons of the same sizes, which share nothing but the call.

    between: the activation between layers. gain: of orthogonal weights, without biases to begin
    with; without it they begin as torch has them.
    """

    def __init__(
        self, count: int, sizes: Sequence[int], between: Callable[[Tensor], Tensor] = torch.relu,
        gain: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.count, self.between = count, between
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inward, outward in pairwise(sizes):
            limit = inward**-0.5  # as torch begins a Linear layer
            weight = torch.empty(count, inward, outward).uniform_(-limit, limit)
            bias = torch.empty(count, 1, outward).uniform_(-limit, limit)
            if gain is not None:
                bias.zero_()
                for one in weight:
                    nn.init.orthogonal_(one, gain)
            self.weights.append(weight)
            self.biases.append(bias)
        # looked up once: a ParameterList takes its time
        self.layers = list(zip(self.weights, self.biases, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sizes[0]) that all see to (count, batch, sizes[-1])."""
        x = x.expand(self.count, -1, -1)
        for weight, bias in self.layers[:-1]:
            x = self.between(torch.baddbmm(bias, x, weight))
        weight, bias = self.layers[-1]
        return torch.baddbmm(bias, x, weight)

    def in_numpy(self, which: int) -> list[tuple[Floats, Floats]]:
        """Weights (in, out) and biases (out,) of one of them: the same memory, on a CPU."""
        return [(w[which].detach().numpy(), b[which, 0].detach().numpy()) for w, b in self.layers]
