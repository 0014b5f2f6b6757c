"""Environments in the middle of their episodes, stepped for a training and kept in checkpoints."""

from __future__ import annotations

import random
import weakref
from typing import Any, NamedTuple

import blame
import numpy as np
import torch
from environments import Env, Facts, make_env, set_state, state_of
from numpy.typing import NDArray
from packing import packed, unpacked
from seeds import SEEDS_TRAIN, derive_seed


class Stepped(NamedTuple):
    """What one step of all environments gave, n of them.

    after: (n, *shape), the observations reached, also where an episode ended; the first of the
    next episode are in `Episodes.seen`. rewards: (n,) float32. terminated, truncated: (n,) bool;
    a real end, and a time limit, whose `after` still has a value.
    """

    after: NDArray[Any]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]


class Episodes:
    """Some environments, each reset at once when its episode ends.

    seen: (n, *shape), the observation each is at: what to act on next. index: numbers of these
    environments among those of all ranks, which give their seeds. facts: as `look` found.
    """

    def __init__(self, name: str, *, seed: int, index: range, facts: Facts) -> None:
        self.name, self.seed, self.index, self.exact = name, seed, index, facts.exact
        self.envs: list[Env] = []
        # also at the program's end, for what is refused or fails before a training begins
        self._closing = weakref.finalize(self, blame.closing_all, name, self.envs)
        for _ in index:
            self.envs.append(make_env(name, training=True))
        self._first = int(getattr(self.envs[0].action_space, "start", 0))
        self._discrete = facts.actions > 0
        kind = torch.uint8 if facts.image else torch.float32
        # torch aligns its memory, so that sums come out the same in the next process
        self.seen: NDArray[Any] = torch.zeros(len(index), *facts.shape, dtype=kind).numpy()
        self._after: NDArray[Any] = np.zeros_like(self.seen)
        self.returns, self.lengths = [0.0] * len(index), [0] * len(index)
        self.ended: list[tuple[float, int]] = []  # (return, length), taken by `take_ended`
        self._begin()

    def _begin(self, *again: int) -> None:
        for i, env in enumerate(self.envs):
            seed = derive_seed(self.seed, SEEDS_TRAIN, self.index[i], *again)
            with blame.refusing(self.name):
                self.seen[i] = env.reset(seed=seed)[0]
            self.returns[i], self.lengths[i] = 0.0, 0

    def step(self, i: int, action: Any) -> tuple[Any, float, bool, bool]:
        """Step environment `i`, and reset it if that ends its episode.

        action: counted from 0, or numbers within the box. Returns (observation reached, reward,
        terminated, truncated). Raises Fault when the environment's code fails.
        """
        env = self.envs[i]
        given = self._first + action if self._discrete else action
        try:
            after, reward, terminated, truncated, info = env.step(given)
            self.returns[i] += float(reward)
            self.lengths[i] += 1
            if terminated or truncated:
                # a game's own score, where it is not the sum of what the agent is given
                if not hasattr(env, "has_own_score"):
                    self.ended.append((self.returns[i], self.lengths[i]))
                elif "game" in info:  # of atari.Score
                    self.ended.append(info["game"])
                self.returns[i], self.lengths[i] = 0.0, 0
                self.seen[i] = env.reset()[0]
            else:
                self.seen[i] = after
            return after, float(reward), bool(terminated), bool(truncated)
        except Exception as error:
            raise blame.fault_of(self.name, error) from error

    def step_all(self, actions: NDArray[Any]) -> Stepped:
        """Step every environment once. actions: (n,) counted from 0, or (n, numbers)."""
        n = len(self.envs)
        out = Stepped(
            self._after, np.zeros(n, np.float32), np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        )
        for i, action in enumerate(actions.tolist() if self._discrete else actions):
            out.after[i], out.rewards[i], out.terminated[i], out.truncated[i] = self.step(i, action)
        return out

    def take_ended(self) -> list[tuple[float, int]]:
        """(return, length) of the episodes that ended since the last call; of games, their own."""
        ended, self.ended = self.ended, []
        return ended

    def save(self) -> bytes:
        """All of it, with the global generators; empty where the state cannot be kept."""
        if not self.exact:
            return b""
        own = torch.get_rng_state().numpy().tobytes()
        shared = np.random.get_state(), random.getstate(), own
        states = [state_of(env) for env in self.envs]
        return packed((states, self.seen, self.returns, self.lengths, shared))

    def load(self, data: bytes, *, step: int) -> None:
        """Go on with what `save` returned, or begin new episodes where that was empty.

        data: only ever from a file this agent wrote. step: gives new episodes seeds of their own.
        """
        if not data:
            return self._begin(step)
        states, seen, self.returns, self.lengths, shared = unpacked(data)
        for env, state in zip(self.envs, states, strict=True):
            set_state(env, state)
        self.seen[:] = seen
        np.random.set_state(shared[0])
        random.setstate(shared[1])
        torch.set_rng_state(torch.frombuffer(bytearray(shared[2]), dtype=torch.uint8))
        return None

    def close(self) -> None:
        """End the environments, and what processes they may have."""
        self._closing()
