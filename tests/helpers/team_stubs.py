"""Small teams by PettingZoo's parallel interface, each with one peculiarity: `team_stubs:NAME`."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete


class Matching:
    """Three agents, each to answer a symbol with its own permutation of it; rewards are shared.

    Each reward is the share of right answers, so eight steps of three agents are worth 24. The
    spaces begin at different actions, and the last agent sees one number more than the others.
    """

    def __init__(self, dies: int | None = None, length: int = 8) -> None:
        self.possible_agents = ["first", "second", "third"]
        self.agents: list[str] = []
        self.dies, self.length = dies, length  # the second agent dies at this step
        self.np_random = np.random.default_rng()
        self.made = 0
        self.closed = False

    def observation_space(self, agent: str) -> Any:
        return Box(-np.inf, np.inf, (4 if agent == "third" else 3,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(3, start=self.possible_agents.index(agent))

    def draw(self) -> int:
        return int(self.np_random.integers(3))

    def _seen(self, agents: list[str]) -> dict[str, Any]:
        eye = np.eye(3, dtype=np.float32)
        return {a: eye[self.symbol] if a != "third" else np.append(eye[self.symbol], self.t)
                for a in agents}  # fmt: skip

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.np_random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.t, self.symbol = 0, self.draw()
        return self._seen(self.agents), {a: {} for a in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents)
        right = 0
        for agent, action in actions.items():
            assert type(action) is int and self.action_space(agent).contains(action)
            k = self.possible_agents.index(agent)
            right += action - k == (self.symbol + k) % 3
        self.t += 1
        self.made += 1
        self.symbol = self.draw()
        live = self.agents
        ended = {a: a == "second" and self.t == self.dies for a in live}
        limit = dict.fromkeys(live, self.t == self.length)
        self.agents = [a for a in live if not (ended[a] or limit[a])]
        rewards = dict.fromkeys(live, right / len(live))
        return self._seen(live), rewards, ended, limit, {a: {} for a in live}

    def close(self) -> None:
        self.closed = True


def Mortal() -> Matching:
    """The second agent dies in the middle of the episode: 3 * 3 + 2 * 5 is most."""
    return Matching(dies=3)


class Counter(Matching):
    """Each sees 100 * episode + step, rewards count the steps; every other episode ends for real.

    The second agent dies at step 3 of 5.
    """

    def __init__(self) -> None:
        super().__init__(dies=3, length=5)
        self.episode = 0

    def _seen(self, agents: list[str]) -> dict[str, Any]:
        shown = {a: np.zeros(self.observation_space(a).shape, np.float32) for a in agents}
        for row in shown.values():
            row[0] = 100 * self.episode + self.t
        return shown

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.episode += 1
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        seen, rewards, ended, limit, infos = super().step(actions)
        if self.episode % 2:
            ended, limit = {a: ended[a] or limit[a] for a in ended}, dict.fromkeys(limit, False)
        return seen, dict.fromkeys(rewards, float(self.t)), ended, limit, infos


class Late(Counter):
    """The third agent joins after the second step of each episode."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        seen, infos = super().reset(seed, options)
        self.agents.remove("third")
        del seen["third"], infos["third"]
        return seen, infos

    def step(self, actions: dict[str, int]) -> Any:
        seen, *rest = super().step(actions)
        if self.t == 2:
            self.agents.append("third")
            seen.update(self._seen(["third"]))
        return (seen, *rest)


class Lingering(Matching):
    """Keeps who has died among its agents, and asks them for actions."""

    def __init__(self) -> None:
        super().__init__(dies=3)

    def step(self, actions: dict[str, int]) -> Any:
        seen, rewards, ended, limit, infos = super().step(actions)
        self.agents = [a for a in self.possible_agents if not limit[a]]
        return seen, rewards, ended, limit, infos


class Silent(Matching):
    """Takes the second agent out without a word of why, and without its last observation."""

    def __init__(self) -> None:
        super().__init__(dies=3)

    def step(self, actions: dict[str, int]) -> Any:
        seen, rewards, ended, limit, infos = super().step(actions)
        if ended.get("second"):
            for told in (seen, ended, limit):
                del told["second"]
        return seen, rewards, ended, limit, infos


class Endless(Matching):
    def __init__(self) -> None:
        super().__init__(length=-1)


class Broken(Matching):
    def step(self, actions: dict[str, int]) -> Any:
        seen, rewards, *rest = super().step(actions)
        if self.made == 333:
            rewards["third"] = float("nan")
        return (seen, rewards, *rest)


class Shared(Matching):
    def draw(self) -> int:
        return int(np.random.randint(3) + random.randrange(3)) % 3


class Unkept(Matching):
    """Its symbols come from where no pickle reaches."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            rng = np.random.default_rng(seed)
            self.symbols = (int(rng.integers(3)) for _ in itertools.count())
        return super().reset(seed, options)

    def draw(self) -> int:
        return next(self.symbols)


class _Fresh(Matching):
    """Its copy is a fresh one, as of many environments that are made anew from their arguments."""

    def __reduce__(self) -> Any:
        return (_Fresh, ())


class Around:
    """A wrapper with a screen, which no pickle takes, around an environment that it asks."""

    inner = "env"

    def __init__(self) -> None:
        setattr(self, self.inner, _Fresh())
        self.screen = (None for _ in ())

    def __getattr__(self, name: str) -> Any:
        if name == self.inner or name.startswith("__"):
            raise AttributeError(name)
        return getattr(getattr(self, self.inner), name)


class Hidden(Around):
    """As its environment is held by another name, only a fresh copy of it could be kept."""

    inner = "game"


class Old(Matching):
    def step(self, actions: dict[str, int]) -> Any:
        return super().step(actions)[:4]


class Smooth(Matching):
    def action_space(self, agent: str) -> Any:
        return Box(-1, 1, (2,), np.float32)


class Uneven(Matching):
    def action_space(self, agent: str) -> Any:
        return Discrete(3 if agent == "first" else 4)


class Pictures(Matching):
    def observation_space(self, agent: str) -> Any:
        return Box(0, 255, (8, 8, 3), np.uint8)


class Untold(Matching):
    """Shows more than its space says."""

    def observation_space(self, agent: str) -> Any:
        return Box(-np.inf, np.inf, (2,), np.float32)


class Alone:
    """No team: it has an agent only."""

    action_space = Discrete(2)
