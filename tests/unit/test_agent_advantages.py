"""Advantages: known answers, their definition, and that nothing crosses an episode."""

from __future__ import annotations

from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
pytest.importorskip("torch", reason="left out: torch: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path
from tests.helpers.two_ranks import as_threads  # noqa: E402

# isort: split
from advantages import gae, normalised  # noqa: E402


def column(*numbers: float) -> Any:
    return np.array(numbers, np.float32)[:, None]


def ends(*flags: int) -> Any:
    return np.array(flags, np.bool_)[:, None]


def test_an_end_belongs_to_the_step_that_reached_it() -> None:
    zero = column(0, 0, 0)
    out = gae(column(1, 1, 1), zero, zero, ends(0, 1, 0), gamma=1.0, lam=1.0)
    assert out.dtype == np.float32 and out[:, 0].tolist() == [2.0, 1.0, 1.0]


def test_a_time_limit_has_the_value_of_what_it_reached_and_a_real_end_none() -> None:
    rewards, values = column(1, 1), column(10, 20)
    real = gae(rewards, values, column(20, 0), ends(0, 1), gamma=0.5, lam=1.0)
    limit = gae(rewards, values, column(20, 40), ends(0, 1), gamma=0.5, lam=1.0)
    assert real[:, 0].tolist() == [1 + 10 - 10 - 9.5, -19.0]
    assert limit[:, 0].tolist() == [1 + 10 - 10 + 0.5, 1.0]


@pytest.mark.parametrize(("gamma", "lam"), [(0.9, 0.0), (0.9, 0.7), (1.0, 1.0)])
def test_advantages_are_weighted_sums_of_errors_within_an_episode(gamma: float, lam: float) -> None:
    rng = np.random.default_rng(0)
    rewards, values, reached = rng.normal(size=(3, 50, 4)).astype(np.float32)
    ended = rng.random((50, 4)) < 0.15
    out = gae(rewards, values, reached, ended, gamma=gamma, lam=lam)
    errors = rewards.astype(np.float64) + gamma * reached - values
    for i in range(4):
        for t in range(50):
            last = next((k for k in range(t, 50) if ended[k, i]), 49)
            expected = sum((gamma * lam) ** (k - t) * errors[k, i] for k in range(t, last + 1))
            assert out[t, i] == pytest.approx(expected, abs=1e-4)


def test_normalised_over_both_ranks_is_normalised_over_all(run: Any) -> None:
    rows = np.random.default_rng(0).normal(100, 0.01, (64, 3)).astype(np.float32)
    whole = normalised(rows, run)
    wide = rows.astype(np.float64)
    assert whole.dtype == np.float32 and whole.shape == rows.shape
    assert np.abs(whole - (wide - wide.mean()) / wide.std()).max() < 1e-5
    halves = as_threads(lambda rank: normalised(rows[rank.rank * 32 :][:32], rank))
    assert np.abs(np.concatenate(halves) - whole).max() < 1e-6


def test_equal_advantages_are_zero_and_no_error(run: Any) -> None:
    assert not normalised(np.full((4, 2), 3.0, np.float32), run).any()
