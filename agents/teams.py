"""Teams in the middle of their episodes, stepped for a training and kept in checkpoints, or played.

The return of an episode is the sum over its agents.
"""

from __future__ import annotations

import contextlib
import random
import weakref
from collections.abc import Callable

import blame
import numpy as np
import torch
from evaluation import LONGEST_EPISODE, PARALLEL_EPISODES, Choose
from numpy.typing import NDArray
from packing import packed, unpacked
from seeds import SEEDS_TRAIN, derive_seed, preserved_global_rng
from team_environments import (
    API,
    Flags,
    Floats,
    Team,
    TeamFacts,
    TeamStep,
    look_at_spaces,
    make_team,
    set_state,
    state_of,
)


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
        self._closing = weakref.finalize(self, _close_all, name, self.teams)
        for both in zip(self.seen, self.acting, strict=True):
            self.teams.append(Team(make_team(name), facts, *both))
        self.returns, self.lengths = [0.0] * len(index), [0] * len(index)
        self.ended: list[tuple[float, int]] = []  # (return, length), taken by `take_ended`
        self._begin()

    def _begin(self, *again: int) -> None:
        for i, team in enumerate(self.teams):
            with blame.refusing(self.name, API):
                team.reset(derive_seed(self.seed, SEEDS_TRAIN, self.index[i], *again))
            self.returns[i], self.lengths[i] = 0.0, 0

    def step(self, actions: NDArray[np.int64], active: int | None = None) -> TeamStep:
        """Step the first `active` environments, all of them by default; who ended is reset.

        actions: (n, agents), counted from 0; those of agents that are not acting are not read.
        Raises Fault when an environment's code fails.
        """
        told = TeamStep.empty(*self.seen.shape)
        for i, team in enumerate(self.teams[:active]):
            mine = TeamStep(*(array[i] for array in told))
            try:
                team.step(actions[i], mine)
                self.returns[i] += float(mine.rewards.sum(dtype=np.float64))
                self.lengths[i] += 1
                if not team.acting.any():
                    self.ended.append((self.returns[i], self.lengths[i]))
                    self.returns[i], self.lengths[i] = 0.0, 0
                    team.reset()
            except Exception as error:
                raise blame.fault_of(self.name, error, API) from error
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
        return packed((states, self.seen, self.acting, self.returns, self.lengths, shared))

    def load(self, data: bytes, *, step: int) -> None:
        """Go on with what `save` returned, or begin new episodes where that was empty.

        data: only ever from a file this agent wrote. step: gives new episodes seeds of their own.
        """
        if not data:
            return self._begin(step)
        states, seen, acting, self.returns, self.lengths, shared = unpacked(data)
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


def _close_all(name: str, teams: list[Team]) -> None:
    blame.closing_all(name, [team.env for team in teams])


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
        n = min(episodes, PARALLEL_EPISODES)
        envs = [stack.enter_context(contextlib.closing(make_team(name))) for _ in range(n)]
        facts = look_at_spaces(name, envs[0])
        seen = np.zeros((n, facts.agents, facts.width), np.float32)
        teams = [Team(env, facts, row) for env, row in zip(envs, seen, strict=True)]
        with blame.refusing(name, API):
            for i, team in enumerate(teams):
                team.reset(derive_seed(seed, stream, i))
        played, lengths = list(range(n)), [0] * n  # the episode that each environment is in
        begun, running = n, list(range(n))
        while running:
            if stop():
                return None
            actions = choose(seen)
            for i in list(running):
                try:
                    rewards = teams[i].step(actions[i]).rewards
                    totals[played[i]] += float(rewards.sum(dtype=np.float64))
                    lengths[i] += 1
                    if teams[i].acting.any() and lengths[i] < LONGEST_EPISODE:
                        continue
                    if begun == episodes:
                        running.remove(i)
                        continue
                    teams[i].reset(derive_seed(seed, stream, begun))
                except Exception as error:
                    raise blame.fault_of(name, error, API) from error
                played[i], lengths[i] = begun, 0
                begun += 1
    return totals
