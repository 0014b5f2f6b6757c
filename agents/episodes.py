"""Environments: making or refusing them, keeping their state, playing greedy episodes."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import gymnasium as gym
import numpy as np
import torch
from checkpoint import best_checkpoint, read_model
from numpy.typing import NDArray
from runtime import (
    SEEDS_EVALUATION,
    SEEDS_FRESH,
    SEEDS_TRAIN,
    Fault,
    Refused,
    Run,
    append_line,
    derive_seed,
    edge,
    near,
    open_progress,
    read_options,
)

T = TypeVar("T")
Env: TypeAlias = gym.Env[Any, Any]
Choose: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.int64]]
LONGEST_EPISODE = 27_000  # steps; an evaluation episode that never ends is cut here
PARALLEL_EPISODES = 32  # evaluated side by side, so that one forward pass serves them all


def make_env(name: str) -> Env:
    """The environment `name`, a gymnasium id or `module:id`. Raises Refused, with near names.

    Modules are looked up beside the agent and in the current folder.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    module, _, plain = name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        # the checker costs a third of a CartPole step; `check_env` looks once instead
        return gym.make(plain, disable_env_checker=True)
    except ModuleNotFoundError as error:
        raise Refused(f"env {name!r}: {error}") from error
    except gym.error.Error as error:
        known = near(plain, gym.registry) if plain not in gym.registry else ""
        raise Refused(f"env {name!r} cannot be made{known or f': {error}'}") from error


def check_env(name: str) -> tuple[int, int, bool]:
    """What a value-based agent must know of `name`, found by trying it for a moment.

    Returns (numbers in an observation, number of actions, whether its state survives a pickle).
    Raises Refused for anything but flat Box observations, Discrete actions and gymnasium's API.
    """
    env = make_env(name)
    with contextlib.closing(env), preserved_global_rng():
        seen, acts = env.observation_space, env.action_space
        if not isinstance(seen, gym.spaces.Box) or len(seen.shape) != 1:
            raise Refused(
                f"env {name!r} has observations {seen}; only flat ones, a Box of one dimension, "
                "are learned from here (gymnasium.wrappers.FlattenObservation may help)"
            )
        if not isinstance(acts, gym.spaces.Discrete):
            raise Refused(f"env {name!r} has actions {acts}; only Discrete ones are chosen here")
        try:
            observation, _ = env.reset(seed=0)
            _, _, _, _, _ = env.step(int(acts.start))
        except (TypeError, ValueError, AttributeError) as error:
            raise Refused(f"env {name!r} does not follow gymnasium's API: {error}") from error
        if np.shape(observation) != seen.shape:
            raise Refused(f"env {name!r}: reset() gives {np.shape(observation)}, not {seen.shape}")
        return int(seen.shape[0]), int(acts.n), survives_pickle(env, acts)


def survives_pickle(env: Env, actions: gym.spaces.Discrete) -> bool:
    """Whether a pickled copy goes on exactly like the original.

    Pickles of MuJoCo and ALE load without a word and hold a fresh environment: EzPickle keeps
    the arguments only. Others fail or share hidden state, so a copy is stepped beside the original.
    """
    layer: Any = env
    while layer is not None:
        if isinstance(layer, gym.utils.EzPickle):
            return False
        layer = getattr(layer, "env", None)
    chooser = np.random.default_rng(0)

    def roll(one: Env, choices: NDArray[np.int64]) -> list[tuple[bytes, Any, Any, Any]]:
        trace = []
        for choice in choices:
            seen, reward, terminated, truncated, _ = one.step(int(choice))
            trace.append((np.asarray(seen).tobytes(), reward, terminated, truncated))
            if terminated or truncated:
                trace.append((np.asarray(one.reset()[0]).tobytes(), 0, False, False))
        return trace

    try:
        env.reset(seed=1)
        roll(env, actions.start + chooser.integers(actions.n, size=40))
        copy = pickle.loads(pickle.dumps(env))
        choices = actions.start + chooser.integers(actions.n, size=40)
        with preserved_global_rng():  # `Episodes.save` keeps those too
            expected = roll(env, choices)
        return roll(copy, choices) == expected
    except Exception:  # whatever such a copy raises, it cannot be trusted
        return False


@contextlib.contextmanager
def preserved_global_rng() -> Iterator[None]:
    """Undo what environments without a generator of their own draw from the global ones."""
    numbers, words, tensors = np.random.get_state(), random.getstate(), torch.get_rng_state()
    try:
        yield
    finally:
        np.random.set_state(numbers)
        random.setstate(words)
        torch.set_rng_state(tensors)


class Episodes:
    """Some environments in the middle of their episodes, stepped one by one.

    seen: (n, numbers) float32, the observation each is at. index: numbers of these environments
    among those of all ranks, which give their seeds. exact: as `check_env` found.
    """

    def __init__(self, name: str, *, seed: int, index: range, exact: bool) -> None:
        self.name, self.seed, self.index, self.exact = name, seed, index, exact
        self.envs = [make_env(name) for _ in index]
        self._first = int(self.envs[0].action_space.start)
        numbers = self.envs[0].observation_space.shape or (1,)
        # torch aligns its memory, so that sums come out the same in the next process
        self.seen: NDArray[np.float32] = torch.zeros(len(index), *numbers).numpy()
        self.returns, self.lengths = [0.0] * len(index), [0] * len(index)
        self.ended: list[tuple[float, int]] = []  # (return, length), taken by `take_ended`
        self._begin()

    def _begin(self, *again: int) -> None:
        for i, env in enumerate(self.envs):
            seed = derive_seed(self.seed, SEEDS_TRAIN, self.index[i], *again)
            self.seen[i] = env.reset(seed=seed)[0]
            self.returns[i], self.lengths[i] = 0.0, 0

    def step(self, i: int, action: int) -> tuple[Any, float, bool, bool]:
        """Step environment `i`; action: counted from 0. An ended one is reset at once.

        Returns (observation reached, reward, terminated, truncated). `seen[i]` is the observation
        to act on next: of the new episode, where one has ended.
        """
        env = self.envs[i]
        after, reward, terminated, truncated, _ = env.step(self._first + action)
        self.returns[i] += float(reward)
        self.lengths[i] += 1
        if terminated or truncated:
            self.ended.append((self.returns[i], self.lengths[i]))
            self.returns[i], self.lengths[i] = 0.0, 0
            self.seen[i] = env.reset()[0]
        else:
            self.seen[i] = after
        return after, float(reward), bool(terminated), bool(truncated)

    def take_ended(self) -> list[tuple[float, int]]:
        """(return, length) of the episodes that ended since the last call."""
        ended, self.ended = self.ended, []
        return ended

    def save(self) -> bytes:
        """All of it, with the global generators; empty where the state cannot be kept."""
        if not self.exact:
            return b""
        shared = np.random.get_state(), random.getstate(), torch.get_rng_state()
        return pickle.dumps((self.envs, self.seen, self.returns, self.lengths, shared))

    def load(self, data: bytes, *, step: int) -> None:
        """Go on with what `save` returned, or begin new episodes where that was empty.

        data: only ever from a file this agent wrote. step: gives new episodes seeds of their own.
        """
        if not data:
            return self._begin(step)
        self.close()
        self.envs, seen, self.returns, self.lengths, shared = pickle.loads(data)
        self.seen[:] = seen
        np.random.set_state(shared[0])
        random.setstate(shared[1])
        torch.set_rng_state(shared[2])
        return None

    def close(self) -> None:
        """End the environments, and what processes they may have."""
        for env in self.envs:
            env.close()


def play_greedy(
    name: str,
    choose: Choose,
    *,
    episodes: int,
    seed: int,
    stream: int,
    stop: Callable[[], bool] = lambda: False,
) -> list[float] | None:
    """Returns of `episodes` whole episodes, or None when `stop` said so.

    choose: (n, numbers) float32 observations to n actions, counted from 0. The environments and
    seeds (`derive_seed` of seed and stream) are its own and the global generators are put back:
    a training goes on as if nothing had been played.
    """
    totals = [0.0] * episodes
    with preserved_global_rng(), contextlib.ExitStack() as stack:
        envs: list[Env] = []
        for _ in range(min(episodes, PARALLEL_EPISODES)):
            envs.append(stack.enter_context(contextlib.closing(make_env(name))))
        first = int(envs[0].action_space.start)
        waiting = iter(range(episodes))
        running: list[list[Any]] = []  # [environment, episode, observation, steps]

        def begin(env: Env) -> None:
            episode = next(waiting, None)
            if episode is not None:
                seen, _ = env.reset(seed=derive_seed(seed, stream, episode))
                running.append([env, episode, seen, 0])

        for env in envs:
            begin(env)
        while running:
            if stop():
                return None
            seen = np.asarray([r[2] for r in running], np.float32)
            for entry, action in zip(list(running), choose(seen).tolist(), strict=True):
                env, episode = entry[0], entry[1]
                entry[2], reward, terminated, truncated, _ = env.step(first + action)
                entry[3] += 1
                totals[episode] += float(reward)
                if terminated or truncated or entry[3] >= LONGEST_EPISODE:
                    entry[0] = None
                    begin(env)
            running = [r for r in running if r[0] is not None]
    return totals


def evaluate(run: Run, options: Any, policy: Choose, *, step: int) -> dict[str, float]:
    """`eval/return`, the mean of greedy episodes; empty on other ranks than 0 and when stopping.

    options: with env, seed and eval_episodes. Raises Fault when the mean is not finite.
    """
    if run.rank:
        return {}
    returns = play_greedy(
        options.env,
        policy,
        episodes=options.eval_episodes,
        seed=options.seed,
        stream=SEEDS_EVALUATION,
        stop=run.asked_to_stop,
    )
    if returns is None:
        return {}
    mean = float(np.mean(returns))
    if not np.isfinite(mean):
        raise Fault("nan", f"the evaluation's mean return is {mean}", step=step)
    return {"eval/return": mean}


@dataclass(frozen=True)
class Evaluation:
    """What `python agents/AGENT.py evaluate=PATH` is told."""

    evaluate: str = ""  # a checkpoint, or a folder of them: then the best by eval/return
    episodes: int = 100
    seed: int = 0


def evaluate_by_hand(words: Sequence[str], policy: Callable[[dict[str, Any]], Choose]) -> None:
    """Print the greedy return of a checkpoint on episodes that no training has seen.

    policy: from the contents of model.pt to its greedy policy. Raises Refused.
    """
    asked = read_options(Evaluation, words)
    folder = best_checkpoint(Path(asked.evaluate), "eval/return")
    state = read_model(folder)
    returns = play_greedy(
        state["env"], policy(state), episodes=asked.episodes, seed=asked.seed, stream=SEEDS_FRESH
    )
    assert returns is not None
    print(
        f"{folder.name}  env {state['env']}  episodes {asked.episodes}  "
        f"return {np.mean(returns):.2f}  std {np.std(returns):.2f}  min {min(returns):.1f}"
    )


def launch(
    cls: type[T],
    train: Callable[[T, Run], Any],
    policy: Callable[[dict[str, Any]], Choose],
    words: Sequence[str],
) -> None:
    """An agent's main: options in, training or evaluation, exit status out.

    cls: a dataclass of options with `seed` (drawn when negative) and `device`. Exit status: 0 done,
    1 a fault, 2 refused (its fault line says `setup`: to start again would not help), 143 or 130
    stopped by a signal with the state saved.
    """
    name, run = Path(sys.argv[0]).stem, None
    try:
        if any(word.startswith("evaluate=") for word in words):
            return evaluate_by_hand(words, policy)
        options: Any = read_options(cls, words)
        run = Run(name, device=options.device)
        if options.seed < 0:
            old = read_model(run.resume)["options"]["seed"] if run.resume else None
            drawn = run.gather(int.from_bytes(os.urandom(4), "big"))[0]
            options = replace(options, seed=drawn if old is None else old)
        with edge(run):
            train(options, run)
    except Refused as problem:
        if run and run.hand_folder:
            run.hand_folder.rmdir()  # nothing was written yet
        lines = str(problem).splitlines()
        for line in lines:
            print(f"{name}: {line}", file=sys.stderr)
        with contextlib.suppress(OSError):  # a full disk must not hide what was said
            append_line(open_progress(), {"fault": "setup", "text": "; ".join(lines)})
        sys.exit(2)
    return None
