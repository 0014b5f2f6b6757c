"""One rank of a training, started by torchrun, by mpirun or alone, and what it saw of it.

    python benchmarks/rank.py ENTRY FOLDER key=value …

FOLDER/rank-N.json gets the seeds its environments were given, a digest of the parameters at the end
and their number, and what the training and its all-reduces of gradients took.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

AGENTS = Path(__file__).resolve().parents[1] / "agents"


def be_a_rank(entry: str, folder: str, words: list[str]) -> None:
    """Train as the agent's script would, and write down what this rank saw of it."""
    for theirs, ours in (("RANK", "RANK"), ("SIZE", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
        if f"OMPI_COMM_WORLD_{theirs}" in os.environ:
            os.environ[ours] = os.environ[f"OMPI_COMM_WORLD_{theirs}"]
    sys.path.insert(0, str(AGENTS))

    runtime, episodes, seeds = map(importlib.import_module, ("runtime", "episodes", "seeds"))
    agent: Any = importlib.import_module(entry.removesuffix(".py"))
    launch = importlib.import_module("launch").launch
    given: list[int] = []
    spent = [0, 0.0, 0.0]  # all-reduces, their wall seconds, their CPU seconds
    average = runtime.Run.average

    def derive_seed(seed: int, stream: int, *index: int) -> int:
        found = seeds.derive_seed(seed, stream, *index)
        given.extend([found] if stream == seeds.SEEDS_TRAIN else [])
        return int(found)

    def timed(run: Any, vector: Any) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        average(run, vector)
        if vector.numel() > 100:  # a gradient, and not means of losses
            spent[0] += 1
            spent[1] += time.perf_counter() - wall
            spent[2] += time.process_time() - cpu

    def train(options: Any, run: Any) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        learner = agent.train(options, run).learner
        digest = importlib.import_module("checkpoint").digest(learner.theta.detach())
        found = {
            "seeds": given, "digest": digest, "numbers": learner.theta.numel(),
            "updates": spent[0], "wall_s": time.perf_counter() - wall,
            "cpu_s": time.process_time() - cpu,
            "average_wall_us": 1e6 * spent[1] / max(1, spent[0]),
            "average_cpu_us": 1e6 * spent[2] / max(1, spent[0]),
        }  # fmt: skip
        Path(folder, f"rank-{run.rank}.json").write_text(json.dumps(found))

    episodes.derive_seed, runtime.Run.average = derive_seed, timed
    launch(agent.Options, train, agent.greedy, words)


if __name__ == "__main__":
    be_a_rank(sys.argv[1], sys.argv[2], sys.argv[3:])
