"""Teams: environments of several agents by PettingZoo's parallel interface, as episodes.

Each agent has a place, by its order in `possible_agents`. Observations are (agents, width): an
agent's own numbers, zeros up to the longest observation of the team, and a one-hot of its place.
Who ends early is out: its place shows zeros, acts no more and gives no data until the next episode.
The return of an episode is the sum over its agents.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import pickle
import pkgutil
import random
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from evaluation import LONGEST_EPISODE, PARALLEL_EPISODES, Choose
from numpy.typing import NDArray
from options import Refused, near
from seeds import SEEDS_TRAIN, derive_seed, preserved_global_rng

Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
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
    function = function or "parallel_env"
    try:
        found = importlib.import_module(module)
    except (ImportError, ValueError) as error:
        known = _near_module(module) if getattr(error, "name", None) == module else ""
        raise Refused(f"env {name!r}: {error}{known}") from error
    make = getattr(found, function, None)
    if not callable(make):
        known = near(function, dir(found)) if ":" in name else ""
        raise Refused(
            f"env {name!r}: {module} has no {function}(){known}; only PettingZoo's parallel "
            "interface is played here"
        )
    try:
        env = make()
    except (ImportError, TypeError, ValueError, AttributeError) as error:
        raise Refused(f"env {name!r} cannot be made: {error}") from error
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
    with contextlib.closing(make_team(name)) as env, preserved_global_rng():
        agents = list(env.possible_agents)
        try:
            seen = [env.observation_space(agent) for agent in agents]
            acts = [env.action_space(agent) for agent in agents]
        except (TypeError, KeyError, AttributeError) as error:
            raise Refused(f"env {name!r} does not tell its agents' spaces: {error}") from error
        for agent, space in zip(agents, seen, strict=True):
            if not isinstance(space, gym.spaces.Box) or len(space.shape) != 1:
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
        facts = TeamFacts(
            len(agents), max(int(s.shape[0]) for s in seen), next(iter(counts.values())), False
        )
        team = Team(env, facts)
        try:
            team.reset(seed=0)
            team.step(np.zeros(len(agents), np.int64))
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise Refused(
                f"env {name!r} does not follow PettingZoo's parallel interface: "
                f"{type(error).__name__}: {error}"
            ) from error
        return TeamFacts(
            facts.agents, facts.numbers, facts.actions, survives(team, lambda: make_team(name))
        )


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
        self.env, self.numbers = env, facts.numbers
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


class Teams:
    """Some environments of one team, each reset at once when its episode ends.

    seen: (n, agents, width), what each agent is to act on next; acting: (n, agents), whether it is
    to act. index: numbers of these environments among those of all ranks, which give their seeds.
    """

    def __init__(self, name: str, *, seed: int, index: range, facts: TeamFacts) -> None:
        self.name, self.seed, self.index, self.exact = name, seed, index, facts.exact
        shape = (len(index), facts.agents, facts.width)
        # torch aligns its memory, so that sums come out the same in the next process
        self.seen: Floats = torch.zeros(shape).numpy()
        self.acting: Flags = np.zeros(shape[:2], np.bool_)
        self.teams: list[Team] = []
        # also at the program's end, for what is refused or fails before a training begins
        self._closing = weakref.finalize(self, _close_all, self.teams)
        for both in zip(self.seen, self.acting, strict=True):
            self.teams.append(Team(make_team(name), facts, *both))
        self.returns, self.lengths = [0.0] * len(index), [0] * len(index)
        self.ended: list[tuple[float, int]] = []  # (return, length), taken by `take_ended`
        self._begin()

    def _begin(self, *again: int) -> None:
        for i, team in enumerate(self.teams):
            team.reset(derive_seed(self.seed, SEEDS_TRAIN, self.index[i], *again))
            self.returns[i], self.lengths[i] = 0.0, 0

    def step(self, actions: NDArray[np.int64], active: int | None = None) -> TeamStep:
        """Step the first `active` environments, all of them by default; who ended is reset.

        actions: (n, agents), counted from 0; those of agents that are not acting are not read.
        """
        told = TeamStep.empty(*self.seen.shape)
        for i, team in enumerate(self.teams[:active]):
            mine = TeamStep(*(array[i] for array in told))
            team.step(actions[i], mine)
            self.returns[i] += float(mine.rewards.sum(dtype=np.float64))
            self.lengths[i] += 1
            if not team.acting.any():
                self.ended.append((self.returns[i], self.lengths[i]))
                self.returns[i], self.lengths[i] = 0.0, 0
                team.reset()
        return told

    def take_ended(self) -> list[tuple[float, int]]:
        """(return summed over agents, length) of the episodes that ended since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def save(self) -> bytes:
        """All of it, with the global generators; empty where the state cannot be kept."""
        if not self.exact:
            return b""
        shared = np.random.get_state(), random.getstate(), torch.get_rng_state().numpy().tobytes()
        states = [state_of(team) for team in self.teams]
        whole = (states, self.seen, self.acting, self.returns, self.lengths, shared)
        return zlib.compress(pickle.dumps(whole), 1)

    def load(self, data: bytes, *, step: int) -> None:
        """Go on with what `save` returned, or begin new episodes where that was empty.

        data: only ever from a file this agent wrote. step: gives new episodes seeds of their own.
        """
        if not data:
            return self._begin(step)
        states, seen, acting, self.returns, self.lengths, shared = pickle.loads(
            zlib.decompress(data)
        )
        for team, state in zip(self.teams, states, strict=True):
            set_state(team, state)
        self.seen[:], self.acting[:] = seen, acting
        np.random.set_state(shared[0])
        random.setstate(shared[1])
        torch.set_rng_state(torch.frombuffer(bytearray(shared[2]), dtype=torch.uint8))
        return None

    def close(self) -> None:
        """End the environments, and what processes they may have."""
        self._closing()


def _close_all(teams: list[Team]) -> None:
    for team in teams:
        team.env.close()


def play_greedy(
    name: str,
    choose: Choose,
    *,
    episodes: int,
    seed: int,
    stream: int,
    stop: Callable[[], bool] = lambda: False,
) -> list[float] | None:
    """Returns, summed over agents, of `episodes` whole episodes, or None when `stop` said so.

    choose: (n, agents, width) observations to (n, agents) actions, counted from 0. As
    evaluation.play_greedy: seeds of its own, and the global generators are put back.
    """
    totals = [0.0] * episodes
    with preserved_global_rng(), contextlib.ExitStack() as stack:
        facts = _shape_of(stack.enter_context(contextlib.closing(make_team(name))))
        n = min(episodes, PARALLEL_EPISODES)
        seen = np.zeros((n, facts.agents, facts.width), np.float32)
        teams = [
            Team(stack.enter_context(contextlib.closing(make_team(name))), facts, row)
            for row in seen
        ]
        for i, team in enumerate(teams):
            team.reset(derive_seed(seed, stream, i))
        played, lengths = list(range(n)), [0] * n  # the episode that each environment is in
        begun, running = n, list(range(n))
        while running:
            if stop():
                return None
            actions = choose(seen)
            for i in list(running):
                totals[played[i]] += float(teams[i].step(actions[i]).rewards.sum(dtype=np.float64))
                lengths[i] += 1
                if teams[i].acting.any() and lengths[i] < LONGEST_EPISODE:
                    continue
                if begun == episodes:
                    running.remove(i)
                    continue
                teams[i].reset(derive_seed(seed, stream, begun))
                played[i], lengths[i] = begun, 0
                begun += 1
    return totals


def _shape_of(env: Any) -> TeamFacts:
    agents = list(env.possible_agents)
    numbers = max(int(env.observation_space(agent).shape[0]) for agent in agents)
    return TeamFacts(len(agents), numbers, int(env.action_space(agents[0]).n), False)


# state


def survives(team: Team, make: Callable[[], Any]) -> bool:
    """Whether a new environment goes on exactly like the team's once it has loaded its state.

    Pickles of many environments load without a word and hold a fresh one, so it is tried: a copy is
    played beside the original.
    """
    chooser = np.random.default_rng(0)
    first, then = (_drawn(chooser, team) for _ in range(2))
    try:
        team.reset(seed=1)
        _roll(team, first)
        data = pickle.dumps((state_of(team), team.seen, team.acting))
        with contextlib.closing(make()) as env:
            copy = Team(env, _shape_of(env))
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
