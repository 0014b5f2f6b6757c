"""The shipped agents with the torch versions of the image pins, each in an environment of its own.

    python benchmarks/compat.py [cache=FOLDER] [VERSION …]

Each environment is made once in the cache (some GB; the CUDA builds of torch run on a CPU, too).
What is tried in each: a training, its resume, two ranks under torchrun's agent and under mpirun,
and a checkpoint of every other version. One line each; status 1 when something failed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
VERSIONS = ("2.6.0", "2.4.1")
WITH = ("numpy==1.26.4", "gymnasium==1.0.0", "tensorboard==2.18.0")
SHORT = ("steps=6000", "eval_every=0", "checkpoint_every=2000", "seed=1")
LIMIT_S = 900


class Failed(Exception):
    """What was tried did not hold; the text is the end of what it said."""


def environment(version: str, cache: Path) -> Path:
    """The Python of the environment with that torch, made when it is missing."""
    folder = cache / f"torch-{version}"
    python = folder / "bin/python"
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, f"torch=={version}", *WITH], check=True)
        (folder / "whole").touch()
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-e", REPO],
        check=True,
    )
    return python


class Place:
    """A project and a workspace for one version."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.env = {
            **os.environ,
            "RUNNER_WORKSPACE": str(folder / "ws"),
            "RUNNER_IDLE_END_S": "5",
            "PATH": f"{python.parent}:{os.environ['PATH']}",
        }
        self.runner("init", str(folder / "project"), cwd=folder)

    def runner(self, *words: str, cwd: Path | None = None) -> str:
        """What a command of the client prints. Raises Failed."""
        done = subprocess.run(
            [self.python, "-m", "runner", *words],
            cwd=cwd or self.folder / "project",
            env=self.env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        if done.returncode:
            raise Failed((done.stderr or done.stdout).strip()[-300:])
        return done.stdout.strip()

    def train(self, *words: str) -> str:
        """The id of a run that ended done. Raises Failed."""
        run = self.runner("submit", "host=local", "job=dqn", *SHORT, *words)
        self.wait(run)
        return run

    def wait(self, run: str) -> None:
        try:
            self.runner("wait", run)
        except Failed as error:
            raise Failed(self.runner("why", run)) from error

    def checkpoint(self, run: str) -> Path:
        """The newest checkpoint of a run."""
        return max((self.folder / "ws/checkpoints" / run).glob("step-*"))


def trials(version: str, places: dict[str, Place]) -> Iterator[tuple[str, bool, str]]:
    """(what, whether it held, what was seen) of each trial with one version."""
    place = places[version]
    runs: list[str] = []

    def trained() -> str:
        runs.append(place.train())
        return step_of(place, runs[0])

    def resumed() -> str:
        place.runner("resume", runs[0], "steps=9000")
        place.wait(runs[0])
        return step_of(place, runs[0])

    def ranks(launcher: str) -> str:
        return step_of(place, place.train("nproc=2", f"launcher={launcher}"))

    def loaded(other: str) -> str:
        theirs = places[other].train()
        mine = place.folder / f"from-{other}"
        params = mine / "params.json"
        (mine / "logs").mkdir(parents=True)
        text = (places[other].folder / "ws/runs" / theirs / "spec.json").read_text()
        params.write_text(json.dumps({**json.loads(text)["params"], "steps": 8000}))
        env = {**place.env, "RUNNER_PARAMS": str(params), "RUNNER_LOGS": str(mine / "logs")}
        env["RUNNER_CHECKPOINTS"] = str(mine / "checkpoints")
        env["RUNNER_RESUME"] = str(places[other].checkpoint(theirs))
        (mine / "checkpoints").mkdir()
        done = subprocess.run(
            [place.python, REPO / "agents/dqn.py"],
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        if done.returncode:
            raise Failed(done.stderr.strip()[-300:])
        return done.stdout.strip().splitlines()[-1]

    tried = {
        "dqn trains": trained,
        "and is resumed": resumed,
        "two ranks, torchrun": lambda: ranks("torchrun"),
        "two ranks, mpirun": lambda: ranks("mpirun"),
    }
    for other in places:
        if other != version:
            tried[f"a checkpoint of {other}"] = lambda other=other: loaded(other)
    for what, act in tried.items():
        try:
            yield what, True, act()
        except (Failed, subprocess.SubprocessError, ValueError) as error:
            yield what, False, " ".join(str(error).split())


def step_of(place: Place, run: str) -> str:
    """`step 6000`, as the run says it."""
    body = json.loads(place.runner("status", run, "--json"))
    return f"step {body['step']}"


def main(words: list[str]) -> int:
    """Try all; 1 when something failed."""
    cache = Path.home() / ".cache/runner-compat"
    for word in [word for word in words if word.startswith("cache=")]:
        cache = Path(word.partition("=")[2])
    versions = [word for word in words if "=" not in word] or list(VERSIONS)
    cache.mkdir(parents=True, exist_ok=True)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="runner-compat-") as scratch:
        places: dict[str, Place] = {}
        for version in versions:
            print(f"torch {version}: preparing", file=sys.stderr, flush=True)
            folder = Path(scratch, version)
            folder.mkdir()
            places[version] = Place(environment(version, cache), folder)
        for version in versions:
            for what, held, seen in trials(version, places):
                bad += not held
                word = "ok" if held else "FAILED"
                print(f"torch {version}  {word:6}  {what:24}  {seen}", flush=True)
        time.sleep(6)  # idle workers end by themselves
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
