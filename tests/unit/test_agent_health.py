"""What is not finite: the first cause is named, and every rank ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

from tests.helpers.agents import AGENTS  # noqa: E402  puts agents/ on the path
from tests.helpers.two_ranks import as_processes  # noqa: E402

# isort: split
import health  # noqa: E402
from runtime import Fault  # noqa: E402

BAD = {
    "parameters": torch.ones(2),
    "mean": torch.tensor([0.0, np.inf]),
    "b": torch.tensor([np.nan]),
}


def test_losses_come_by_their_tags_and_the_first_bad_one_is_named() -> None:
    names = ("policy", "value", "entropy")
    means = torch.tensor([1.0, -2.0, 0.5])
    assert health.losses(names, means, 7) == {
        "loss/policy": 1.0, "loss/value": -2.0, "loss/entropy": 0.5
    }  # fmt: skip
    means[1:] = torch.tensor([np.inf, np.nan])
    with pytest.raises(Fault, match="^loss/value became inf in the updates at 7$") as fault:
        health.losses(names, means, 7)
    assert (fault.value.kind, fault.value.step) == ("nan", 7)


def test_what_an_environment_gave_is_named_before_what_came_of_it(run: Any) -> None:
    health.check(run, 9)
    health.check(run, 9, held={"parameters": torch.ones(2)})
    with pytest.raises(Fault, match="^mean not finite at 9$") as fault:
        health.check(run, 9, held=BAD)
    assert (fault.value.kind, fault.value.step) == ("nan", 9)
    with pytest.raises(
        Fault, match="^the environment gave a reward .* not finite, .*, at 8$"
    ) as fault:
        health.check(run, 9, given=8, held=BAD)
    assert (fault.value.kind, fault.value.step) == ("nan", 8)


CHECKED = """
import sys; sys.path.insert(0, {agents!r})
import health, runtime
run = runtime.Run("test", device="cpu")
try:
    health.check(run, 9, given=None if run.rank else 0)
except runtime.Fault as fault:
    print(fault.kind, fault, sep="|")
runtime.close(run)
"""


def test_a_rank_without_a_fault_ends_because_of_another_one(tmp_path: Path) -> None:
    first, second = as_processes(CHECKED.format(agents=str(AGENTS)), tmp_path)
    assert first.startswith("nan|the environment gave") and "3.4e38, at 0" in first
    assert second.strip() == "|stopped: another rank met a fault"
