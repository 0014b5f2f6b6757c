"""What agents/dqn.py reaches with its defaults: one training per seed, then fresh episodes.

    python benchmarks/bench_dqn_seeds.py [seeds=1..5] [episodes=100] [out=FILE.json] [key=value …]

The chosen checkpoint is the one with the highest eval/return in its manifest (of equals the
latest); it and the last one play `episodes` episodes whose seeds neither training nor periodic
evaluation can have used. Other words go to the agent. Prints a table, then the same as JSON.
CPU seconds are those of the training process with its imports.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

AGENT = Path(__file__).resolve().parent.parent / "agents" / "dqn.py"
GOAL = 475.0


def run(words: list[str], **variables: str) -> tuple[str, float, float]:
    """Output, CPU seconds and wall seconds of one call of the agent."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, str(AGENT), *words], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout, cpu_s, time.monotonic() - began


def fresh_return(path: Path, episodes: int, seed: int) -> tuple[int, float, float]:
    """(step, mean, lowest) of greedy episodes played by the checkpoint at `path`."""
    text, _, _ = run([f"evaluate={path}", f"episodes={episodes}", f"seed={seed}"])
    found = re.search(r"step-(\d+) .* return ([-\d.]+) .* min ([-\d.]+)", text)
    assert found, text
    return int(found[1]), float(found[2]), float(found[3])


def measure(seed: int, episodes: int, words: list[str]) -> dict[str, float]:
    """Train with one seed in a folder that is deleted afterwards; one row of the table."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Path(folder, "checkpoints")
        out, cpu_s, wall_s = run(
            [f"seed={seed}", *words],
            RUNNER_CHECKPOINTS=str(checkpoints),
            RUNNER_LOGS=str(Path(folder, "logs")),
        )
        steps = int(re.findall(r"^step (\d+)", out, re.MULTILINE)[-1])
        chosen = fresh_return(checkpoints, episodes, seed)
        last = fresh_return(max(checkpoints.glob("step-*")), episodes, seed)
    return {
        "seed": seed, "chosen_step": chosen[0], "chosen": chosen[1], "chosen_min": chosen[2],
        "last": last[1], "last_min": last[2], "steps": steps, "cpu_s": round(cpu_s, 1),
        "wall_s": round(wall_s, 1), "steps_per_cpu_s": round(steps / cpu_s),
    }  # fmt: skip


def main(words: list[str]) -> None:
    """Measure every seed in turn."""
    own = {"seeds": "1..5", "episodes": "100", "out": ""}
    rest = []
    for word in words:
        key, _, value = word.partition("=")
        if key in own:
            own[key] = value
        else:
            rest.append(word)
    first, _, end = own["seeds"].partition("..")
    rows = []
    columns = ["seed", "chosen_step", "chosen", "chosen_min", "last", "last_min", "cpu_s",
               "wall_s", "steps_per_cpu_s"]  # fmt: skip
    print("  ".join(columns), flush=True)
    for seed in range(int(first), int(end or first) + 1):
        row = measure(seed, int(own["episodes"]), rest)
        rows.append(row)
        print("  ".join(f"{row[c]:>{len(c)}}" for c in columns), flush=True)
    for kind in ("chosen", "last"):
        reached = sum(row[kind] >= GOAL for row in rows)
        print(f"{kind}: {reached} of {len(rows)} at {GOAL:.0f} or above")
    text = json.dumps({"words": rest, "episodes": int(own["episodes"]), "rows": rows}, indent=1)
    print(text)
    if own["out"]:
        Path(own["out"]).write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
