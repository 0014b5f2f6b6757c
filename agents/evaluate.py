"""Play a checkpoint of any agent here on episodes that no training has seen, greedily.

    runner submit host=gpu1 job=evaluate run=dqn-7k3fa
    python agents/evaluate.py checkpoint=results/dqn-7k3fa/checkpoints episodes=100 videos=2

What is measured is the game's own score. It is written to `evaluation.json` beside the logs, as
`eval/return` at the checkpoint's step to the progress file and an event file, and printed. Equal
options give equal numbers, so a repeat changes nothing.

The interval of the mean is a percentile bootstrap: Efron and Tibshirani, "An Introduction to the
Bootstrap" (1993), section 13.3.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import runtime  # noqa: F401  first: it sets how many threads torch and numpy start

# isort: split
import checkpoint
import evaluation
import numpy as np
import video
from launch import launch
from metrics import Reporter
from options import Refused, check_ranges, near
from runtime import Fault, Run, Stopped
from seeds import SEEDS_FRESH

METRIC = "eval/return"
BEAT_S = 10.0  # a long evaluation shows life this often
RESAMPLES = 10_000

# options


@dataclass(frozen=True)
class Options:
    """What `[params]` of evaluate.toml says."""

    checkpoint: str = ""  # a checkpoint, or a folder of them: then the best by eval/return …
    run: str = ""  # … or the run whose checkpoints these are, on the same host
    episodes: int = 100
    seed: int = 0  # of the episodes
    videos: int = 0  # of the first episodes, where the environment can be rendered
    device: ClassVar[str] = "cpu"  # playing takes longer than choosing

    def __post_init__(self) -> None:
        """Raises Refused, naming every number out of its range."""
        check_ranges(self, episodes=(1, np.inf))
        if bool(self.checkpoint) == bool(self.run):
            raise Refused("say either checkpoint=PATH or run=RUN, one of them")


# the checkpoint


def find_folder(o: Options) -> Path:
    """Where the checkpoints lie. Raises Refused when there is nothing."""
    if o.checkpoint:
        folder = Path(o.checkpoint).expanduser()
        if not folder.is_dir():
            raise Refused(f"checkpoint={o.checkpoint}: no such folder in {os.getcwd()}")
        return folder
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", o.run):
        raise Refused(f"run={o.run}: that is no run's id")
    own = os.environ.get("RUNNER_CHECKPOINTS")
    # on a host the runs' folders lie side by side; elsewhere there is what was pulled
    folder = Path(own).parent / o.run if own else Path("results", o.run, "checkpoints")
    if not folder.is_dir():
        runs = folder.parent if own else Path("results")
        known = [path.name for path in runs.iterdir()] if runs.is_dir() else []
        where = "on this host" if own else "in results/; pull it first"
        raise Refused(f"run={o.run}: no such run {where}{near(o.run, known)}")
    return folder


def read_best(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The best checkpoint of `folder`, or itself, and its model.pt. Raises Refused.

    A run that still trains may remove one while it is read: then the best of the others is taken.
    """
    while True:
        try:
            chosen = checkpoint.best_checkpoint(folder, METRIC)
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refused(f"{folder}: a manifest there cannot be read: {error}") from error
        try:
            said = checkpoint.read_manifest(chosen).get("model.pt")
            if said is None or not (chosen / "model.pt").is_file():
                raise Refused(f"{chosen}: there is no model.pt in it")
            if checkpoint.digest_file(chosen / "model.pt") != said:
                raise Refused(f"{chosen}: model.pt is not what its manifest says; it is damaged")
            return chosen, checkpoint.read_model(chosen)
        except (Refused, FileNotFoundError):
            if chosen.is_dir():
                raise


def find_agent(state: dict[str, Any], chosen: Path) -> ModuleType:
    """The module that wrote a checkpoint; its `greedy(state)` gives the policy. Raises Refused."""
    if missing := [key for key in ("agent", "env", "step") if key not in state]:
        raise Refused(f"{chosen}: model.pt does not say its {' or '.join(missing)}")
    name = state["agent"]
    here = Path(__file__).parent
    if not (isinstance(name, str) and name.isidentifier() and (here / f"{name}.py").is_file()):
        raise Refused(f"{chosen}: made by {name!r}, and there is no such agent in {here}")
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise Refused(f"{chosen}: its agent {name} cannot be imported: {error}") from error
    if not hasattr(module, "greedy"):
        raise Refused(f"{chosen}: agents/{name}.py has no greedy(state), which gives its policy")
    return module


def player(module: ModuleType) -> Callable[..., list[float] | None]:
    """What plays an agent's policies: evaluation.play_greedy, or its own of that name and form."""
    own: Callable[..., list[float] | None] | None = getattr(module, "play_greedy", None)
    return own or evaluation.play_greedy


# what comes out


def interval(returns: list[float]) -> tuple[float, float] | None:
    """95 % interval of the mean; None of a single return, which says nothing of others."""
    if len(returns) < 2:
        return None
    values, rng = np.array(returns), np.random.default_rng(0)
    means = [values[rng.integers(len(values), size=len(values))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def summary(returns: list[float]) -> dict[str, Any]:
    """What `evaluation.json` says of the returns."""
    bounds = interval(returns)
    return {
        "mean": float(np.mean(returns)), "std": float(np.std(returns)),
        "min": min(returns), "max": max(returns), "median": float(np.median(returns)),
        "interval_95": None if bounds is None else list(bounds),
    }  # fmt: skip


def text_of(found: dict[str, Any]) -> str:
    """`return  mean 487.2  std 31.0  min 402.0  …` of a summary."""
    numbers = [f"{key} {found[key]:.2f}" for key in ("mean", "std", "min", "max", "median")]
    bounds = found["interval_95"]
    numbers.append("95 % " + (f"[{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else "-"))
    return "  ".join(["return", *numbers])


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Put it in its place, whole."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", "utf-8")
    part.replace(path)


def heartbeat(run: Run, reporter: Reporter, step: int) -> Callable[[], bool]:
    """Asked before each move whether to stop: that, and a sign of life now and then."""
    began = told = time.monotonic()
    moves = 0

    def stop() -> bool:
        nonlocal told, moves
        moves += 1
        now = time.monotonic()
        if now - told >= BEAT_S:
            told = now
            reporter.say(f"playing for {now - began:.0f} s, {moves} moves of each episode")
            run.write_progress({"t": round(time.time(), 3), "step": step})
        return run.asked_to_stop()

    return stop


# main


def evaluate(o: Options, run: Run) -> dict[str, Any]:
    """Play and report; what `evaluation.json` says. Raises Refused, Fault, Stopped."""
    if run.rank:
        return {}
    chosen, state = read_best(find_folder(o))
    module = find_agent(state, chosen)
    choose, step = module.greedy(state), int(state["step"])
    with contextlib.closing(Reporter(run, step=max(step - 1, 0))) as reporter:  # not twice a point
        reporter.say(f"{module.__name__}  env {state['env']}  step {step}  of {chosen}")
        stop = heartbeat(run, reporter, step)
        returns = player(module)(
            state["env"], choose, episodes=o.episodes, seed=o.seed, stream=SEEDS_FRESH, stop=stop
        )
        if returns is None:
            reporter.say("stopped, nothing written")
            raise Stopped
        found = summary(returns)
        if not np.isfinite(found["mean"]):
            raise Fault("nan", f"the mean return is {found['mean']}", step=step)
        report = {
            "format": 1, "agent": module.__name__, "env": state["env"], "run": o.run,
            "checkpoint": chosen.name, "step": step, "episodes": o.episodes, "seed": o.seed,
            "return": found, "returns": returns,
        }  # fmt: skip
        write_json(run.logs / "evaluation.json", report)
        reporter.scalars({METRIC: found["mean"]}, step)
        reporter.flush()
        run.write_progress(
            {"t": round(time.time(), 3), "step": step, "metrics": {METRIC: found["mean"]}}
        )
        reporter.say(f"episodes {o.episodes}  seed {o.seed}  {text_of(found)}")
        if o.videos:  # last, for a driver that crashes takes the process with it
            film(o, run, module, state, choose, chosen.name, stop)
    return report


def film(
    o: Options, run: Run, module: ModuleType, state: dict[str, Any], choose: evaluation.Choose,
    label: str, stop: Callable[[], bool],
) -> None:  # fmt: skip
    """Videos into `logs/videos`; where none can be made a warning, and no more than that."""
    try:
        if player(module) is not evaluation.play_greedy:
            raise video.NoVideo(f"no videos: {module.__name__} plays in a way of its own")
        for path in video.record(state["env"], choose, run.logs / "videos", label=label,
                                 count=o.videos, seed=o.seed, stop=stop):  # fmt: skip
            print(f"video {path.relative_to(run.logs)}", flush=True)
    except video.NoVideo as problem:
        print(problem, file=sys.stderr, flush=True)
        run.write_progress({"t": round(time.time(), 3), "warning": str(problem)[:500]})


if __name__ == "__main__":
    launch(
        Options, evaluate, lambda state: find_agent(state, Path()).greedy(state), sys.argv[1:],
        writes=False,
    )  # fmt: skip
