"""Environments: refused by name, kept where they can be, played greedily without a trace."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "agents"))

import episodes  # noqa: E402
from runtime import SEEDS_EVALUATION, Refused  # noqa: E402

STUBS = """
import gymnasium as gym, numpy as np, random
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

class Walk(gym.Env):
    '''A walk by random steps; subclasses break one thing each.'''
    def __init__(self, seen=Box(-np.inf, np.inf, (1,), np.float32), acts=Discrete(2)):
        self.observation_space, self.action_space = seen, acts
    def draw(self):
        return self.np_random.normal()
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.x = 0, self.draw()
        return np.array([self.x], np.float32), {}
    def step(self, action):
        self.t += 1
        self.x += self.draw()
        return np.array([self.x], np.float32), float(self.x), self.t >= 15, False, {}

class Old(Walk):
    def step(self, action):
        return super().step(action)[:4]
class Shared(Walk):
    def draw(self):
        return np.random.normal() + random.random()
class Easy(Walk, gym.utils.EzPickle):
    pass
class Slow(Walk, gym.utils.EzPickle):
    '''Its copy is a fresh one, which shows after 90 steps only.'''
    def __init__(self):
        gym.utils.EzPickle.__init__(self)
        super().__init__()
        self.t = 0
    def step(self, action):
        self.t += 1
        return np.array([max(0, self.t - 90)], np.float32), 0.0, False, False, {}
class Open(Walk):
    def __init__(self):
        super().__init__()
        self.file = open('/dev/null')
    def close(self):
        self.file.close()
class Forgetful(Walk):
    def __setstate__(self, state):
        self.__dict__.update(state, x=0.0)
class Endless(Walk):
    def step(self, action):
        return *super().step(action)[:2], False, False, {}

for one in (Walk, Old, Shared, Easy, Slow, Open, Forgetful, Endless):
    gym.register(f'{one.__name__}-v0', one)
gym.register('Image-v0', lambda: Walk(seen=Box(0, 255, (8, 8, 3), np.uint8)))
gym.register('Table-v0', lambda: Walk(seen=Dict(a=Discrete(2))))
gym.register('Many-v0', lambda: Walk(acts=MultiDiscrete([2, 2])))
gym.register('Smooth-v0', lambda: Walk(acts=Box(-1, 1, (1,))))
"""


@pytest.fixture(scope="session")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("walks")
    (folder / "walks.py").write_text(STUBS)
    return folder


@pytest.fixture(autouse=True)
def _found(walks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(walks))  # undone with all that is appended to it
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("CartPol-v1", "env 'CartPol-v1' cannot be made .did you mean 'CartPole-v1'"),
        ("CartPole-v7", "env 'CartPole-v7' cannot be made"),
        ("nowhere:Walk-v0", "env 'nowhere:Walk-v0': No module named 'nowhere'"),
        ("walks:Wolk-v0", "did you mean 'Walk-v0'"),
        ("walks:Old-v0", "env 'walks:Old-v0' does not follow gymnasium's API"),
        ("walks:Image-v0", r"observations Box\(0, 255, \(8, 8, 3\)"),
        ("walks:Table-v0", "observations Dict"),
        ("walks:Many-v0", "actions MultiDiscrete"),
        ("walks:Smooth-v0", "actions Box"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(Refused, match=text):
        episodes.check_env(name)


def test_module_is_found_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Here-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    assert episodes.check_env("only_here:Here-v0") == (4, 2, True)


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("Walk", True),
        ("Shared", True),
        ("Easy", False),
        ("Slow", False),
        ("Open", False),
        ("Forgetful", False),
    ],
)
def test_only_environments_whose_copy_goes_on_alike_are_kept(name: str, exact: bool) -> None:
    assert episodes.check_env(f"walks:{name}-v0")[2] is exact


def roll(some: episodes.Episodes, steps: int) -> list[Any]:
    return [some.step(i, 1)[1] for _ in range(steps) for i in range(len(some.envs))]


@pytest.mark.parametrize("name", ["walks:Walk-v0", "walks:Shared-v0", "CartPole-v1"])
def test_kept_episodes_go_on_exactly(name: str) -> None:
    first = episodes.Episodes(name, seed=1, index=range(2), exact=True)
    roll(first, 20)
    data = first.save()
    expected = roll(first, 60), first.seen.copy(), first.take_ended()[2:]
    second = episodes.Episodes(name, seed=99, index=range(2), exact=True)
    second.load(data, step=40)
    again = roll(second, 60), second.seen.copy(), second.take_ended()
    assert again[0] == expected[0] and (again[1] == expected[1]).all()
    assert again[2][-1] == expected[2][-1]


def test_episodes_that_cannot_be_kept_begin_anew_with_other_seeds() -> None:
    some = episodes.Episodes("walks:Easy-v0", seed=1, index=range(1), exact=False)
    begun = some.seen.copy()
    roll(some, 5)
    assert some.save() == b""
    some.load(b"", step=5)
    assert some.lengths == [0] and some.seen != begun
    other = episodes.Episodes("walks:Easy-v0", seed=1, index=range(1), exact=False)
    other.load(b"", step=5)
    assert (some.seen == other.seen).all()


def always_one(seen: Any) -> Any:
    return np.ones(len(seen), np.int64)


def test_greedy_returns_depend_on_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(episodes_: int, seed: int) -> list[float]:
        returns = episodes.play_greedy(
            "walks:Walk-v0", always_one, episodes=episodes_, seed=seed, stream=SEEDS_EVALUATION
        )
        assert returns is not None
        return returns

    six = play(6, 1)
    assert len(set(six)) == 6 and play(6, 1) == six and play(6, 2) != six
    monkeypatch.setattr(episodes, "PARALLEL_EPISODES", 2)
    assert play(6, 1) == six  # however many are played side by side


def test_greedy_play_leaves_the_global_generators_alone() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    episodes.play_greedy("walks:Shared-v0", always_one, episodes=3, seed=0, stream=1)
    episodes.check_env("walks:Shared-v0")
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after


def test_greedy_play_ends_though_the_episode_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "LONGEST_EPISODE", 50)
    returns = episodes.play_greedy("walks:Endless-v0", always_one, episodes=2, seed=0, stream=1)
    assert returns is not None and len(returns) == 2
    stopped = episodes.play_greedy(
        "walks:Endless-v0", always_one, episodes=2, seed=0, stream=1, stop=lambda: True
    )
    assert stopped is None
