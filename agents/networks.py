"""Layers that several agents build their networks of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from acceleration import Head
from torch import nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
SMALLEST_PICTURE = 36  # pixels, so that the last convolution has something to look at


def orthogonal(layer: Layer, gain: float) -> Layer:
    """The layer, with orthogonal weights of this gain and without biases to begin with."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def perceptron(
    sizes: Sequence[int], between: type[nn.Module] = nn.ReLU, gains: Sequence[float] | None = None
) -> nn.Sequential:
    """(…, sizes[0]) to (…, sizes[-1]) by linear layers with an activation between them.

    gains: of orthogonal weights, one for each layer; without them they begin as torch has them.
    """
    layers: list[nn.Module] = []
    for k, (inward, outward) in enumerate(pairwise(sizes)):
        layer = (Head if k == len(sizes) - 2 else nn.Linear)(inward, outward)
        layers += [layer if gains is None else orthogonal(layer, gains[k]), between()]
    return nn.Sequential(*layers[:-1])


def convolutions(shape: Sequence[int], gain: float | None = None) -> tuple[list[nn.Module], int]:
    """Layers from pictures (B, *shape) to (B, numbers), and how many numbers these are.

    Source: Mnih et al., "Human-level control through deep reinforcement learning" (2015). shape:
    (channels, height, width), each side SMALLEST_PICTURE or more. gain: of orthogonal weights;
    without it they begin as torch has them.
    """
    channels, high, wide = shape
    layers: list[nn.Module] = []
    for filters, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
        layer = nn.Conv2d(channels, filters, size, stride)
        layers += [layer if gain is None else orthogonal(layer, gain), nn.ReLU()]
        channels, high, wide = filters, (high - size) // stride + 1, (wide - size) // stride + 1
    return [*layers, nn.Flatten()], channels * high * wide
