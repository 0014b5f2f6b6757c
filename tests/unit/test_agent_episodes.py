"""Episodes: kept and gone on with."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

from tests.helpers.agents import AGENTS  # noqa: E402  puts agents/ on the path

# isort: split
import environments  # noqa: E402
import episodes  # noqa: E402
import evaluation  # noqa: E402
from options import Refused  # noqa: E402

pytestmark = pytest.mark.usefixtures("at_walks")


def roll(some: episodes.Episodes, steps: int) -> list[Any]:
    return [some.step(i, 1)[1] for _ in range(steps) for i in range(len(some.envs))]


@pytest.mark.parametrize("name", ["walks:Walk-v0", "walks:Shared-v0", "CartPole-v1"])
def test_kept_episodes_go_on_exactly(name: str) -> None:
    first = episodes.Episodes(name, seed=1, index=range(2), facts=environments.look(name))
    roll(first, 20)
    data = first.save()
    expected = roll(first, 60), first.seen.copy(), first.take_ended()[2:]
    second = episodes.Episodes(name, seed=99, index=range(2), facts=environments.look(name))
    second.load(data, step=40)
    again = roll(second, 60), second.seen.copy(), second.take_ended()
    assert again[0] == expected[0] and (again[1] == expected[1]).all()
    assert again[2][-1] == expected[2][-1]


def test_episodes_that_cannot_be_kept_begin_anew_with_other_seeds() -> None:
    facts = environments.look("walks:Open-v0")
    some, other = (
        episodes.Episodes("walks:Open-v0", seed=1, index=range(1), facts=facts) for _ in range(2)
    )
    with contextlib.closing(some), contextlib.closing(other):
        begun = some.seen.copy()
        roll(some, 5)
        assert some.save() == b""
        some.load(b"", step=5)
        assert some.lengths == [0] and (some.seen != begun).all()
        other.load(b"", step=5)
        assert (some.seen == other.seen).all()


# real simulators


@pytest.mark.parametrize(
    ("name", "package"),
    [("Pendulum-v1", ""), ("HalfCheetah-v5", "mujoco"), ("ALE/Breakout-v5", "ale_py")],
)
def test_kept_simulators_go_on_exactly(name: str, package: str) -> None:
    if package:
        pytest.importorskip(package, reason=f"left out: {package}: not installed")
    facts = environments.look(name, acts="any", sees="any")

    def played(some: episodes.Episodes, steps: int, seed: int) -> list[Any]:
        rng, n = np.random.default_rng(seed), len(some.envs)
        trace: list[Any] = []
        for _ in range(steps):
            actions = rng.integers(facts.actions, size=n) if facts.actions else rng.uniform(
                facts.low, facts.high, (n, len(facts.low))).astype(np.float32)  # fmt: skip
            given = some.step_all(actions)
            trace.append([part.copy() for part in given] + [some.seen.copy()])
        return trace

    first, second = (episodes.Episodes(name, seed=seed, index=range(2), facts=facts)
                     for seed in (1, 99))  # fmt: skip
    with contextlib.closing(first), contextlib.closing(second):
        played(first, 120, 0), played(second, 7, 1)
        data = first.save()
        first.take_ended(), second.take_ended()
        expected, ended = played(first, 150, 2), first.take_ended()
        second.load(data, step=240)
        again, ended_again = played(second, 150, 2), second.take_ended()
        for t, (one, other) in enumerate(zip(expected, again, strict=True)):
            assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True)), t
        assert ended == ended_again and (ended or name == "HalfCheetah-v5")
        assert (first.returns, first.lengths) == (second.returns, second.lengths)


def test_box2d_cannot_be_kept_and_begins_new_episodes() -> None:
    pytest.importorskip("Box2D", reason="left out: Box2D: not installed")
    facts = environments.look("LunarLander-v3")
    with contextlib.closing(
        episodes.Episodes("LunarLander-v3", seed=1, index=range(2), facts=facts)
    ) as some:
        roll(some, 20)
        assert not some.exact and some.save() == b""
        before = some.seen.copy()
        some.load(b"", step=40)
        assert some.lengths == [0, 0] and some.returns == [0.0, 0.0]
        assert (some.seen != before).any()
        roll(some, 20)


# what the agent sees


def test_rewards_and_ends_belong_to_the_observation_reached() -> None:
    facts = environments.look("walks:Walk-v0")
    some = episodes.Episodes("walks:Walk-v0", seed=1, index=range(2), facts=facts)
    with contextlib.closing(some):
        for t in range(1, 31):
            given = some.step_all(np.zeros(2, np.int64))
            assert np.allclose(given.after[:, 0], given.rewards)  # a walk's reward is where it is
            assert given.terminated.tolist() == [t % 15 == 0] * 2 and not given.truncated.any()
            is_new = (some.seen != given.after).all(axis=1)
            assert is_new.tolist() == given.terminated.tolist()
        ended = some.take_ended()
        assert [length for _, length in ended] == [15] * 4 and some.take_ended() == []


def test_time_limits_are_no_ends() -> None:
    facts = environments.look("Pendulum-v1", acts="box")
    some = episodes.Episodes("Pendulum-v1", seed=1, index=range(1), facts=facts)
    with contextlib.closing(some):
        steps = [some.step_all(np.zeros((1, 1), np.float32)) for _ in range(201)]
        assert [bool(s.truncated[0]) for s in steps].index(True) == 199
        assert not any(s.terminated[0] for s in steps)


def test_environments_have_seeds_of_their_own_also_over_ranks() -> None:
    facts = environments.look("walks:Walk-v0")
    made = [episodes.Episodes("walks:Walk-v0", seed=1, index=index, facts=facts)
            for index in (range(2), range(2, 4), range(4))]  # fmt: skip
    first, second, whole = (some.seen[:, 0].tolist() for some in made)
    assert first + second == whole and len(set(whole)) == 4
    for some in made:
        some.close()


class FromOne(gymnasium.Env):  # type: ignore[misc, type-arg]
    """Three actions, 1 to 3; its reward is the one it was given."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3, start=1)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        return np.zeros(2, np.float32), float(action), action == 3, False, {}


def test_actions_are_counted_from_the_start_of_their_space() -> None:
    """In a training and in an evaluation alike."""
    gymnasium.register("FromOne-v0", FromOne)
    try:
        facts = environments.look("FromOne-v0")
        some = episodes.Episodes("FromOne-v0", seed=1, index=range(3), facts=facts)
        with contextlib.closing(some):
            assert some.step_all(np.arange(3)).rewards.tolist() == [1.0, 2.0, 3.0]
        actions = iter([0, 1, 2])
        returns = evaluation.play_greedy(
            "FromOne-v0", lambda seen: np.array([next(actions)]), episodes=1, seed=0, stream=1
        )
        assert facts.actions == 3 and returns == [6.0]
    finally:
        gymnasium.registry.pop("FromOne-v0")


# closed


class Nurse(gymnasium.Env):  # type: ignore[misc, type-arg]
    """Has a process of its own, as environments do that run a game beside them."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    children: list[subprocess.Popen[bytes]] = []
    most = 100

    def __init__(self) -> None:
        if len(self.children) >= self.most:
            raise gymnasium.error.Error("no more")
        self.child = subprocess.Popen(["sleep", "100"])
        self.children.append(self.child)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def close(self) -> None:
        self.child.kill()
        self.child.wait()


@pytest.fixture
def nurses(monkeypatch: pytest.MonkeyPatch) -> Any:
    """All child processes that `Nurse-v0` has begun; their end is seen to."""
    monkeypatch.setattr(Nurse, "children", [])
    gymnasium.register("Nurse-v0", Nurse)
    yield Nurse.children
    gymnasium.registry.pop("Nurse-v0")
    for child in Nurse.children:
        child.kill()
        child.wait()


def alive(children: list[subprocess.Popen[bytes]]) -> int:
    return sum(child.poll() is None for child in children)


def test_closing_ends_the_processes_of_environments_and_may_be_done_twice(nurses: Any) -> None:
    facts = environments.look("Nurse-v0")
    assert alive(nurses) == 0
    some = episodes.Episodes("Nurse-v0", seed=1, index=range(3), facts=facts)
    assert alive(nurses) == 3
    some.close()
    some.close()
    assert alive(nurses) == 0


def test_forgotten_episodes_are_closed(nurses: Any) -> None:
    facts = environments.look("Nurse-v0")
    some = episodes.Episodes("Nurse-v0", seed=1, index=range(3), facts=facts)
    del some
    gc.collect()
    assert alive(nurses) == 0


def test_the_first_are_closed_when_the_next_cannot_be_made(
    nurses: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = environments.look("Nurse-v0")
    monkeypatch.setattr(Nurse, "most", len(nurses) + 2)
    with pytest.raises(Refused, match="no more"):
        episodes.Episodes("Nurse-v0", seed=1, index=range(3), facts=facts)
    gc.collect()
    assert alive(nurses) == 0


NURSES = """
import subprocess
import gymnasium as gym, numpy as np
class Nurse(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def __init__(self):
        self.child, self.t = subprocess.Popen(["sleep", "100"]), 0
        print(self.child.pid, file=open("children", "a"))
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}
    def step(self, action):
        self.t += 1
        if self.t == 50 + 2:  # two of them while it is looked at
            raise RuntimeError("broken at 50")
        return np.zeros(2, np.float32), 0.0, False, False, {}
    def close(self):
        self.child.kill()
        self.child.wait()
gym.register("Nurse-v0", Nurse)
"""


@pytest.mark.parametrize(
    ("word", "status"), [("steps=1000", 1), ("steps=100", 2)], ids=["an error", "a refused resume"]
)
def test_no_process_of_an_environment_outlives_the_agent(
    word: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "nurses.py").write_text(NURSES)
    empty = tmp_path / "step-000000005"
    empty.mkdir()
    told = {"RUNNER_RESUME": str(empty)} if status == 2 else {}
    kept = {n: v for n, v in os.environ.items() if not n.startswith("RUNNER_")}
    agent = subprocess.run(
        [sys.executable, str(AGENTS / "dqn.py"), "env=nurses:Nurse-v0", "num_envs=3", "seed=1",
         "eval_every=0", word],
        cwd=tmp_path, env={**kept, **told}, capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert agent.returncode == status
    assert ("broken at 50" if status == 1 else "cannot be read") in agent.stderr
    children = [int(line) for line in (tmp_path / "children").read_text().split()]
    assert len(children) >= 4 and not [pid for pid in children if Path(f"/proc/{pid}").exists()]
