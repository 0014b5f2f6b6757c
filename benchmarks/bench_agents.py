"""Steps per CPU second of agents/dqn.py and ppo.py, CleanRL's and Stable-Baselines3's, in pairs.

    CLEANRL_DIR=… python benchmarks/bench_agents.py [rounds=5] [steps=50000] [only=dqn]

All on CartPole-v1 with CleanRL's hyperparameters, one thread, one seed a round, event files
written, nothing evaluated. Counted is the CPU time of the whole process less that of the same
command with only 1,000 steps, which takes away the imports. The rivals bring their own Pythons:

    git clone https://github.com/vwxyzjn/cleanrl "$CLEANRL_DIR"
    python3 -m venv cleanrl-venv
    cleanrl-venv/bin/pip install torch==2.13.0 'gymnasium==0.29.1' 'numpy<2' tyro tensorboard pygame
    export CLEANRL_PYTHON=cleanrl-venv/bin/python
    python3 -m venv sb3-venv
    sb3-venv/bin/pip install torch==2.13.0 stable-baselines3 tensorboard
    export SB3_PYTHON=sb3-venv/bin/python

A rival that is not there is left out, and said so.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pairs

ROOT = Path(__file__).resolve().parents[1]
FEW_STEPS = 1_000
GOALS = {"cleanrl": 3.0, "sb3": 4.0}
OURS = {
    "dqn": "num_envs=1 buffer_size=10000 learning_starts=10000 train_every=10 updates=1 "
    "batch_size=128 lr=2.5e-4 lr_end=2.5e-4 gamma=0.99 target_every=500 double=false "
    "eps_end=0.05 eps_fraction=0.5 loss=squared max_grad_norm=1e9 hidden=102",
    "ppo": "num_envs=4 rollout=128 epochs=4 batch_size=128 lr=2.5e-4 lr_end=0 gamma=0.99 "
    "gae_lambda=0.95 clip=0.2 clip_end=0.2 entropy=0.01 value_coef=0.5 max_grad_norm=0.5",
}
"""DQN's two layers are 102 wide, which has the parameters and the cost of CleanRL's 120 and 84."""
QUIET = "eval_every=0 checkpoint_every=0 log_every=10000 device=cpu"


def commands(algorithm: str, folder: str) -> dict[str, Callable[[int, int], list[str]]]:
    """Of each side that is there: its argv for so many steps and a seed."""
    found: dict[str, Callable[[int, int], list[str]]] = {}
    agent = str(ROOT / "agents" / f"{algorithm}.py")
    words = [*OURS[algorithm].split(), *QUIET.split()]
    found["runner"] = lambda steps, seed: [
        sys.executable, agent, f"steps={steps}", f"seed={seed}", *words
    ]  # fmt: skip
    checkout, python = os.environ.get("CLEANRL_DIR"), os.environ.get("CLEANRL_PYTHON")
    if checkout and python:
        script = str(Path(checkout).absolute() / "cleanrl" / f"{algorithm}.py")
        own = os.path.abspath(python)
        found["cleanrl"] = lambda steps, seed: [
            own, script, "--total-timesteps", str(steps), "--seed", str(seed), "--no-cuda"
        ]  # fmt: skip
    else:
        print("cleanrl: left out: CLEANRL_DIR and CLEANRL_PYTHON do not name it")
    sb3 = os.environ.get("SB3_PYTHON")
    if sb3:
        rival, own_sb3 = str(ROOT / "benchmarks" / "rival_sb3.py"), os.path.abspath(sb3)
        found["sb3"] = lambda steps, seed: [
            own_sb3, rival, algorithm, str(steps), str(seed), folder
        ]  # fmt: skip
    else:
        print("sb3: left out: SB3_PYTHON does not name it")
    return found


def measure(algorithm: str, rounds: int, steps: int) -> dict[str, list[float]]:
    """Steps per CPU second of each side, round by round; the sides take turns."""
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        sides = commands(algorithm, folder)
        env = {
            **os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
            "RUNNER_CHECKPOINTS": "", "RUNNER_LOGS": "",
            "PYTHONPATH": os.path.abspath(os.environ.get("CLEANRL_DIR", "")),
        }  # fmt: skip
        for seed, order in enumerate(pairs.turns(len(sides), rounds), start=1):
            for place in order:
                name = list(sides)[place]
                cpu_s = [
                    pairs.run_process(sides[name](count, seed), cwd=Path(folder), env=env).cpu_s
                    for count in (FEW_STEPS, steps)
                ]
                rate = (steps - FEW_STEPS) / (cpu_s[1] - cpu_s[0])
                rates.setdefault(name, []).append(rate)
                print(f"  {algorithm} seed {seed} {name}: {rate:.0f}", file=sys.stderr, flush=True)
    return rates


def report(algorithm: str, rates: dict[str, list[float]]) -> None:
    """Print one table, with what was asked for."""
    print(f"{algorithm}: steps per CPU second, median (lowest to highest)")
    for name, found in rates.items():
        there = pairs.spread(found)
        line = f"  {name:8} {there.median:7.0f} ({there.low:.0f} to {there.high:.0f})"
        if name in GOALS:
            times = pairs.spread([a / b for a, b in zip(rates["runner"], found, strict=True)])
            word = "reached" if times.median >= GOALS[name] else "MISSED"
            line += f"   runner is {times.median:.2f} ({times.low:.2f} to {times.high:.2f}) times"
            line += f" as quick; goal {GOALS[name]:g}: {word}"
        print(line)


def main(words: list[str]) -> None:
    """Measure what was asked for, and leave all numbers in results/bench/."""
    given = dict(word.split("=", 1) for word in words)
    rounds, steps = int(given.pop("rounds", "5")), int(given.pop("steps", "50000"))
    chosen = given.pop("only", "dqn,ppo").split(",")
    if given or not set(chosen) <= set(OURS):
        sys.exit("usage: bench_agents.py [rounds=N] [steps=N] [only=dqn,ppo]")
    found = {algorithm: measure(algorithm, rounds, steps) for algorithm in chosen}
    for algorithm, rates in found.items():
        report(algorithm, rates)
    pairs.RESULTS.mkdir(parents=True, exist_ok=True)
    (pairs.RESULTS / "agents.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
