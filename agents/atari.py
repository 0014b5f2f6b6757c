"""Atari games with the wrappers that published results use.

Machado et al., "Revisiting the Arcade Learning Environment" (2018), and the preprocessing of Mnih
et al. (2015): up to 30 actions of nothing at the start, each action for four frames, of the last
two the brighter of each pixel, 84×84 grey, the last four of those. For training also: a lost life
is an end, and a reward is its sign.
"""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
from options import Refused

SKIP = 4
STACK = 4
NOOPS = 30
SIZE = 84


def register() -> None:
    """Make gymnasium know the games, where ale-py is installed."""
    try:
        import ale_py
    except ImportError:
        return
    gym.register_envs(ale_py)


def is_game(name: str) -> bool:
    """Whether this id is an Atari game's. Raises ImportError where one needs ale-py."""
    register()
    found = gym.registry.get(name)
    if found is None:
        if name.startswith("ALE/"):
            import ale_py  # noqa: F401
        return False
    return str(found.entry_point).startswith("ale_py")


def make(name: str, *, training: bool, render: str | None) -> gym.Env[Any, Any]:
    """A game of ale-py by its id; (4, 84, 84) bytes.

    Frames are skipped here and nowhere else: an id that skips them too (`Pong-v4`) is made with
    its own skip off. Raises Refused without opencv, and for observations other than pictures.
    """
    share = gym.spec(name).kwargs.get("repeat_action_probability", 0.25)  # as ale-py's own default
    env: Any = gym.make(
        name, frameskip=1, repeat_action_probability=0.0, render_mode=render,
        disable_env_checker=True,
    )  # fmt: skip
    if len(env.observation_space.shape) != 3:
        raise Refused(f"env {name!r} has observations {env.observation_space}; only pictures")
    try:
        env = gym.wrappers.AtariPreprocessing(
            Score(Sticky(env, share)), noop_max=NOOPS, frame_skip=SKIP, screen_size=SIZE
        )
    except gym.error.DependencyNotInstalled as error:
        raise Refused(f"env {name!r}: {error}") from error
    if training:
        env = Lives(env)
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = Fire(env)
    if training:
        env = Sign(env)
    return Stack(env, STACK)


class Sticky(gym.Wrapper[Any, Any, Any, Any]):
    """At each frame the action before, not the given one, with a probability of `share`.

    The emulator can do so itself, but no copy of its state holds the action it would repeat.
    """

    def __init__(self, env: gym.Env[Any, Any], share: float) -> None:
        super().__init__(env)
        self.share, self.before = share, 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """A new game, before which nothing was done."""
        self.before = 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One frame."""
        if not self.share or self.np_random.random() >= self.share:
            self.before = action
        return self.env.step(self.before)


class Score(gym.Wrapper[Any, Any, Any, Any]):
    """Puts the game's own score into `info["game"]`, (score, frames), at its real end."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.score, self.frames = 0.0, 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """A new game."""
        self.score, self.frames = 0.0, 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One frame."""
        seen, reward, terminated, truncated, info = self.env.step(action)
        self.score += float(reward)
        self.frames += 1
        if terminated or truncated:
            info["game"] = (self.score, self.frames)
        return seen, reward, terminated, truncated, info


class Stack(gym.wrappers.FrameStackObservation):
    """The last four frames; at the start four times the first."""

    has_own_score = True
    """Its games say their own score; an end without one is a lost life."""


class Lives(gym.Wrapper[Any, Any, Any, Any]):
    """Ends an episode with each life; the game goes on in the next one until it is over."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.lives, self.is_over = 0, True

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Go on with the next life, or begin a new game."""
        if self.is_over or kwargs.get("seed") is not None:
            seen, info = self.env.reset(**kwargs)
        else:
            seen, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                seen, info = self.env.reset(**kwargs)
        self.is_over, self.lives = False, self._lives()
        return seen, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """An action; the loss of a life ends the episode."""
        seen, reward, terminated, truncated, info = self.env.step(action)
        self.is_over, before, self.lives = terminated or truncated, self.lives, self._lives()
        # at some games' end the count shows none for some frames: the game's own end follows
        lost = 0 < self.lives < before
        return seen, reward, terminated or lost, truncated, info

    def _lives(self) -> int:
        unwrapped: Any = self.env.unwrapped
        return int(unwrapped.ale.lives())


class Fire(gym.Wrapper[Any, Any, Any, Any]):
    """Presses fire at the start of an episode and of a life; some games wait for it."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin, and fire."""
        seen, info = self.env.reset(**kwargs)
        unwrapped: Any = self.env.unwrapped
        fire = unwrapped.get_action_meanings().index("FIRE")
        after, _, terminated, truncated, after_info = self.env.step(fire)
        if terminated or truncated:
            return self.env.reset(**{**kwargs, "seed": None})
        return after, after_info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """An action, and fire after a lost life: in training that is an end, so no agent learns to.

        Without it a greedy policy may wait for the next ball until the game's limit.
        """
        unwrapped: Any = self.env.unwrapped
        before = unwrapped.ale.lives()
        seen, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated or not 0 < unwrapped.ale.lives() < before:
            return seen, reward, terminated, truncated, info
        fire = unwrapped.get_action_meanings().index("FIRE")
        seen, more, terminated, truncated, info = self.env.step(fire)
        return seen, float(reward) + float(more), terminated, truncated, info


class Sign(gym.Wrapper[Any, Any, Any, Any]):
    """The sign of each reward, so that one learning rate does for every game."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """An action, with -1, 0 or 1."""
        seen, reward, terminated, truncated, info = self.env.step(action)
        return seen, float(np.sign(reward)), terminated, truncated, info


def has_ale(layer: Any) -> bool:
    """Whether this layer holds the emulator."""
    return hasattr(layer, "ale") and hasattr(layer.ale, "cloneState")


def ale_state(layer: Any) -> bytes:
    """The emulator's state with its generator's, which games may draw from."""
    return pickle.dumps(layer.ale.cloneState(include_rng=True))


def set_ale_state(layer: Any, kept: bytes) -> None:
    """Put it back."""
    layer.ale.restoreState(pickle.loads(kept))
