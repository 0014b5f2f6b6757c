"""Atari games: what an agent is shown of them, in training and in play."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
gymnasium = pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")
pytest.importorskip("cv2", reason="left out: cv2: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import atari  # noqa: E402
import environments  # noqa: E402
import episodes  # noqa: E402
from options import Refused  # noqa: E402

GAMES = """
import gymnasium as gym, numpy as np
from gymnasium.spaces import Box, Discrete

class Ale:
    def __init__(self, game):
        self.game = game
    def lives(self):
        return self.game.lives
    def getScreenGrayscale(self, out):
        out[:] = self.game.screen()

class Game(gym.Env):
    '''One raw frame a step: frame n lights pixel n of the picture, brighter each time.'''
    names = ['NOOP', 'LEFT']
    lasts = 200
    def __init__(self, frameskip=4, repeat_action_probability=0.25, render_mode=None):
        self._frameskip, self.share = frameskip, repeat_action_probability
        self.observation_space = Box(0, 255, (84, 84, 3), np.uint8)
        self.action_space = Discrete(len(self.names))
        self.raw, self.games, self.actions = 0, 0, []
    @property
    def ale(self):
        return Ale(self)
    def get_action_meanings(self):
        return self.names
    def screen(self):
        picture = np.zeros(84 * 84, np.uint8)
        picture[self.t] = 1 + self.t
        return picture.reshape(84, 84)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.lives = 0, 3
        self.games += 1
        return np.zeros((84, 84, 3), np.uint8), {}
    def step(self, action):
        assert self.t < self.lasts, 'stepped beyond its end'
        self.raw += self._frameskip
        self.t += self._frameskip
        self.actions.append(int(action))
        self.lives = 3 - self.t // 80
        over = self.t >= self.lasts
        return np.zeros((84, 84, 3), np.uint8), self.reward(), over, False, {}
    def reward(self):
        return 2.5

class Flicker(Game):
    '''Draws on odd frames only.'''
    def screen(self):
        return np.full((84, 84), 200 * (self.t % 2), np.uint8)

class Firing(Game):
    names = ['NOOP', 'FIRE', 'LEFT']

class Losing(Game):
    def reward(self):
        return -7.0

class Numbers(Game):
    def __init__(self, **told):
        super().__init__(**told)
        self.observation_space = Box(0, 255, (128,), np.uint8)

skips = {'frameskip': (2, 5), 'repeat_action_probability': 0.25}
none = {'frameskip': 1, 'repeat_action_probability': 0.0}
gym.register('Skips-v4', 'ale_py_games:Game', kwargs=skips)
gym.register('Sticky-v5', 'ale_py_games:Game', kwargs={})
for one in (Game, Flicker, Firing, Losing, Numbers):
    gym.register(one.__name__ + 'NoFrameskip-v4', 'ale_py_games:' + one.__name__, kwargs=none)
"""


@pytest.fixture
def games(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module of stub games, which gymnasium knows as if they were ale-py's."""
    (tmp_path / "ale_py_games.py").write_text(GAMES)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(gymnasium.registry)
    monkeypatch.delitem(sys.modules, "ale_py_games", raising=False)
    module = importlib.import_module("ale_py_games")
    added = set(gymnasium.registry) - before
    yield module
    for name in added:
        del gymnasium.registry[name]


def lit(frame: Any) -> list[int]:
    """The raw frames whose pixel is lit in a picture."""
    return np.flatnonzero(frame).tolist()  # type: ignore[no-any-return]


NAMES = ["Skips-v4", "Sticky-v5", "GameNoFrameskip-v4"]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_exactly_one_skip_of_four_whatever_the_id_says(
    games: Any, name: str, training: bool
) -> None:
    env = environments.make_env(name, training=training)
    game: Any = env.unwrapped
    env.reset(seed=0)
    before = game.raw
    for _ in range(10):
        env.step(1)
    assert game.raw - before == 40 and game.share == 0.0
    assert game.raw <= 40 + atari.NOOPS


@pytest.mark.parametrize("name", ["Pong-v4", "ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_real_games_skip_four_frames_once(name: str) -> None:
    pytest.importorskip("ale_py", reason="left out: ale_py: not installed")
    with contextlib.closing(environments.make_env(name, training=True)) as env:
        game: Any = env.unwrapped
        seen, _ = env.reset(seed=0)
        assert seen.shape == (4, 84, 84) and seen.dtype == np.uint8
        assert (seen == seen[0]).all() and seen.max() > 80
        before = game.ale.getEpisodeFrameNumber()
        for _ in range(25):
            env.step(2)
        assert game.ale.getEpisodeFrameNumber() - before == 100


@pytest.mark.parametrize(("name", "share"), list(zip(NAMES, (0.25, 0.25, 0.0), strict=True)))
def test_actions_stick_as_often_as_the_id_says(games: Any, name: str, share: float) -> None:
    game = games.Game(frameskip=1)
    game.lasts = 10**6
    env = atari.Sticky(game, gymnasium.spec(name).kwargs.get("repeat_action_probability", 0.25))
    env.reset(seed=0)
    for k in range(4000):
        env.step(k % 2)
    told = np.array(game.actions)
    stuck = (told != np.arange(4000) % 2).mean()
    # of those that differ; two in a row come out even, as the action alternates
    assert stuck == pytest.approx(share / (1 + share), abs=0.02)


def test_brighter_of_the_last_two_frames_and_of_no_older_one(games: Any) -> None:
    env = environments.make_env("GameNoFrameskip-v4", training=True)
    seen, _ = env.reset(seed=3)
    now = env.unwrapped.t  # type: ignore[attr-defined]
    assert lit(seen[-1]) == [now]
    for k in range(1, 12):
        seen = env.step(0)[0]
        for back in range(min(k, 4)):
            last = now + 4 * (k - back)
            assert lit(seen[3 - back]) == [last - 1, last]
    assert seen[-1].max() == now + 44 + 1  # as bright as it was drawn


def test_a_game_that_draws_every_other_frame_is_never_blank(games: Any) -> None:
    env = environments.make_env("FlickerNoFrameskip-v4")
    env.reset(seed=0)
    for _ in range(20):
        assert (env.step(0)[0][-1] == 200).all()


def test_first_stack_is_the_reset_frame_four_times_in_every_life(games: Any) -> None:
    env = environments.make_env("GameNoFrameskip-v4", training=True)
    ends = 0
    seen, _ = env.reset(seed=1)
    for _ in range(120):
        assert (seen == seen[0]).all()
        while True:
            seen, _, terminated, truncated, _ = env.step(0)
            if terminated or truncated:
                break
        ends += 1
        seen, _ = env.reset()
    assert ends == 120 and env.unwrapped.games >= 40  # type: ignore[attr-defined]


def test_a_lost_life_ends_an_episode_in_training_only(games: Any) -> None:
    def ends(training: bool) -> list[int]:
        env = environments.make_env("GameNoFrameskip-v4", training=training)
        game: Any = env.unwrapped
        env.reset(seed=0)
        found = []
        while game.games == 1:
            if env.step(0)[2]:
                found.append(game.t)
                env.reset()
        return found

    in_training = ends(True)
    assert len(in_training) == 3 and ends(False) == in_training[-1:] == [200]
    assert 80 <= in_training[0] < 84 and 160 <= in_training[1] < 164


@pytest.mark.parametrize("training", [False, True])
def test_fire_is_pressed_where_there_is_such_a_button(games: Any, training: bool) -> None:
    pressed = []
    for name in ("FiringNoFrameskip-v4", "GameNoFrameskip-v4"):
        env = environments.make_env(name, training=training)
        game: Any = env.unwrapped
        for _ in range(4):
            env.reset(seed=0)
            pressed.append((name[0], game.actions[-4:] == [1] * 4))
            while not env.step(0)[2]:
                pass
            game.actions.clear()
    assert set(pressed) == {("F", True), ("G", False)}


def test_fire_is_pressed_after_a_lost_life_too_and_its_reward_counts(games: Any) -> None:
    for name, pressed in (("FiringNoFrameskip-v4", 3), ("GameNoFrameskip-v4", 0)):
        env = environments.make_env(name, training=False)
        game: Any = env.unwrapped
        env.reset(seed=0)
        before, total, over = game.t, 0.0, False
        while not over:
            _, reward, over, _, _ = env.step(0)
            total += float(reward)
        assert game.actions.count(1) == 4 * pressed  # at the start and after two of three lives
        assert total == 2.5 * (200 - before)


def test_rewards_are_signs_in_training_only(games: Any) -> None:
    found = {}
    for name in ("GameNoFrameskip-v4", "LosingNoFrameskip-v4"):
        for training in (True, False):
            env = environments.make_env(name, training=training)
            env.reset(seed=0)
            found[name[0], training] = env.step(0)[1]
    assert found == {("G", True): 1.0, ("G", False): 10.0, ("L", True): -1.0, ("L", False): -28.0}


def test_what_is_reported_is_the_games_own_score(games: Any) -> None:
    facts = environments.look("GameNoFrameskip-v4", sees="any")
    assert facts.image and facts.shape == (4, 84, 84) and facts.exact
    some = episodes.Episodes("GameNoFrameskip-v4", seed=0, index=range(1), facts=facts)
    game: Any = some.envs[0].unwrapped
    ended = []
    while game.games < 4:
        some.step(0, 0)
        ended += some.take_ended()
    assert ended == [(2.5 * 200, 200)] * 3  # once a game, not once a life; all of its frames


def test_kept_games_go_on_exactly(games: Any) -> None:
    facts = environments.look("Sticky-v5", sees="any")
    first, second = (
        episodes.Episodes("Sticky-v5", seed=seed, index=range(2), facts=facts) for seed in (0, 9)
    )
    for k in range(40):
        first.step(k % 2, 1)
    second.load(first.save(), step=0)
    for k in range(100):
        one, other = first.step(k % 2, k % 2), second.step(k % 2, k % 2)
        assert one[1:] == other[1:] and (one[0] == other[0]).all()


def test_numbers_of_a_games_memory_are_refused(games: Any) -> None:
    with pytest.raises(Refused, match="only pictures"):
        environments.make_env("NumbersNoFrameskip-v4")
