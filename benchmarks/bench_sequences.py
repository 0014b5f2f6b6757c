"""Peak memory and CPU time of learning from long sequences, with and without segments.

    python benchmarks/bench_sequences.py [lengths=256,1024,4096] [segments=0,8,auto] [envs=16]
                                         [hidden=256] [rounds=3] [out=FILE.json]

One gradient of agents/ppo_lstm.py: the losses of `envs` sequences of so many steps of the memory
task, without an end within, and their backward pass. Each row is a process of its own, whose
allocator hands back what is freed (MALLOC_MMAP_THRESHOLD_); after a warm-up on a short sequence the
largest resident size so far is forgotten (/proc/self/clear_refs), and what it grows by until the
gradient is there is the peak. segments: values of `checkpoint_segments`; auto: the square root of
the length. CPU time is the least of `rounds`. Gradients are compared with those without segments.
Linux only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pairs

AGENTS = Path(__file__).resolve().parent.parent / "agents"
OWN = {"lengths": "256,1024,4096", "segments": "0,8,auto", "envs": "16", "hidden": "256",
       "rounds": "3", "out": ""}  # fmt: skip
WARM_UP_STEPS = 8
LIMIT_S = 600.0


def resident_mib(name: str) -> float:
    """VmRSS (now) or VmHWM (the most) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status has no {name}")


def measure(length: int, segments: int, envs: int, hidden: int, rounds: int) -> dict[str, Any]:
    """One row, measured in this process."""
    sys.path.insert(0, str(AGENTS))
    import ppo_lstm  # first: it sets how many threads torch starts
    import torch
    from parameters import flatten_parameters

    torch.set_flush_denormal(True)  # as a training does
    o = ppo_lstm.Options(hidden=hidden, rollout=length, checkpoint_segments=segments)
    torch.manual_seed(0)
    network = ppo_lstm.Network((6, hidden, 4), recurrent=True, longest=length)
    theta = flatten_parameters(network)

    def gradient(steps: int) -> float:
        """CPU seconds of one gradient."""
        torch.manual_seed(steps)
        seen = torch.randn(steps * envs, 6)
        known = torch.randn(4, steps * envs)
        known[0], known[1] = torch.randint(4, (steps * envs,)), -1.4
        zero = torch.zeros(1, envs, hidden)
        sizes = torch.full((steps,), envs)
        theta.grad.zero_()
        began = time.process_time()
        out = ppo_lstm.over_time(network, seen, (zero, zero), sizes, segments)
        policy, value, entropy = ppo_lstm.ppo_losses(out, known, o.clip)
        (policy + o.value_coef * value - o.entropy * entropy).backward()
        return time.process_time() - began

    gradient(max(WARM_UP_STEPS, segments))
    Path("/proc/self/clear_refs").write_text("5")
    before = resident_mib("VmRSS")
    cpu_s = [gradient(length)]
    peak = resident_mib("VmHWM") - before
    cpu_s += [gradient(length) for _ in range(rounds - 1)]
    return {"peak_mib": peak, "cpu_s": min(cpu_s), "gradient": theta.grad.double().tolist()}


def measured_apart(*numbers: int) -> dict[str, Any]:
    """`measure` in a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536",
           "MALLOC_TRIM_THRESHOLD_": "65536"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, __file__, "measure", *map(str, numbers)],
        env=env, stdout=subprocess.PIPE, text=True, check=True, timeout=LIMIT_S,
    )  # fmt: skip
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Length of the difference of two gradients, as a share of the first one's."""
    apart = sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
    return float(apart / sum(a * a for a in one) ** 0.5)


def main(words: Sequence[str]) -> None:
    """Measure every row in turn, and print the table."""
    own = pairs.settings(words, OWN)
    envs, hidden, rounds = int(own["envs"]), int(own["hidden"]), int(own["rounds"])
    print(f"{envs} sequences, hidden {hidden}, one thread")
    columns = "length  segments  peak MiB   less    CPU s  longer  gradient differs by"
    print(columns, flush=True)
    rows = []
    for length in map(int, own["lengths"].split(",")):
        whole: dict[str, Any] = {}
        for text in own["segments"].split(","):
            segments = round(length**0.5) if text == "auto" else int(text)
            row = measured_apart(length, segments, envs, hidden, rounds)
            whole = whole or row
            less, longer = whole["peak_mib"] / row["peak_mib"], row["cpu_s"] / whole["cpu_s"]
            apart = difference(whole["gradient"], row["gradient"])
            print(f"{length:>6}  {segments:>8}  {row['peak_mib']:>8.1f}  {less:>4.1f}x  "
                  f"{row['cpu_s']:>7.3f}  {longer:>5.2f}x  {apart:.1e}", flush=True)  # fmt: skip
            rows.append({"length": length, "segments": segments, "peak_mib": row["peak_mib"],
                         "cpu_s": row["cpu_s"], "difference": apart})  # fmt: skip
    if own["out"]:
        told = {"envs": envs, "hidden": hidden, "rounds": rounds, "rows": rows}
        Path(own["out"]).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        length, segments, envs, hidden, rounds = map(int, sys.argv[2:])
        print(json.dumps(measure(length, segments, envs, hidden, rounds)))
    else:
        main(sys.argv[1:])
