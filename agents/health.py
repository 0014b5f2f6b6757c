"""What is not finite: found before it is kept, and named by its first cause."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from parameters import first_not_finite
from runtime import Fault, Run
from torch import Tensor


def losses(names: Sequence[str], means: Tensor, step: int) -> dict[str, float]:
    """Means of some updates by their tags, `loss/NAME`. Raises Fault when one is not finite."""
    tags = {f"loss/{n}": number for n, number in zip(names, means.tolist(), strict=True)}
    for tag, number in tags.items():
        if not math.isfinite(number):
            raise Fault("nan", f"{tag} became {number} in the updates at {step}", step=step)
    return tags


def check(
    run: Run, step: int, *, given: int | None = None, held: Mapping[str, Tensor] | None = None
) -> None:
    """Raise Fault with the first cause, or say that another rank has one; a collective call.

    given: the step at which an environment first gave a number that is not finite, if one did.
    held: what the learner holds, by names that the fault can say.
    """
    fault = None
    if given is not None:
        text = "the environment gave a reward or observation that is not finite, or beyond "
        text += f"float32's 3.4e38, at {given}"
        fault = Fault("nan", text, step=given)
    elif bad := first_not_finite(held or {}):
        fault = Fault("nan", f"{bad} not finite at {step}", step=step)
    run.agree_healthy(fault, step=step)
