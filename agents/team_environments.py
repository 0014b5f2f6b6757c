"""Environments of several agents by PettingZoo's parallel interface: made or refused by name.

Each agent has a place, by its order in `possible_agents`. Observations are (agents, width): an
agent's own numbers, zeros up to the longest observation of the team, and a one-hot of its place.
Who is not there yet, and who ended early, shows zeros, does not act and gives no data; who ended is
out until the next episode.

What a checkpoint keeps of one is what each layer holds, from the outermost wrapper to the
environment itself. Whether that is all of it is tried before a training begins: a copy made of it
is played beside the original.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import pickle
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import blame
import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from options import Refused, near
from seeds import preserved_global_rng

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
API = "PettingZoo's parallel interface"
_TRIED_STEPS = 40


@dataclass(frozen=True)
class TeamFacts:
    """What an algorithm must know of a team.

    agents: how many there can be. numbers: in the longest observation. actions: how many each has
    to choose from. exact: whether a checkpoint can keep the environment's state.
    """

    agents: int
    numbers: int
    actions: int
    exact: bool

    @property
    def width(self) -> int:
        """Numbers in one row of observations, with the one-hot at its end."""
        return self.numbers + self.agents


# making


def make_team(name: str) -> Any:
    """The environment `name`: a module that offers `parallel_env`, or `module:function`.

    Modules are looked up beside the agent and in the current folder. Raises Refused, with near
    names.
    """
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # it greets on stdout
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    module, _, function = name.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        raise Refused(f"env {name!r}: it must be a module with parallel_env, or module:function")
    function = function or "parallel_env"
    try:
        with blame.refusing(name, API):
            found = importlib.import_module(module)
    except Refused as problem:
        error = problem.__cause__
        if not isinstance(error, ImportError):
            raise
        known = _near_module(module) if error.name == module else ""
        raise Refused(f"env {name!r}: {error}{known}") from error
    make = getattr(found, function, None)
    if not callable(make):
        known = near(function, dir(found)) if ":" in name else ""
        raise Refused(
            f"env {name!r}: {module} has no {function}(){known}; only PettingZoo's parallel "
            "interface is played here"
        )
    with blame.refusing(name, API):
        env = make()
    if not getattr(env, "possible_agents", None) or hasattr(env, "agent_iter"):
        raise Refused(
            f"env {name!r} makes {type(env).__name__}, which does not follow PettingZoo's parallel "
            "interface (possible_agents, reset and step for all agents at once)"
        )
    return env


def _near_module(name: str) -> str:
    package, _, last = name.rpartition(".")
    try:
        places = importlib.import_module(package).__path__ if package else []
    except (ImportError, AttributeError):
        return ""
    return near(last, [found.name for found in pkgutil.iter_modules(places)])


def look(name: str) -> TeamFacts:
    """What an algorithm must know of `name`, found by trying it for a moment. Raises Refused."""
    made = make_team(name)
    with blame.refusing(name, API), contextlib.closing(made) as env, preserved_global_rng():
        facts = look_at_spaces(name, env)
        team = Team(env, facts)
        team.reset(seed=0)
        team.step(np.zeros(facts.agents, np.int64))
        return replace(facts, exact=survives(team, lambda: make_team(name)))


def look_at_spaces(name: str, env: Any) -> TeamFacts:
    """What its spaces tell of a team; whether its state can be kept is not among that.

    Raises Refused when one policy cannot learn from all of its agents.
    """
    agents = list(env.possible_agents)
    try:
        seen = [env.observation_space(agent) for agent in agents]
        acts = [env.action_space(agent) for agent in agents]
    except (TypeError, KeyError, AttributeError) as error:
        raise Refused(f"env {name!r} does not tell its agents' spaces: {error}") from error
    for agent, space in zip(agents, seen, strict=True):
        if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1 or 0 in space.shape:
            raise Refused(
                f"env {name!r}: {agent} has observations {space}; only flat ones, a Box of one "
                "dimension, are learned from here"
            )
    for agent, space in zip(agents, acts, strict=True):
        if not isinstance(space, gym.spaces.Discrete):
            raise Refused(
                f"env {name!r}: {agent} has actions {space}; only Discrete ones are chosen here"
            )
    counts = {str(agent): int(space.n) for agent, space in zip(agents, acts, strict=True)}
    if len(set(counts.values())) > 1:
        each = ", ".join(f"{agent} {count}" for agent, count in counts.items())
        raise Refused(
            f"env {name!r} has agents with different numbers of actions ({each}); one policy "
            "for all needs the same number"
        )
    numbers = max(int(space.shape[0]) for space in seen)
    return TeamFacts(len(agents), numbers, next(iter(counts.values())), exact=False)


# playing


class TeamStep(NamedTuple):
    """What one step gave: arrays (agents,), or (n, agents) of n environments; all zero for who
    did not act.

    after: (…, width), the observations reached, those of the last step of an episode too. rewards:
    float32. terminated, truncated: bool; a real end, and a time limit, whose `after` has a value.
    """

    after: Floats
    rewards: Floats
    terminated: Flags
    truncated: Flags

    @classmethod
    def empty(cls, *shape: int) -> TeamStep:
        """All zero; shape: (…, agents, width)."""
        few = shape[:-1]
        return cls(np.zeros(shape, np.float32), np.zeros(few, np.float32),
                   np.zeros(few, np.bool_), np.zeros(few, np.bool_))  # fmt: skip


class Team:
    """One environment in an episode. seen: (agents, width); acting: (agents,), who acts next.

    Both may be rows of larger arrays, which are then written to.
    """

    def __init__(
        self, env: Any, facts: TeamFacts, seen: Floats | None = None, acting: Flags | None = None
    ) -> None:
        self.env, self.facts, self.numbers = env, facts, facts.numbers
        self.agents = list(env.possible_agents)
        # a Discrete space may begin elsewhere than at 0
        self.firsts = [int(env.action_space(agent).start) for agent in self.agents]
        self.shapes = [env.observation_space(agent).shape for agent in self.agents]
        self.seen = np.zeros((facts.agents, facts.width), np.float32) if seen is None else seen
        self.acting = np.zeros(facts.agents, np.bool_) if acting is None else acting
        self.seen[:, facts.numbers :] = np.eye(facts.agents)
        self.out = np.zeros(facts.agents, np.bool_)  # whose end in this episode was told

    def reset(self, seed: int | None = None) -> None:
        """Begin an episode; without a seed the environment goes on with its own generator."""
        seen, _ = self.env.reset() if seed is None else self.env.reset(seed=seed)
        self.out[:] = False
        self._show(seen)

    def _show(self, seen: dict[Any, Any]) -> None:
        present = set(self.env.agents)
        for k, agent in enumerate(self.agents):
            self.acting[k] = acts = agent in present and not self.out[k]
            self.seen[k, : self.numbers] = 0.0
            if acts:
                row = np.asarray(seen[agent])
                if row.shape != self.shapes[k]:
                    raise ValueError(f"{agent} sees {row.shape} numbers, not {self.shapes[k]}")
                self.seen[k, : len(row)] = row

    def step(self, actions: NDArray[np.int64], told: TeamStep | None = None) -> TeamStep:
        """Step who is acting. actions: (agents,), counted from 0. told: zeros to write to.

        After the end of an episode nobody is acting.
        """
        told = TeamStep.empty(*self.seen.shape) if told is None else told
        places = np.flatnonzero(self.acting).tolist()
        chosen = actions.tolist()
        given = {self.agents[k]: self.firsts[k] + chosen[k] for k in places}
        for agent in self.env.agents:  # some keep who has ended, and ask it for actions
            given.setdefault(agent, self.firsts[self.agents.index(agent)])
        seen, rewards, terminated, truncated, _ = self.env.step(given)
        present = set(self.env.agents)
        for k in places:
            agent = self.agents[k]
            limit = bool(truncated.get(agent, False))
            # who is gone without a word of why has ended for real
            end = bool(terminated.get(agent, False)) or (agent not in present and not limit)
            told.rewards[k] = rewards.get(agent, 0.0)
            told.terminated[k], told.truncated[k] = end, limit and not end
            self.out[k] = end or limit
            row = self.seen[k] if seen.get(agent) is None else np.asarray(seen[agent])
            told.after[k, self.numbers :] = self.seen[k, self.numbers :]
            told.after[k, : len(row)] = row
        self._show(seen)
        return told


# state


def survives(team: Team, make: Callable[[], Any]) -> bool:
    """Whether a new environment goes on exactly like the team's once it has loaded its state.

    Pickles of many environments load without a word and hold a fresh one, so it is tried: a copy is
    played beside the original.
    """
    chooser = np.random.default_rng(0)
    first, then = (_drawn(chooser, team) for _ in range(2))
    team.reset(seed=1)
    _roll(team, first)
    try:
        data = pickle.dumps((state_of(team), team.seen, team.acting))
        with contextlib.closing(make()) as env:
            copy = Team(env, team.facts)
            copy.reset(seed=2)
            state, copy.seen[:], copy.acting[:] = pickle.loads(data)
            set_state(copy, state)
            with preserved_global_rng():  # `Teams.save` keeps those too
                expected = _roll(team, then)
            return _roll(copy, then) == expected
    except Exception:  # whatever such a copy raises, it cannot be trusted
        return False


def _drawn(chooser: np.random.Generator, team: Team) -> NDArray[np.int64]:
    counts = [int(team.env.action_space(agent).n) for agent in team.agents]
    return chooser.integers(counts, size=(_TRIED_STEPS, len(counts)))


def _roll(team: Team, actions: NDArray[np.int64]) -> list[bytes]:
    trace = []
    for row in actions:
        trace += [array.tobytes() for array in team.step(row)]
        if not team.acting.any():
            team.reset()
        trace += [team.seen.tobytes(), team.acting.tobytes()]
    return trace


def state_of(team: Team) -> tuple[Flags, list[dict[str, Any]]]:
    """Who is out, and what each layer of the environment holds, the outermost first.

    Pickled as one, so that what layers share stays shared.
    """
    return team.out, [_of_layer(layer) for layer in _layers(team.env)]


def set_state(team: Team, state: tuple[Flags, list[dict[str, Any]]]) -> None:
    """Put what `state_of` gave into another team of the same name."""
    team.out[:] = state[0]
    for layer, held in zip(_layers(team.env), state[1], strict=True):
        vars(layer).update(held)


def _layers(env: Any) -> Iterator[Any]:
    """Wrappers of both of PettingZoo's interfaces hold the next layer as `env` or `aec_env`."""
    while env is not None:
        yield env
        held = vars(env)
        env = next((held[n] for n in _INNER if hasattr(held.get(n), "__dict__")), None)


_INNER = ("env", "aec_env")


def _of_layer(layer: Any) -> dict[str, Any]:
    """What can be pickled: a screen or a font is as good in a new environment as in the old one."""
    held = {name: value for name, value in vars(layer).items() if name not in _INNER}
    return {name: value for name, value in held.items() if _can_be_pickled(value)}


def _can_be_pickled(value: Any) -> bool:
    if inspect.ismodule(value):
        return False
    try:
        pickle.dumps(value)
    except Exception:  # each kind of object refuses in a way of its own
        return False
    return True
