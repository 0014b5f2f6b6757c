"""Running moments against numpy's, alone and over two ranks, and kept in checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
torch = pytest.importorskip("torch", reason="left out: torch: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path
from tests.helpers.two_ranks import as_threads  # noqa: E402

# isort: split
from normalise import RewardScale, RunningMoments  # noqa: E402


def moments_of(parts: list[Any], run: Any) -> RunningMoments:
    moments = RunningMoments(parts[0].shape[1:])
    for part in parts:
        moments.update(part, run)
    return moments


def assert_equal(moments: RunningMoments, rows: Any) -> None:
    assert moments.count == len(rows)
    assert np.allclose(moments.mean, rows.mean(0), rtol=1e-12)
    assert np.allclose(moments.var, rows.var(0), rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_moments_are_those_of_all_rows_whatever_the_parts(shape: tuple[int, ...], run: Any) -> None:
    rows = np.random.default_rng(0).normal(5, 3, (100, *shape)) * np.linspace(1, 9, 100).reshape(
        -1, *[1] * len(shape)
    )
    assert_equal(moments_of([rows], run), rows)
    assert_equal(moments_of([rows[:1], rows[1:30], rows[30:]], run), rows)


def test_two_ranks_hold_the_moments_of_all_rows_of_both() -> None:
    rows = np.random.default_rng(0).normal(5, 3, (100, 3))
    uneven = [[rows[:10], rows[20:60]], [rows[10:20], rows[60:]]]
    both = as_threads(lambda run: moments_of(uneven[run.rank], run))
    assert_equal(both[0], rows)
    assert (both[0].mean == both[1].mean).all() and (both[0].var == both[1].var).all()


def test_a_rank_without_rows_takes_part_and_none_at_all_change_nothing(run: Any) -> None:
    rows = np.random.default_rng(0).normal(5, 3, (10, 3))
    both = as_threads(lambda rank: moments_of([rows[: 10 * rank.rank]], rank))
    assert_equal(both[0], rows)
    moments = moments_of([rows, rows[:0]], run)
    assert_equal(moments, rows)


def test_small_deviations_of_large_numbers_are_kept(run: Any) -> None:
    rows = np.random.default_rng(0).normal(1e8, 0.5, (1000, 2))
    assert np.allclose(moments_of([rows], run).var, rows.var(0), rtol=1e-3)
    assert np.allclose(moments_of([rows[:7], rows[7:]], run).var, rows.var(0), rtol=1e-3)


def test_applied_rows_have_mean_0_and_deviation_1_and_are_cut(run: Any) -> None:
    rows = np.random.default_rng(0).normal(-7, 20, (1000, 2))
    rows[0] = 1e9
    moments = moments_of([rows[1:]], run)
    applied = moments.apply(rows)
    assert applied.dtype == np.float32 and applied[0].tolist() == [10.0, 10.0]
    assert np.abs(applied[1:].mean(0)).max() < 1e-5
    assert np.abs(applied[1:].std(0) - 1).max() < 1e-5
    assert moments.apply(rows[:1] * -1, limit=5.0).tolist() == [[-5.0, -5.0]]


def test_before_any_row_they_change_nothing_but_the_limit() -> None:
    rows = np.array([[0.5, -20.0]], np.float32)
    assert np.allclose(RunningMoments((2,)).apply(rows), [[0.5, -10.0]])


def test_constant_numbers_become_zero(run: Any) -> None:
    rows = np.full((50, 1), 0.1, np.float32)
    assert not moments_of([rows], run).apply(rows).any()


@pytest.mark.parametrize("shape", [(), (3,)])
def test_state_goes_through_the_weights_only_loader_and_goes_on(
    shape: tuple[int, ...], run: Any, tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).normal(5, 3, (100, *shape))
    moments = moments_of([rows[:60]], run)
    assert type(moments.state()["count"]) is float
    torch.save(moments.state(), tmp_path / "m.pt")
    again = RunningMoments(shape)
    again.load(torch.load(tmp_path / "m.pt", weights_only=True))
    for each in (moments, again):
        each.update(rows[60:], run)
    assert (again.mean == moments.mean).all() and (again.var == moments.var).all()
    assert_equal(again, rows)


# rewards


def discounted(rewards: Any, ended: Any, gamma: float) -> Any:
    """(T, n) sums of rewards of the episode so far, older ones discounted more."""
    out = np.zeros(rewards.shape)
    for i in range(rewards.shape[1]):
        start = 0
        for t in range(len(rewards)):
            out[t, i] = sum(gamma ** (t - k) * rewards[k, i] for k in range(start, t + 1))
            if ended[t, i]:
                start = t + 1
    return out


def test_rewards_are_divided_by_the_deviation_of_sums_within_episodes(run: Any) -> None:
    rng = np.random.default_rng(0)
    rewards = rng.normal(30, 10, (80, 3)).astype(np.float32)
    ended = rng.random((80, 3)) < 0.2
    scale = RewardScale(3, 0.9)
    for part in (slice(0, 1), slice(1, 33), slice(33, 80)):  # sums go on from part to part
        scale.update(rewards[part], ended[part], run)
    deviation = discounted(rewards.astype(np.float64), ended, 0.9).std()
    assert np.allclose(scale.apply(rewards), np.clip(rewards / deviation, -10, 10), rtol=1e-5)
    assert scale.apply(rewards).mean() > 0.3  # it is not taken away


def test_reward_scale_of_two_ranks_is_that_of_all_their_environments(run: Any) -> None:
    rng = np.random.default_rng(0)
    rewards, ended = rng.normal(3, 1, (40, 4)).astype(np.float32), rng.random((40, 4)) < 0.2

    def work(rank: Any) -> RewardScale:
        mine, scale = slice(2 * rank.rank, 2 * rank.rank + 2), RewardScale(2, 0.9)
        scale.update(rewards[:, mine], ended[:, mine], rank)
        return scale

    one, both = RewardScale(4, 0.9), as_threads(work)
    one.update(rewards, ended, run)
    assert both[0].moments.var == both[1].moments.var
    assert both[0].moments.var == pytest.approx(one.moments.var, rel=1e-9)


def test_reward_scale_goes_on_from_a_checkpoint_in_mid_episode(run: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rewards, ended = rng.normal(3, 1, (40, 2)).astype(np.float32), rng.random((40, 2)) < 0.05
    whole, again = RewardScale(2, 0.99), RewardScale(2, 0.99)
    whole.update(rewards[:21], ended[:21], run)
    torch.save(whole.state(), tmp_path / "s.pt")
    state = torch.load(tmp_path / "s.pt", weights_only=True)
    again.load(state, state["own"])
    for each in (whole, again):
        each.update(rewards[21:], ended[21:], run)
    assert again.state()["own"] == whole.state()["own"]
    assert again.moments.var == whole.moments.var
