"""An actor and a critic, of numbers or of pictures, and the policy that acts by them.

Sources: the network for pictures of Mnih et al., "Human-level control through deep reinforcement
learning" (2015); starting weights after Huang et al., "The 37 Implementation Details of Proximal
Policy Optimization" (2022).

Continuous actions are drawn from a Gaussian whose deviation does not depend on the observation,
in units of the box: -1 and 1 are its sides, so one `log_std_start` fits any box. What falls
outside is cut at the side only when it is given to the environment: every point of the box can be
reached, its sides too, and the Gaussian's probabilities stay those of what was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from acceleration import Head
from environments import Facts
from networks import SMALLEST_PICTURE, convolutions, orthogonal
from normalise import RunningMoments
from numpy.typing import NDArray
from options import Refused
from parameters import NumpyNetwork
from side_by_side import SideBySide
from torch import Tensor, nn

Floats = NDArray[np.float32]


class Network(nn.Module):
    """(B, *shape) observations to logits or means (B, k), and values (B,).

    Of flat observations actor and critic learn apart; of pictures they share a trunk. log_std: (k,)
    of continuous actions, empty where they are discrete.
    """

    def __init__(
        self, facts: Facts, *, hidden: int, activation: str, log_std_start: float = 0.0
    ) -> None:
        super().__init__()
        self.facts, self.activation = facts, activation
        self.between = torch.tanh if activation == "tanh" else torch.relu
        self.log_std = nn.Parameter(torch.full((len(facts.low),), log_std_start))
        if facts.image:
            hidden = 512
            self.trunk: nn.Module = picture_trunk(facts.shape, hidden)
        else:
            sizes = (facts.numbers, hidden, hidden)
            self.trunk = SideBySide(2, sizes, self.between, math.sqrt(2))
        self.actor, self.critic = (
            orthogonal(Head(hidden, last), gain)
            for last, gain in ((facts.actions or len(facts.low), 0.01), (1, 1.0))
        )

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Both at once."""
        if self.facts.image:
            acting = judging = self.trunk(seen / 255.0)
        else:
            acting, judging = self.between(self.trunk(seen))
        return self.actor(acting), self.critic(judging).squeeze(1)


def picture_trunk(shape: tuple[int, ...], width: int) -> nn.Sequential:
    """(B, channels, height, width) to (B, width). Raises Refused for pictures too small."""
    if min(shape[1:]) < SMALLEST_PICTURE:
        raise Refused(f"pictures of {shape[1]} by {shape[2]} are too small; each side must be "
                      f"{SMALLEST_PICTURE} or more")  # fmt: skip
    layers, numbers = convolutions(shape, math.sqrt(2))
    return nn.Sequential(*layers, orthogonal(nn.Linear(numbers, width), math.sqrt(2)), nn.ReLU())


class Policy:
    """What a network does: greedy actions when called, and what acting at random needs.

    The network is read anew each time: on flat observations by numpy, so it lies in a CPU's
    memory; pictures go through it where it is. moments: what observations are normalised by.
    """

    def __init__(self, network: Network, moments: RunningMoments | None) -> None:
        self.network, self.moments, self.facts = network, moments, network.facts
        low, high = self.facts.low, self.facts.high
        self.centre, self.half = low + (high - low) / 2, (high - low) / 2
        self._log_std = network.log_std.detach()
        self.act: Callable[[NDArray[Any]], Floats] = self._through
        if isinstance(network.trunk, SideBySide):
            head = network.actor.weight.detach().numpy().T, network.actor.bias.detach().numpy()
            self.act = NumpyNetwork([*network.trunk.in_numpy(0), head], network.activation)

    @property
    def log_std(self) -> Floats:
        """Of continuous actions, in units of half the box: (k,)."""
        log_std: Floats = self._log_std.cpu().numpy()
        return log_std

    @torch.no_grad()
    def _through(self, seen: NDArray[Any]) -> Floats:
        on_device = torch.from_numpy(seen).to(self.network.log_std.device)
        outputs: Floats = self.network(on_device)[0].cpu().numpy()
        return outputs

    def normal(self, seen: NDArray[Any]) -> NDArray[Any]:
        """Observations as the network wants them."""
        return seen if self.moments is None else self.moments.apply(seen)

    def outputs(self, seen: NDArray[Any]) -> Floats:
        """(n, *shape) observations to (n, k) logits or means."""
        return self.act(self.normal(seen))

    def in_box(self, drawn: Floats) -> Floats:
        """Actions within the environment's box, from (n, k) in units of half of it."""
        return np.clip(self.centre + self.half * drawn, self.facts.low, self.facts.high)

    def __call__(self, seen: NDArray[Any]) -> NDArray[Any]:
        """(n, *shape) observations to n actions: the likeliest choice, or the mean."""
        outputs = self.outputs(seen)
        return outputs.argmax(1) if self.facts.actions else self.in_box(outputs)


def described(network: Network, hidden: int) -> dict[str, Any]:
    """What `rebuilt` must know, for a checkpoint."""
    f = network.facts
    return {
        "hidden": hidden, "activation": network.activation,
        "shape": list(f.shape), "image": f.image, "actions": f.actions,
        "low": torch.from_numpy(f.low), "high": torch.from_numpy(f.high),
    }  # fmt: skip


def rebuilt(described: dict[str, Any], params: Tensor) -> Network:
    """The network that `described` tells of, with these parameters."""
    kept = dict(described)
    low, high = (kept.pop(side).numpy() for side in ("low", "high"))
    shape, image, actions = (kept.pop(name) for name in ("shape", "image", "actions"))
    network = Network(Facts(tuple(shape), image, actions, low, high, exact=False), **kept)
    nn.utils.vector_to_parameters(params, network.parameters())
    return network
