"""What proximal policy optimisation makes greater: the clipped gain, and the policy's entropy.

Source: Schulman et al., "Proximal Policy Optimization Algorithms" (2017). Log probabilities and
entropies come with a minus, which saves operations: for small networks each costs as much as a
layer does.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def choices(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Of each choice minus its log probability (B,), and minus the sum of the entropies.

    logits: (B, k). actions: (B,) int64, counted from 0.
    """
    logs = torch.log_softmax(logits, dim=1)
    return F.nll_loss(logs, actions, reduction="none"), (logs.exp() * logs).sum()


def densities(means: Tensor, log_std: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Of each action minus its log density (B,), and minus the sum of the entropies.

    means, actions: (B, k), actions as they were drawn. log_std: (k,).
    """
    count, k = means.shape
    squares = ((actions - means) * torch.exp(-log_std)).square().sum(1)
    whole = log_std.sum() + 0.5 * k * math.log(2 * math.pi)
    return 0.5 * squares + whole, -count * (whole + 0.5 * k)


def bound(advantages: Tensor, clip: float) -> Tensor:
    """The most that a step can gain, whose probability may move by this share."""
    return advantages + clip * advantages.abs()


def gains(moved: Tensor, advantages: Tensor, most: Tensor) -> Tensor:
    """The clipped gains (B,). moved: log ratios of new probabilities to old; most: as of `bound`.

    min(rA, clip(r, 1 - c, 1 + c) A) is min(rA, A + c |A|), whichever the sign of A.
    """
    return torch.minimum(moved.exp() * advantages, most)
