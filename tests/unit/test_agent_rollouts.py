"""Rollouts: what the environments gave, step by step, and the first of it that is not finite."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import rollouts  # noqa: E402
from environments import Facts  # noqa: E402


class Policy:
    """Always the same outputs."""

    def __init__(self, facts: Facts, outputs: Any) -> None:
        self.facts, self.log_std, self.told = facts, np.full(facts.low.shape, -40.0), outputs

    def outputs(self, seen: Any) -> Any:
        return np.tile(np.float32(self.told), (len(seen), 1))

    def in_box(self, drawn: Any) -> Any:
        return np.clip(drawn, self.facts.low, self.facts.high)


class Counting:
    """Environments that show how many steps they made; every third ends, by turns for real."""

    def __init__(self, n: int) -> None:
        self.envs, self.given = [None] * n, []
        self.seen, self.made = np.zeros((n, 1), np.float32), [0] * n

    def step(self, i: int, action: Any) -> Any:
        self.given.append(action)
        self.made[i] += 1
        made = self.made[i]
        self.seen[i] = made
        return np.float32([made + 0.5]), float(made), made % 6 == 3, made % 3 == 0


def facts_of(actions: int, sides: int = 0) -> Facts:
    side = np.ones(sides, np.float32)
    return Facts((1,), False, actions, -side, side, exact=True)


def test_steps_are_kept_in_order_with_their_ends_and_what_limits_reached() -> None:
    facts, envs, rng = facts_of(2), Counting(2), np.random.default_rng(0)
    roll = rollouts.Rollout(12, 2, facts)
    for rows, begin in ((12, 0), (7, 12)):  # the second leaves nothing of the first
        roll.collect(envs, Policy(facts, [0.0, 50.0]), rng, rows)
        made = begin + 1 + np.arange(rows)
        assert (roll.rewards[:rows] == made[:, None]).all() and roll.length == rows
        assert (roll.seen[: rows + 1, :, 0] == begin + np.arange(rows + 1)[:, None]).all()
        assert (roll.terminated[:rows] == (made % 6 == 3)[:, None]).all()
        assert (roll.truncated[:rows] == (made % 6 == 0)[:, None]).all()  # a real end is no limit
        limits = [m + 0.5 for m in made if m % 6 == 0 for _ in range(2)]
        assert [float(at[0]) for at in roll.limits] == limits
    assert envs.given == [1] * 38 and (roll.actions == 1).all()


def test_continuous_actions_are_kept_as_drawn_and_given_within_the_box() -> None:
    facts, envs = facts_of(0, 2), Counting(1)
    roll = rollouts.Rollout(3, 1, facts)
    roll.collect(envs, Policy(facts, [0.5, 3.0]), np.random.default_rng(0), 3)
    assert np.abs(roll.actions - [0.5, 3.0]).max() < 1e-6
    assert np.abs(np.array(envs.given) - [0.5, 1.0]).max() < 1e-6


@pytest.mark.parametrize("where", ["reward", "reached", "limit", "first"])
def test_first_step_that_is_not_finite_is_found(where: str) -> None:
    facts = Facts((4,), False, 3, np.zeros(0), np.zeros(0), exact=True)
    roll = rollouts.Rollout(25, 2, facts)
    roll.length, roll.truncated[[2, 7], 1] = 20, True
    roll.limits = [np.zeros(4, np.float32) for _ in range(2)]
    assert roll.first_bad() is None
    steps = {"reward": 6, "reached": 6, "limit": 8, "first": 0}[where]
    if where == "reward":
        roll.rewards[5, 1] = math.nan
    elif where == "limit":
        roll.limits[1][3] = math.inf
    else:
        roll.seen[steps, 1, 3] = math.nan
    assert roll.first_bad() == steps
