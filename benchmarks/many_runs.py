"""Many ended runs from a few real ones: copied, with an id and a seed of their own each.

Five thousand real submits would take the better part of an hour. The copies are written by the
worker's own `records`, and known to the project by its own `Store`, as if it had submitted them.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "provisioning" / "worker")]

import paths  # noqa: E402
import records  # noqa: E402
from stage import Stage  # noqa: E402

from runner.inventory import find_project  # noqa: E402
from runner.store import Store  # noqa: E402

SWEEP = 5
LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"
TOY = """
import json, math, os, time
params = json.load(open(os.environ["RUNNER_PARAMS"]))
with open(os.environ["RUNNER_PROGRESS"], "w") as file:
    for i in range(101):
        value = 500 / (1 + math.exp(5 - i * params["lr"])) - params["seed"]
        metrics = {"eval/return": value, "loss": 1 / (i + 1), "entropy": 0.5, "sps": 900 + i}
        line = {"t": time.time(), "step": 100 * i, "metrics": metrics}
        file.write(json.dumps(line) + "\\n")
"""
TABLE = 'entry = "toy.py"\nmetric = "eval/return"\n[params]\nseed = 0\nlr = 0.1\n'


def lay_job(stage: Stage) -> None:
    """The job of the real runs."""
    (stage.project / "agents").mkdir(exist_ok=True)
    (stage.project / "agents" / "toy.py").write_text(TOY)
    (stage.project / "agents" / "toy.toml").write_text(TABLE)


def real_sweep(stage: Stage, *words: str) -> str:
    """A sweep of five seeds that ran; its id."""
    ids = stage.runner("submit", "job=toy", f"seed=1..{SWEEP}", "--wait", *words).split()
    return ids[0].rpartition(".")[0]


def copy_runs(stage: Stage, sweep: str, count: int) -> None:
    """`count` more runs like those of a sweep, in sweeps of five, older than it."""
    workspace = paths.Workspace(str(stage.workspace))
    store = Store(find_project(stage.project))
    models = [workspace.run(f"{sweep}.{number}") for number in range(1, SWEEP + 1)]
    for number in range(count):
        model = models[number % SWEEP]
        name = f"toy-{_letters(number // SWEEP)}"
        _copy(workspace, store, model, name, number % SWEEP + 1, age_s=60.0 * (number + 10))


def _copy(
    workspace: paths.Workspace,
    store: Store,
    model: paths.RunPaths,
    sweep: str,
    number: int,
    *,
    age_s: float,
) -> None:
    made = workspace.run(f"{sweep}.{number}")
    shutil.copytree(model.logs, made.logs)
    shutil.copytree(model.attempt(1), made.attempt(1))
    for name in (model.events, model.lock):
        shutil.copy(name, made.folder)
    spec, state = records.read(model.spec) or {}, records.read(model.state) or {}
    own: dict[str, Any] = {"id": made.id, "sweep": sweep}
    records.write(made.spec, dict(_older(spec, age_s), **own), sync=False)
    records.write(made.state, _older(state, age_s), sync=False)
    known = store.record(model.id)
    assert known is not None, f"{model.id} was submitted from here"
    store.put(known.host, dict(_older(dict(known.run), age_s), **own), known.seen_at)


def _older(body: dict[str, Any], by_s: float) -> dict[str, Any]:
    times = {key: value - by_s for key, value in body.items() if key.endswith("_at") and value}
    return {**body, **times}


def _letters(number: int) -> str:
    """Five characters, as ids have."""
    found = ""
    for _ in range(5):
        number, rest = divmod(number, len(LETTERS))
        found = LETTERS[rest] + found
    return found


def bytes_of(folder: Path) -> int:
    """What a folder holds."""
    return sum(
        os.lstat(os.path.join(top, name)).st_size
        for top, _, names in os.walk(folder)
        for name in names
    )
