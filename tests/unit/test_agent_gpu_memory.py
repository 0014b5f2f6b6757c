"""What is said of a card's memory, and when the allocator's cache is given back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "agents"))

import gpu_memory  # noqa: E402
from gpu_memory import Use  # noqa: E402

GIB = 1 << 30


def use(allocated: float, reserved: float, free: float, peak: float | None = None) -> Use:
    """Of a card of 24 GiB; all in GiB."""
    most = allocated if peak is None else peak
    return Use(1, *(int(x * GIB) for x in (allocated, reserved, most, free, 24)))


def test_a_cpu_has_none() -> None:
    assert gpu_memory.read(torch.device("cpu")) is None
    assert not gpu_memory.give_back(torch.device("cpu"))


def test_tags_name_the_card() -> None:
    assert use(1, 2, 20, 1.5).tags() == {
        "gpu1/allocated_bytes": 1.0 * GIB,
        "gpu1/reserved_bytes": 2.0 * GIB,
        "gpu1/peak_bytes": 1.5 * GIB,
    }


def test_one_word_before_the_limit_says_who_holds_what() -> None:
    assert gpu_memory.warning(use(10, 12, 2.5)) is None
    assert gpu_memory.warning(use(10, 12, 2, 11)) == (
        "GPU 1 is nearly full: 22.0 of 24.0 GiB; 10.0 by tensors (at most 11.0), 2.0 kept for"
        " later ones, 10.0 by others or the driver"
    )
    assert "others" not in str(gpu_memory.warning(use(22, 23, 1)))


@pytest.mark.parametrize(
    ("allocated", "reserved", "worth"),
    [(1, 4, True), (4, 4.2, False), (0.1, 0.2, False), (8, 11, False), (4, 6.5, True)],
)
def test_the_cache_is_given_back_where_that_helps(
    allocated: float, reserved: float, worth: bool
) -> None:
    assert gpu_memory.is_worth_giving_back(use(allocated, reserved, 1)) is worth
