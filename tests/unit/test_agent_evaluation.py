"""Greedy play: by seeds of its own, without a trace in the training."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import environments  # noqa: E402
import evaluation  # noqa: E402
from seeds import SEEDS_EVALUATION  # noqa: E402

pytestmark = pytest.mark.usefixtures("at_walks")


def always_one(seen: Any) -> Any:
    return np.ones(len(seen), np.int64)


def test_greedy_returns_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(episodes_: int, seed: int) -> list[float]:
        returns = evaluation.play_greedy(
            "walks:Walk-v0", always_one, episodes=episodes_, seed=seed, stream=SEEDS_EVALUATION
        )
        assert returns is not None
        return returns

    six = play(6, 1)
    assert len(set(six)) == 6 and play(6, 1) == six and play(6, 2) != six
    monkeypatch.setattr(evaluation, "PARALLEL_EPISODES", 2)
    assert play(6, 1) == six  # however many are played side by side


def test_greedy_play_leaves_the_global_generators_alone() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    evaluation.play_greedy("walks:Shared-v0", always_one, episodes=3, seed=0, stream=1)
    environments.look("walks:Shared-v0")
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after


def test_greedy_play_ends_though_the_episode_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "LONGEST_EPISODE", 50)
    returns = evaluation.play_greedy("walks:Endless-v0", always_one, episodes=2, seed=0, stream=1)
    assert returns is not None and len(returns) == 2
    stopped = evaluation.play_greedy(
        "walks:Endless-v0", always_one, episodes=2, seed=0, stream=1, stop=lambda: True
    )
    assert stopped is None
