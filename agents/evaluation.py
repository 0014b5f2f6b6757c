"""Greedy play: to measure a training as it goes, and a checkpoint afterwards."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import blame
import numpy as np
from checkpoint import best_checkpoint, read_model
from environments import Env, make_env
from numpy.typing import NDArray
from options import read_options
from runtime import Fault, Run
from seeds import SEEDS_EVALUATION, SEEDS_FRESH, derive_seed, preserved_global_rng

Choose: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
"""(n, *shape) observations to n actions: counted from 0, or numbers within the box."""
LONGEST_EPISODE = 27_000  # steps; an evaluation episode that never ends is cut here
PARALLEL_EPISODES = 32  # evaluated side by side, so that one forward pass serves them all


class Remembering(ABC):
    """A policy that remembers what it has seen in an episode; others are plain functions."""

    @abstractmethod
    def begin(self, n: int) -> None:
        """So many episodes begin side by side."""

    @abstractmethod
    def forget(self, i: int) -> None:
        """The i-th of them has ended, and another begins in its place."""

    @abstractmethod
    def __call__(self, seen: NDArray[Any]) -> NDArray[Any]:
        """As of any Choose, for all of them at once."""


def play_greedy(
    name: str,
    choose: Choose,
    *,
    episodes: int,
    seed: int,
    stream: int,
    stop: Callable[[], bool] = lambda: False,
    make: Callable[[str], Env] = make_env,
) -> list[float] | None:
    """Returns of `episodes` whole episodes, or None when `stop` said so.

    choose: (n, *shape) observations to n actions, counted from 0, or numbers within the box. make:
    gives an environment, closed at the end, also on an exception. Environments and seeds
    (`derive_seed` of seed and stream) are its own and the global generators are put back: a
    training goes on as if nothing had been played. Raises Fault when an environment's code fails.
    """
    totals = [0.0] * episodes
    side_by_side = min(episodes, PARALLEL_EPISODES)
    remembering = choose if isinstance(choose, Remembering) else None
    with preserved_global_rng(), contextlib.ExitStack() as stack:
        envs: list[Env] = []
        for _ in range(side_by_side):
            envs.append(stack.enter_context(contextlib.closing(make(name))))
        first = getattr(envs[0].action_space, "start", None)
        if remembering is not None:
            remembering.begin(side_by_side)
        played = list(range(side_by_side))  # the episode that each environment is in
        lengths = [0] * side_by_side
        begun = side_by_side
        with blame.refusing(name):
            seen = np.stack(
                [env.reset(seed=derive_seed(seed, stream, i))[0] for i, env in enumerate(envs)]
            )
        if seen.dtype != np.uint8:
            seen = seen.astype(np.float32)
        running = list(range(side_by_side))
        while running:
            if stop():
                return None
            chosen = choose(seen)
            actions = chosen if first is None else (first + chosen).tolist()
            for i in list(running):
                try:
                    seen[i], reward, terminated, truncated, _ = envs[i].step(actions[i])
                    lengths[i] += 1
                    totals[played[i]] += float(reward)
                    if not (terminated or truncated or lengths[i] >= LONGEST_EPISODE):
                        continue
                    if begun == episodes:
                        running.remove(i)
                        continue
                    seen[i] = envs[i].reset(seed=derive_seed(seed, stream, begun))[0]
                except Exception as error:
                    raise blame.fault_of(name, error) from error
                played[i], lengths[i] = begun, 0
                begun += 1
                if remembering is not None:
                    remembering.forget(i)
    return totals


def evaluate(
    run: Run,
    options: Any,
    policy: Choose,
    *,
    step: int,
    play: Callable[..., list[float] | None] = play_greedy,
) -> dict[str, float]:
    """`eval/return`, the mean of greedy episodes; empty on other ranks than 0 and when stopping.

    options: with env, seed and eval_episodes. play: as play_greedy, for what gymnasium does not
    make. Raises Fault when the mean is not finite.
    """
    if run.rank:
        return {}
    returns = play(
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


def evaluate_by_hand(
    words: Sequence[str],
    policy: Callable[[dict[str, Any]], Choose],
    play: Callable[..., list[float] | None] = play_greedy,
) -> None:
    """Print the greedy return of a checkpoint on episodes that no training has seen.

    policy: from the contents of model.pt to its greedy policy. play: as play_greedy. Raises
    Refused.
    """
    asked = read_options(Evaluation, words)
    folder = best_checkpoint(Path(asked.evaluate), "eval/return")
    state = read_model(folder)
    returns = play(
        state["env"], policy(state), episodes=asked.episodes, seed=asked.seed, stream=SEEDS_FRESH
    )
    assert returns is not None
    print(
        f"{folder.name}  env {state['env']}  episodes {asked.episodes}  "
        f"return {np.mean(returns):.2f}  std {np.std(returns):.2f}  min {min(returns):.1f}"
    )
