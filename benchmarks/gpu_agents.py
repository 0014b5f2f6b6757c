"""Steps per second of the agents on a card beside the CPU, in mixed precision, and compiled.

    python benchmarks/gpu_agents.py     # `make gpu` does this at its end

Each is a training of its own by the recipe agents/NAME.toml, ended after a few seconds of learning;
what is timed begins some progress lines later, when all is compiled. What has no time left, or
lacks a package, is left out and said so. All numbers go to results/bench/gpu_agents.json.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pairs

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

AGENTS = Path(__file__).resolve().parents[1] / "agents"
BUDGET_S = 150.0  # for all of it; `make gpu` is to end within five minutes
TIMED_S = 3.0
START_S = 60.0  # at most until it learns: imports, first steps, the compiler
WARM_UP_LINES = 3
END_S = 15.0  # for the checkpoint after SIGTERM
LEARNS = "eps_start=0.05 learning_starts=500 buffer_size=20000"
NAMES = {"dqn": LEARNS, "ppo": "", "sac": "learning_starts=500", "ppo_lstm": "",
         "dqn_atari": LEARNS, "ppo_atari": ""}  # fmt: skip
EVERY = {"dqn": 256, "ppo": 256, "ppo_lstm": 2048, "ppo_atari": 1024}
"""Steps between progress lines, whole rounds of updates; of the others 100."""
WAYS = {
    "CPU": "device=cpu", "card": "device=cuda", "card, amp": "device=cuda amp=true",
    "card, compiled": "device=cuda compile=reduce-overhead",
    "card, both": "device=cuda amp=true compile=reduce-overhead",
}  # fmt: skip


def rate(name: str, way: str, until: float) -> float | str:
    """Steps per second, or why there are none. until: by time.monotonic()."""
    job = tomllib.loads((AGENTS / f"{name}.toml").read_text("utf-8"))
    asked = dict(word.split("=") for word in f"{NAMES[name]} {WAYS[way]}".split())
    if not set(asked) <= set(job["params"]):
        return "has no such option"
    if name.endswith("_atari") and not all(map(importlib.util.find_spec, ("ale_py", "cv2"))):
        return "ale-py or opencv-python-headless is not installed"
    if time.monotonic() + TIMED_S + 5 > until:
        return "no time left"
    options = {
        **job["params"], "steps": 10**8, "seed": 1, "eval_every": 0, "checkpoint_every": 0,
        "log_every": EVERY.get(name, 100), **asked,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="gpu-agents-") as folder:
        said = Path(folder, "said")
        with said.open("w") as out:
            agent = subprocess.Popen(
                [sys.executable, AGENTS / job["entry"], *(f"{k}={v}" for k, v in options.items())],
                env=environment(Path(folder)), stdout=out, stderr=out, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            found = look(agent, Path(folder, "progress"), min(until, time.monotonic() + START_S))
        finally:
            end(agent)
        if found is None:
            last = (said.read_text().strip().splitlines() or ["nothing was said"])[-1]
            return f"did not get far enough: {last[:120]}"
        warned = [line for line in said.read_text().splitlines() if line.startswith("WARNING")]
        return warned[0] if warned and "compile=" in warned[0] else found


def environment(folder: Path) -> dict[str, str]:
    """What an agent is told beside its options."""
    told = {name: value for name, value in os.environ.items() if not name.startswith("RUNNER_")}
    told |= {f"RUNNER_{name.upper()}": str(folder / name)
             for name in ("checkpoints", "logs", "progress")}  # fmt: skip
    return {**told, "OMP_NUM_THREADS": "1"}


def look(agent: subprocess.Popen[bytes], progress: Path, until: float) -> float | None:
    """Steps per second over the progress lines, once it learns and is warm; None if too late."""
    while agent.poll() is None and time.monotonic() < until:
        lines = learning(progress)
        if len(lines) > WARM_UP_LINES:
            first, last = lines[WARM_UP_LINES], lines[-1]
            if last["t"] - first["t"] >= TIMED_S:
                return float((last["step"] - first["step"]) / (last["t"] - first["t"]))
        time.sleep(0.1)
    return None


def learning(progress: Path) -> list[dict[str, Any]]:
    """The whole lines that tell of a loss."""
    if not progress.is_file():
        return []
    whole = progress.read_text().rpartition("\n")[0].splitlines()
    lines = [json.loads(line) for line in whole]
    return [one for one in lines if any("loss/" in tag for tag in one.get("metrics", {}))]


def end(agent: subprocess.Popen[bytes]) -> None:
    """Have it stop in good order, or not."""
    if agent.poll() is None:
        agent.send_signal(signal.SIGTERM)
    try:
        agent.wait(END_S)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()


def measure(*, names: list[str], ways: list[str], budget_s: float = BUDGET_S) -> dict[str, Any]:
    """Of each agent and way, steps per second or a reason; what matters most comes first."""
    until, found = time.monotonic() + budget_s, {name: {} for name in names}
    for way in ways:
        for name in names:
            found[name][way] = rate(name, way, until)
    return found


def table(found: Mapping[str, Mapping[str, float | str]]) -> list[str]:
    """Steps per second, and below it why some are missing."""
    lines = ["steps per second  " + "  ".join(f"{way:>14}" for way in WAYS)]
    for name, row in found.items():
        cells = [row.get(way, "needs CUDA") for way in WAYS]
        shown = ["-" if isinstance(cell, str) else f"{cell:.0f}" for cell in cells]
        lines.append(f"{name:16}  " + "  ".join(f"{cell:>14}" for cell in shown))
    for name, row in found.items():
        told: dict[str, list[str]] = {}
        for way in WAYS:
            if isinstance(cell := row.get(way, "needs CUDA"), str):
                told.setdefault(cell, []).append(way)
        lines += [f"  {name}: left out: {'; '.join(ways)}: {why}" for why, ways in told.items()]
    return lines


def report(*, stand_in: bool) -> None:
    """Measure and print; kept is only what a card had a part in."""
    if stand_in:
        print("\n".join(table(measure(names=["dqn", "ppo"], ways=["CPU"], budget_s=120.0))))
        return
    found = measure(names=list(NAMES), ways=list(WAYS))
    print("\n".join(table(found)), flush=True)
    pairs.RESULTS.mkdir(parents=True, exist_ok=True)
    path = pairs.RESULTS / "gpu_agents.json"
    path.write_text(
        json.dumps({"format": 1, "name": "gpu_agents", "rates": found}, indent=1) + "\n"
    )
    print(f"  all numbers: {path}", flush=True)


if __name__ == "__main__":
    report(stand_in=False)
