"""How an Atari agent's return rises within 200,000 steps, which one CPU core makes in minutes.

    python benchmarks/bench_curve.py [recipe=ppo_atari] [seed=1] [episodes=10] [key=value …]

agents/ppo_atari.toml is for 10 million steps. The words here fit it to 200,000: smaller rollouts
and minibatches, so that there are as many updates as the core has time for, and a higher learning
rate, which falls to 0 as that of the recipe does. One seed shows that the return rises, not by
how much it does so as a rule. The numbers are left in results/bench/returns.json.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import bench_returns
import numpy as np

WORDS = {
    "env": "BreakoutNoFrameskip-v4", "steps": "200000", "rollout": "64", "batch_size": "128",
    "epochs": "3", "lr": "5e-4", "eval_every": "20000", "eval_episodes": "5",
    "checkpoint_every": "20000", "log_every": "10000",
}  # fmt: skip
Point = Sequence[float | None]


def rows(points: Sequence[Point]) -> list[tuple[int, float | None, float]]:
    """(step, mean return in training since the row before, eval/return) of each evaluation.

    points: (step, return in training or None, eval/return or None) of each line of progress.
    """
    found, since = [], []
    for step, trained, evaluated in points:
        assert step is not None
        if trained is not None:
            since.append(trained)
        if evaluated is not None:
            found.append((int(step), float(np.mean(since)) if since else None, evaluated))
            since.clear()
    return found


def main(words: list[str]) -> None:
    """Train once, or take what is there; print the curve."""
    given = {**WORDS, **dict(word.split("=", 1) for word in words)}
    recipe, seed = given.pop("recipe", "ppo_atari"), int(given.pop("seed", "1"))
    episodes = int(given.pop("episodes", "10"))
    row = bench_returns.measure(recipe, given, range(seed, seed + 1), episodes, 1)[str(seed)]
    print("\n| step | return in training | eval/return |\n|---|---|---|")
    for step, trained, evaluated in rows(row["curve"]):
        print(f"| {step:,} | {'' if trained is None else f'{trained:.1f}'} | {evaluated:.1f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
