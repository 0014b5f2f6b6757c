"""Mixed precision and torch's compiler, for networks large enough to gain by them.

Both are off unless an option says otherwise: on a CPU, and for small networks anywhere, they cost
more than they save, and results would no longer be the same bits. Sources: Micikevicius et al.,
"Mixed Precision Training" (2018); Ansel et al., "PyTorch 2" (2024).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from options import Refused
from torch import Tensor, nn

Losses = Callable[..., tuple[Tensor, ...]]
"""Tensors in, some tensors out, of which the caller makes a loss."""
MODES = ("off", "default", "reduce-overhead", "max-autotune")


class Head(nn.Linear):
    """A last layer, in float32 also where the layers before it computed in bfloat16.

    That keeps three digits only: too few for values of which small differences are learned.
    """

    def forward(self, x: Tensor) -> Tensor:
        """As of any linear layer."""
        if x.dtype == torch.float32:
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


def check_compile(mode: str) -> None:
    """Raises Refused where `compile` is no mode of it."""
    if mode not in MODES:
        raise Refused(f"compile is {mode!r}; it must be one of {', '.join(MODES)}")


def accelerated(losses: Losses, o: Any, device: torch.device, *, compiles: bool = True) -> Losses:
    """The same function as the options `amp` and `compile` ask for; itself where they are off."""
    if o.amp and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        warn(f"{torch.cuda.get_device_name(device)} has no bfloat16: training in float32")
    elif o.amp:
        losses = in_bfloat16(losses, device)
    return compiled(losses, o.compile) if compiles and o.compile != "off" else losses


def in_bfloat16(losses: Losses, device: torch.device) -> Losses:
    """The function with its convolutions and products of matrices in bfloat16.

    Parameters, gradients, the optimiser and each Head stay float32; no loss needs scaling, for
    bfloat16 has the range of float32.
    """

    def mixed(*args: Any) -> tuple[Tensor, ...]:
        with torch.autocast(device.type, torch.bfloat16):
            return losses(*args)

    return mixed


def compiled(losses: Losses, mode: str) -> Losses:
    """The function by torch's compiler; as it was, with a warning, where that does not work."""
    quick: Losses | None = torch.compile(losses, mode=mode)
    works = False

    def call(*args: Any) -> tuple[Tensor, ...]:
        nonlocal quick, works
        if quick is not None:
            try:
                found = quick(*args)
                works = True
                # the next call of a CUDA graph writes over what this one gave
                return tuple(each.clone() for each in found)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever the compiler raises without its own compilers
                if works:
                    raise
                first = (str(error).strip().splitlines() or [type(error).__name__])[0]
                warn(f"compile={mode} does not work here ({first}): training without it")
                quick = None
        return losses(*args)

    return call


def warn(text: str) -> None:
    """On stderr, where the runner's logs keep it."""
    print(f"WARNING: {text}", file=sys.stderr, flush=True)
