"""Parameters of a network as one vector: for the optimiser, the ranks, and acting by numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from runtime import Run
from torch.optim.adam import adam

Floats = NDArray[np.float32]


def flatten_parameters(module: torch.nn.Module) -> torch.nn.Parameter:
    """One vector holding all parameters of `module`, which become views of it.

    Its `.grad` is one vector too, which backward() fills. One fused Adam step, one norm and one
    all-reduce then serve any number of layers: 1.3 to 1.9 times quicker on a CPU.
    """
    parameters = list(module.parameters())
    flat = torch.nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = flat.data[start:end].view(parameter.shape)
        parameter.grad = flat.grad[start:end].view(parameter.shape)
        start = end
    return flat


class Adam:
    """Adam for one flat vector (Kingma and Ba, 2015): torch's fused step, called as a function.

    torch.optim's class imports torch's compiler when first used, 1.2 s of CPU at each start, and
    takes longer than the step itself.
    """

    def __init__(self, flat: torch.nn.Parameter, *, eps: float = 1e-8) -> None:
        self.flat, self.eps = flat, eps
        self.count = torch.zeros((), device=flat.device)
        self.mean, self.square = (torch.zeros_like(flat, requires_grad=False) for _ in range(2))

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """One update by `flat.grad`."""
        assert self.flat.grad is not None
        adam(
            [self.flat], [self.flat.grad], [self.mean], [self.square], [], [self.count],
            fused=True, amsgrad=False, beta1=0.9, beta2=0.999, lr=lr, weight_decay=0.0,
            eps=self.eps, maximize=False,
        )  # fmt: skip

    def state(self) -> dict[str, torch.Tensor]:
        """For a checkpoint, on the CPU."""
        return {"count": self.count.cpu(), "mean": self.mean.cpu(), "square": self.square.cpu()}

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Take up what `state` returned, on whatever device."""
        for mine, kept in zip((self.count, self.mean, self.square), state.values(), strict=True):
            mine.copy_(kept)


class Descent:
    """All parameters of a module, which Adam moves down the gradients of losses.

    theta: the parameters as one vector, the same bits on every rank. most: length of a gradient
    beyond which it is scaled down; tiny: added to its length before that, as torch does.
    """

    def __init__(
        self, module: torch.nn.Module, run: Run, *, most: float, eps: float = 1e-8,
        tiny: float = 1e-6,
    ) -> None:  # fmt: skip
        self.run, self.most, self.tiny = run, most, tiny
        self.parameters = list(module.parameters())
        self.theta = flatten_parameters(module)
        self.adam = Adam(self.theta, eps=eps)

    def step(self, loss: torch.Tensor, lr: float, *, clipped: int | None = None) -> torch.Tensor:
        """One update by the ranks' mean gradient. Returns its length before it was scaled.

        clipped: how many numbers are measured and scaled, from the first on; all by default.
        """
        gradient = self.theta.grad
        assert gradient is not None
        gradient.zero_()
        loss.backward(inputs=self.parameters)  # not of other modules that it runs through
        self.run.average(gradient)
        norm = gradient[:clipped].norm()
        gradient[:clipped].mul_((self.most / (norm + self.tiny)).clamp(max=1.0))
        self.adam.step(lr)
        return norm

    def held(self) -> dict[str, torch.Tensor]:
        """All vectors, by the names that a fault says."""
        return {"parameters": self.theta, **self.adam.state()}

    def state(self) -> dict[str, Any]:
        """For a checkpoint, on the CPU."""
        return {"params": self.theta.detach().cpu(), "optimizer": self.adam.state()}

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """Take up what `state` returned, on whatever device."""
        self.theta.copy_(state["params"])
        self.adam.load(state["optimizer"])


Layer = tuple[Floats, Floats]  # weights (in, out) and biases (out,)


class NumpyNetwork:
    """A multilayer perceptron, 7 times quicker for one observation; its layers are read anew.

    between: the activation, `relu` or `tanh`.
    """

    def __init__(self, layers: Sequence[Layer], between: str = "relu") -> None:
        self.layers, self._tanh = layers, between == "tanh"

    def __call__(self, x: Floats) -> Floats:
        """(n, numbers in) to (n, numbers out)."""
        for weight, bias in self.layers[:-1]:
            x = x @ weight
            x += bias
            np.tanh(x, out=x) if self._tanh else np.maximum(x, 0, out=x)
        weight, bias = self.layers[-1]
        return x @ weight + bias


def layers_of(flat: Floats, sizes: Sequence[int]) -> list[Layer]:
    """The layers that a flat vector begins with, in the order of torch's Linear layers: its memory.

    sizes: (numbers in, width, …, numbers out).
    """
    layers: list[Layer] = []
    start = 0
    for inward, outward in zip(sizes[:-1], sizes[1:], strict=True):
        middle = start + inward * outward
        weight = flat[start:middle].reshape(outward, inward).T
        start = middle + outward
        layers.append((weight, flat[middle:start]))
    return layers


def first_not_finite(vectors: dict[str, Any]) -> str | None:
    """Name of the first tensor that holds NaN or infinity."""
    return next((n for n, v in vectors.items() if not bool(torch.isfinite(v).all())), None)
