"""Seeds: apart by stream, and generators that come back."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import seeds  # noqa: E402


def test_streams_of_seeds_never_meet() -> None:
    streams = (seeds.SEEDS_TRAIN, seeds.SEEDS_EVALUATION, seeds.SEEDS_FRESH)
    drawn = {s: {seeds.derive_seed(7, s, i) for i in range(2000)} for s in streams}
    assert all(len(each) > 1995 for each in drawn.values())
    assert len(set.union(*drawn.values())) == sum(len(each) for each in drawn.values())
    assert seeds.derive_seed(7, 0, 1) != seeds.derive_seed(8, 0, 0)


def test_a_generator_comes_back_as_it_was() -> None:
    rng = np.random.default_rng(3)
    rng.integers(5, size=3)  # leaves half a word unused
    again = seeds.rng_from_text(seeds.rng_text(rng))
    assert rng.integers(5, size=9).tolist() == again.integers(5, size=9).tolist()
    assert rng.random() == again.random()
