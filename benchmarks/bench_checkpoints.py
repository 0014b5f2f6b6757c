"""What checkpoints of a replay memory of pictures cost a training: its stalls, and its CPU time.

    python benchmarks/bench_checkpoints.py [rings=100000,1000000] [news=1000,50000] [rounds=5]
                                           [pace=1000] [folder=.]

A training as agents/dqn_atari.toml has it, at the start of a game, whose memory is full of random
frames. Then, in each round, so many new frames are added, `pace` a second and never behind another
save, and a checkpoint is saved. Measured are the wall time of that save, for which a training
stands still, the longest it stands still between saves, and the CPU time that keeping the frames
takes, beside what adding them takes without. The naive way is torch.save of the whole memory, with
an fsync, for the smallest ring only. Checkpoints lie below `folder`, the newest three; the first,
which writes the whole ring, is not counted. Each ring is a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pairs
import tomllib
from readings import Reading, report

AGENTS = Path(__file__).resolve().parents[1] / "agents"
OWN = {"rings": "100000,1000000", "news": "1000,50000", "rounds": "5", "pace": "1000",
       "folder": "."}  # fmt: skip
KEEP = 3
LIMIT_S = 3000


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Wall and CPU seconds, of all threads."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


class Full:
    """A training whose memory is full."""

    def __init__(self, ring: int, folder: Path) -> None:
        os.environ["RUNNER_CHECKPOINTS"] = str(folder / "checkpoints")
        os.environ["RUNNER_LOGS"] = str(folder / "logs")
        sys.path.insert(0, str(AGENTS))
        import dqn
        import numpy as np
        from options import read_options
        from runtime import Run

        told = tomllib.loads((AGENTS / "dqn_atari.toml").read_text())["params"]
        told |= {"seed": 1, "device": "cpu", "buffer_size": ring}
        o = read_options(dqn.Options, [f"{name}={value}" for name, value in told.items()])
        self.t: Any = dqn.Training(o, Run("bench", device="cpu"))
        self.rng, self.memory = np.random.default_rng(0), self.t.memory
        rows, few = self.memory.ring.rows, 10_000
        for first in range(0, ring, few):
            frames = rows["frame"][first : first + few]
            frames[:] = self.rng.integers(256, size=frames.shape, dtype=np.uint8)
        rows["back"][o.num_envs :] = o.num_envs
        self.memory.ring.count = ring
        self.folder = self.t.run.checkpoints
        self.folder.mkdir(parents=True)
        self.pictures = self.rng.integers(256, size=(64, *self.t.envs.seen.shape[1:])).astype("u1")

    def add(self, frames: int, pace: float) -> float:
        """As collecting does; the longest that one frame took. pace: a second; 0: no waiting."""
        envs, longest, began = self.t.o.num_envs, 0.0, time.perf_counter()
        for number in range(frames):
            i, picture = number % envs, self.pictures[number % len(self.pictures)]
            if pace:
                time.sleep(max(0.0, began + number / pace - time.perf_counter()))
            before = time.perf_counter()
            self.memory.begin(i, picture, 0)
            self.memory.end(i, picture, 0.0, False, False)
            longest = max(longest, time.perf_counter() - before)
        self.t.step += frames
        return longest

    def save(self) -> None:
        """And take away the older ones, which the runner does beside a training."""
        self.t.save({})

    def prune(self) -> None:
        """Of checkpoints only the newest stay."""
        for old in sorted(self.folder.glob("step-*"))[:-KEEP]:
            shutil.rmtree(old)

    def naive(self, path: Path) -> None:
        """All of the memory in one file."""
        import torch

        with path.open("wb") as file:
            torch.save({"frames": torch.from_numpy(self.memory.ring.rows.view("u1"))}, file)
            file.flush()
            os.fsync(file.fileno())
        path.unlink()


def measure(ring: int, news: Sequence[int], rounds: int, pace: float, folder: Path) -> list[Any]:
    """The figures of one ring, in this process."""
    full, rows, smallest = Full(ring, folder), [], ring == min(map(int, OWN["rings"].split(",")))
    alone = {new: timed(lambda new=new: full.add(new, pace))[1] for new in news}  # type: ignore[misc]
    full.memory.ring.write_ahead(full.folder)
    print(f"  first save: {timed(full.save)[0]:.1f} s", file=sys.stderr, flush=True)
    for new in news:
        found: dict[str, list[float]] = {"save": [], "between": [], "cpu": []}
        for _ in range(rounds):
            cpu = time.process_time()
            found["between"].append(full.add(new, pace))
            found["save"].append(timed(full.save)[0])
            found["cpu"].append(time.process_time() - cpu - alone[new])
            full.prune()
        rows.append({"ring": ring, "new": new, **found})
        said = {name: round(statistics.median(values), 3) for name, values in found.items()}
        print(f"  {ring} {new} {said}", file=sys.stderr, flush=True)
    if smallest:
        walls = [timed(lambda: full.naive(folder / "naive.pt"))[0] for _ in range(rounds)]
        rows.append({"ring": ring, "new": 0, "naive": walls})
    return rows


def main(words: Sequence[str]) -> None:
    """Measure each ring in turn, and print the table."""
    own = pairs.settings(words, OWN)
    rings = [int(ring) for ring in own["rings"].split(",")]
    found: list[Reading] = []
    for ring in rings:
        with tempfile.TemporaryDirectory(prefix="checkpoints-", dir=own["folder"]) as folder:
            told = {**own, "ring": ring, "folder": folder}
            done = subprocess.run(
                [sys.executable, __file__, "measure", json.dumps(told)],
                env={**os.environ, "OMP_NUM_THREADS": "1", "RUNNER_RESUME": ""},
                stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S,
            )  # fmt: skip
        for row in json.loads(done.stdout.splitlines()[-1]):
            what = f"ring of {ring:,}"
            if "naive" in row:
                found.append(Reading(f"{what}, torch.save of all of it", "s", row["naive"]))
                continue
            what += f", {row['new']:,} new"
            found.append(Reading(f"{what}: a save", "s", row["save"]))
            between = [1000 * value for value in row["between"]]
            found.append(Reading(f"{what}: longest stall between", "ms", between))
            found.append(Reading(f"{what}: CPU of keeping them", "s", row["cpu"]))
            took = row["new"] / float(own["pace"])
            share = [100 * value / (value + took) for value in row["save"]]
            note = f"at {float(own['pace']):,.0f} frames a second"
            found.append(Reading(f"{what}: share of the time", "%", share, note=note))
    report("checkpoints", "checkpoints of a memory of pictures", found)


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        a = json.loads(sys.argv[2])
        news = [int(new) for new in a["news"].split(",")]
        OWN["rings"] = a["rings"]
        rows = measure(a["ring"], news, int(a["rounds"]), float(a["pace"]), Path(a["folder"]))
        print(json.dumps(rows))
    else:
        main(sys.argv[1:])
