"""Greedy play: by seeds of its own, without a trace in the training."""

from __future__ import annotations

import contextlib
import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

from tests.helpers.agents import run  # noqa: E402, F401

# isort: split
import environments  # noqa: E402
import episodes  # noqa: E402
import evaluation  # noqa: E402
from options import Refused  # noqa: E402
from runtime import Fault  # noqa: E402
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


def test_greedy_play_is_of_the_game_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lives and signs of rewards are for training alone."""
    asked: list[Any] = []

    def watched(name: str, **given: Any) -> Any:
        asked.append(given)
        return environments.make_env(name, **given)

    evaluation.play_greedy("walks:Walk-v0", always_one, episodes=2, seed=0, stream=1, make=watched)
    assert asked == [{}, {}]  # neither `training` nor a picture


def test_breakout_is_played_to_the_end_of_the_game() -> None:
    pytest.importorskip("ale_py", reason="left out: ale_py: not installed")
    pytest.importorskip("cv2", reason="left out: cv2: not installed")
    lengths: list[int] = []

    def one_after_another(seen: Any) -> Any:
        lengths.append(len(seen))
        assert seen.dtype == np.uint8 and seen.shape[1:] == (4, 84, 84)
        return np.full(len(seen), len(lengths) % 4)  # fires now and then, else a life never ends

    (total,) = evaluation.play_greedy(
        "ALE/Breakout-v5", one_after_another, episodes=1, seed=1, stream=1
    ) or [None]
    alive = environments.make_env("ALE/Breakout-v5", training=True)
    alive.reset(seed=1)
    life = 0
    with contextlib.closing(alive):
        while not alive.step(life % 4)[2]:
            life += 1
    assert total is not None and len(lengths) > 2 * life  # five lives, not the first of them


@pytest.mark.parametrize("name", ["walks:Shared-v0", "Hopper-v5", "ALE/Pong-v5"])
def test_evaluation_changes_nothing_in_a_training(name: str, run: Any) -> None:  # noqa: F811
    package = {"Hopper-v5": "mujoco", "ALE/Pong-v5": "ale_py"}.get(name)
    if package:
        pytest.importorskip(package, reason=f"left out: {package}: not installed")
    facts = environments.look(name, acts="any", sees="any")
    some = episodes.Episodes(name, seed=1, index=range(2), facts=facts)

    def still(seen: Any) -> Any:
        n = len(seen)
        return np.zeros((n, len(facts.low)), np.float32) if not facts.actions else np.zeros(n, int)

    with contextlib.closing(some):
        for _ in range(12):
            some.step_all(still(some.seen))
        before = some.save()
        o = SimpleNamespace(env=name, seed=1, eval_episodes=1)
        calls = itertools.count()
        run.asked_to_stop = lambda: next(calls) > 100  # a whole game of Pong takes too long
        evaluation.evaluate(run, o, still, step=1)
        assert next(calls) > 5 and some.save() == before


def test_mean_return_is_told_by_rank_0_alone(run: Any) -> None:  # noqa: F811
    o = SimpleNamespace(env="walks:Walk-v0", seed=1, eval_episodes=3)
    returns = evaluation.play_greedy(
        "walks:Walk-v0", always_one, episodes=3, seed=1, stream=SEEDS_EVALUATION
    )
    assert evaluation.evaluate(run, o, always_one, step=1) == {
        "eval/return": pytest.approx(np.mean(returns))
    }
    run.received = 15
    assert evaluation.evaluate(run, o, always_one, step=1) == {}
    run.rank = 1
    assert evaluation.evaluate(run, o, None, step=1) == {}  # type: ignore[arg-type]


def test_a_mean_that_is_no_number_is_a_fault(run: Any) -> None:  # noqa: F811
    o = SimpleNamespace(env="any", seed=1, eval_episodes=3)
    with pytest.raises(Fault, match="mean return is nan"):
        evaluation.evaluate(run, o, always_one, step=7, play=lambda *_, **__: [1.0, float("nan")])


class Counted(gymnasium.Wrapper):  # type: ignore[misc, type-arg]
    open = 0

    def __init__(self, env: Any, broken: str = "") -> None:
        super().__init__(env)
        self.broken = broken
        Counted.open += 1

    def step(self, action: Any) -> Any:
        if self.broken == "step":
            raise RuntimeError("broken")
        return self.env.step(action)

    def reset(self, **given: Any) -> Any:
        if self.broken == "reset":
            raise RuntimeError("broken")
        return self.env.reset(**given)

    def close(self) -> None:
        Counted.open -= 1
        super().close()


@pytest.mark.parametrize("broken", ["", "step", "reset", "choose", "make"])
def test_its_environments_are_closed_whatever_happens(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counted, "open", 0)

    def make(name: str) -> Any:
        if broken == "make" and Counted.open == 2:
            raise RuntimeError("broken")
        return Counted(environments.make_env(name), broken)

    def choose(seen: Any) -> Any:
        if broken == "choose":
            raise RuntimeError("broken")
        return always_one(seen)

    state = np.random.get_state()[1].tolist()
    with contextlib.suppress(RuntimeError, Refused, Fault):
        evaluation.play_greedy("walks:Shared-v0", choose, episodes=3, seed=0, stream=1, make=make)
    assert Counted.open == 0
    assert np.random.get_state()[1].tolist() == state


def test_a_policy_that_remembers_is_told_of_each_episode() -> None:
    class Memory(evaluation.Remembering):
        def begin(self, n: int) -> None:
            self.told = [("begin", n)]
            self.t = np.zeros(n, np.int64)

        def forget(self, i: int) -> None:
            self.told.append(("forget", i))
            assert self.t[i] == 15  # a walk's length
            self.t[i] = 0

        def __call__(self, seen: Any) -> Any:
            self.t += 1
            return always_one(seen)

    memory = Memory()
    evaluation.play_greedy("walks:Walk-v0", memory, episodes=40, seed=0, stream=1)
    assert memory.told == [("begin", 32), *(("forget", i) for i in range(8))]
