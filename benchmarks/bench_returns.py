"""What the agents' recipes reach: trainings over seeds, each played on fresh episodes.

    python benchmarks/bench_returns.py [recipes=dqn,ppo] [seeds=1..10] [episodes=100] [jobs=1]
                                       [key=value …]

A recipe is a job file, agents/NAME.toml, with its parameters as they stand; other words replace
some of them, and are kept apart from the recipe itself. Each training is a process of its own, on
one thread and no GPU. Afterwards the checkpoint with the highest eval/return (of equals the
latest) and the last one play episodes whose seeds neither training nor evaluation can have used.

A row is a seed; the interval is of the mean over seeds (percentile bootstrap). CPU seconds are of
the training's process, its evaluations and imports too. results/bench/returns.json gets each seed
when it is done, with its curve, and a repeat measures only what is not there; what was measured
with other parameters is forgotten. A changed agent is not noticed: remove the file then.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pairs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

AGENTS = Path(__file__).resolve().parents[1] / "agents"
FILE = pairs.RESULTS / "returns.json"
RESAMPLES = 10_000


@dataclass(frozen=True)
class Goal:
    """What the mean of the chosen checkpoints is to be at least, and what others published."""

    at_least: float | None
    published: str


NONE = Goal(None, "-")
RECIPES = {
    "sac": Goal(-170, "-"),
    "dqn": Goal(475, "500.0 ± 0.0, rl-baselines3-zoo"),
    "dqn_mountaincar": Goal(-115, "-100.8 ± 9.9, rl-baselines3-zoo"),
    "ppo": Goal(500, "500.0 ± 0.0, rl-baselines3-zoo"),
    "ppo_pendulum": Goal(-200, "-172 ± 104, rl-baselines3-zoo (with gSDE)"),
    "ppo_hopper": Goal(None, "2383 ± 272, CleanRL (v4)"),
    "ppo_halfcheetah": Goal(None, "1442 ± 46, CleanRL (v4)"),
}


def read_recipe(name: str, words: dict[str, str]) -> tuple[str, dict[str, str]]:
    """The agent's script, and its options with those of the command line. Exits where unknown."""
    path = AGENTS / f"{name}.toml"
    if not path.is_file():
        sys.exit(f"recipes: there is no {path}")
    job = tomllib.loads(path.read_text("utf-8"))
    options = {key: str(value) for key, value in job["params"].items()}
    return job["entry"], {**options, **words}


def train(entry: str, options: dict[str, str], seed: int, episodes: int) -> dict[str, Any]:
    """One training in a folder that is deleted afterwards, and what its checkpoints reach."""
    words = [f"{key}={value}" for key, value in {**options, "seed": str(seed)}.items()]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        env = {
            **os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
            "RUNNER_CHECKPOINTS": str(folder / "checkpoints"), "RUNNER_LOGS": str(folder / "logs"),
            "RUNNER_PROGRESS": str(folder / "progress"),
        }  # fmt: skip
        for name in ("RUNNER_PARAMS", "RUNNER_RESUME"):
            env.pop(name, None)
        used = pairs.run_process([sys.executable, str(AGENTS / entry), *words], env=env)
        told = [json.loads(line) for line in (folder / "progress").read_text().splitlines()]
        chosen = play(folder / "checkpoints", folder, seed, episodes, env)
        last = play(max((folder / "checkpoints").glob("step-*")), folder, seed, episodes, env)
    points = [
        [line["step"], line["metrics"].get("reward"), line["metrics"].get("eval/return")]
        for line in told
        if {"reward", "eval/return"} & set(line.get("metrics", {}))
    ]
    return {
        "chosen": chosen["return"]["mean"], "chosen_step": chosen["step"],
        "chosen_min": chosen["return"]["min"], "last": last["return"]["mean"],
        "steps": last["step"], "cpu_s": round(used.cpu_s, 1), "wall_s": round(used.wall_s, 1),
        "curve": points,
    }  # fmt: skip


def play(
    checkpoint: Path, folder: Path, seed: int, episodes: int, env: dict[str, str]
) -> dict[str, Any]:
    """What agents/evaluate.py says of a checkpoint, or of the best of a folder."""
    words = [f"checkpoint={checkpoint}", f"episodes={episodes}", f"seed={seed}"]
    env = {**env, "RUNNER_LOGS": str(folder / "played"), "RUNNER_PROGRESS": os.devnull}
    pairs.run_process([sys.executable, str(AGENTS / "evaluate.py"), *words], env=env)
    found: dict[str, Any] = json.loads((folder / "played" / "evaluation.json").read_text())
    return found


def keep(label: str, made_with: dict[str, Any], rows: dict[str, Any]) -> dict[str, Any]:
    """Put rows by seed into the file, whole, and return all there are with these parameters."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    with open(FILE.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # recipes may be measured side by side
        everything = json.loads(FILE.read_text()) if FILE.is_file() else {}
        there = everything.get(label, {})
        old = there.get("seeds", {}) if there.get("made_with") == made_with else {}
        rows = {**old, **rows}
        rows = dict(sorted(rows.items(), key=lambda item: int(item[0])))
        everything[label] = {"made_with": made_with, "seeds": rows}
        part = FILE.with_suffix(".part")
        part.write_text(json.dumps(everything, indent=1) + "\n")
        part.replace(FILE)
    return rows


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the mean over seeds."""
    rng, numbers = np.random.default_rng(0), np.array(values)
    means = rng.choice(numbers, (RESAMPLES, len(numbers))).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def report(label: str, goal: Goal, rows: dict[str, Any]) -> None:
    """Print the table of a recipe."""
    print(f"\n{label}: {len(rows)} seeds, published: {goal.published}")
    print(f"  {'seed':>8} {'chosen':>8} {'(step)':>9} {'lowest':>8} {'last':>8} {'CPU s':>7}")
    for seed, row in rows.items():
        print(f"  {seed:>8} {row['chosen']:8.1f} {row['chosen_step']:9,} {row['chosen_min']:8.1f} "
              f"{row['last']:8.1f} {row['cpu_s']:7.0f}")  # fmt: skip
    for kind in ("chosen", "last"):
        values = [row[kind] for row in rows.values()]
        low, high = interval(values)
        line = f"  {kind:6}  mean {np.mean(values):.1f}  95 % [{low:.1f}, {high:.1f}]  "
        line += f"seeds {min(values):.1f} to {max(values):.1f}"
        if kind == "chosen" and goal.at_least is not None:
            word = "reached" if np.mean(values) >= goal.at_least else "MISSED"
            line += f"  goal at least {goal.at_least:g}: {word}"
        print(line)
    cpu_s = [row["cpu_s"] for row in rows.values()]
    steps = next(iter(rows.values()))["steps"]
    print(f"  {steps:,} steps, {np.median(cpu_s):.0f} CPU seconds (median)", flush=True)


def measure(
    name: str, words: dict[str, str], seeds: range, episodes: int, jobs: int
) -> dict[str, Any]:
    """Train a recipe with the seeds that are not there yet; print and return all that are."""
    entry, options = read_recipe(name, words)
    made_with = {**options, "episodes": str(episodes)}
    label = " ".join([name, *(f"{key}={value}" for key, value in words.items())])
    there = keep(label, made_with, {})

    def one(seed: int) -> None:
        row = train(entry, options, seed, episodes)
        keep(label, made_with, {str(seed): row})
        print(f"{label} seed {seed}: chosen {row['chosen']:.1f}  last {row['last']:.1f}  "
              f"{row['cpu_s']:.0f} CPU s", file=sys.stderr, flush=True)  # fmt: skip

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, [seed for seed in seeds if str(seed) not in there]))
    goal = NONE if words else RECIPES.get(name, NONE)
    rows = keep(label, made_with, {})
    report(label, goal, rows)
    return rows


def main(words: list[str]) -> None:
    """Measure what was asked for."""
    if any("=" not in word for word in words):
        sys.exit(f"usage: {Path(sys.argv[0]).name} [recipes=A,B] [seeds=1..10] [episodes=100] "
                 "[jobs=1] [key=value …]")  # fmt: skip
    given = dict(word.split("=", 1) for word in words)
    recipes = given.pop("recipes", ",".join(RECIPES)).split(",")
    seeds = pairs.numbers(given.pop("seeds", "1..10"))
    episodes, jobs = int(given.pop("episodes", "100")), int(given.pop("jobs", "1"))
    for name in recipes:
        try:
            measure(name, given, seeds, episodes, jobs)
        except pairs.Failed as problem:
            sys.exit(f"{name}: {problem}")


if __name__ == "__main__":
    main(sys.argv[1:])
