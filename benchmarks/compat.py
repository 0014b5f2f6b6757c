"""The shipped agents with the torch versions of the image pins, each in an environment of its own.

    python benchmarks/compat.py [cache=FOLDER] [VERSION …]

Each environment is made once in the cache (some GB; the CUDA builds of torch run on a CPU, too).
What is tried in each: a training of each agent that needs no more than gymnasium and its resume;
of DQN two ranks under torchrun's agent and under mpirun, and a checkpoint of every other version.
One line each; status 1 when something failed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import stage
from stage import Stage

REPO = Path(__file__).resolve().parents[1]
VERSIONS = ("2.6.0", "2.4.1")
WITH = ("numpy==1.26.4", "gymnasium==1.0.0", "tensorboard==2.18.0")
SHORT = ("eval_every=0", "seed=1")
STEPS = {"dqn": 6000, "ppo": 4096, "sac": 1500, "ppo_lstm": 4096}
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


def train(place: Stage, *words: str, job: str = "dqn") -> str:
    """The id of a run that ended done. Raises Failed."""
    steps = STEPS[job]
    often = (f"steps={steps}", f"checkpoint_every={steps // 3}")
    run = said(place, "submit", "host=local", f"job={job}", *SHORT, *often, *words)
    wait(place, run)
    return run


def wait(place: Stage, run: str) -> None:
    """Until a run has ended done. Raises Failed, with why it did not."""
    if place.try_runner("wait", run, limit_s=LIMIT_S).returncode:
        raise Failed(said(place, "why", run))


def said(place: Stage, *words: str) -> str:
    """What a command of the client prints. Raises Failed."""
    done = place.try_runner(*words)
    if done.returncode:
        raise Failed((done.stderr or done.stdout).strip()[-300:])
    return done.stdout.strip()


def newest_checkpoint(place: Stage, run: str) -> Path:
    return max((place.workspace / "checkpoints" / run).glob("step-*"))


def trials(version: str, places: dict[str, Stage]) -> Iterator[tuple[str, bool, str]]:
    """(what, whether it held, what was seen) of each trial with one version."""
    place = places[version]

    def resumed(job: str) -> str:
        run = train(place, job=job)
        first = step_of(place, run)
        said(place, "resume", run, f"steps={STEPS[job] * 3 // 2}")
        wait(place, run)
        return f"{first}, then {step_of(place, run)}"

    def ranks(launcher: str) -> str:
        return step_of(place, train(place, "nproc=2", f"launcher={launcher}"))

    def loaded(other: str) -> str:
        theirs = train(places[other])
        mine = place.folder / f"from-{other}"
        params = mine / "params.json"
        (mine / "logs").mkdir(parents=True)
        text = (places[other].workspace / "runs" / theirs / "spec.json").read_text()
        params.write_text(json.dumps({**json.loads(text)["params"], "steps": 8000}))
        env = {**place.env, "RUNNER_PARAMS": str(params), "RUNNER_LOGS": str(mine / "logs")}
        env["RUNNER_CHECKPOINTS"] = str(mine / "checkpoints")
        env["RUNNER_RESUME"] = str(newest_checkpoint(places[other], theirs))
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
        **{f"{job} and its resume": lambda job=job: resumed(job) for job in STEPS},
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


def step_of(place: Stage, run: str) -> str:
    """`step 6000`, as the run says it."""
    body = json.loads(said(place, "status", run, "--json"))
    return f"step {body['step']}"


def main(words: list[str]) -> int:
    """Try all; 1 when something failed."""
    cache = Path.home() / ".cache/runner-compat"
    for word in [word for word in words if word.startswith("cache=")]:
        cache = Path(word.partition("=")[2])
    versions = [word for word in words if "=" not in word] or list(VERSIONS)
    cache.mkdir(parents=True, exist_ok=True)
    bad = 0
    with contextlib.ExitStack() as open_places:
        places: dict[str, Stage] = {}
        for version in versions:
            print(f"torch {version}: preparing", file=sys.stderr, flush=True)
            python = str(environment(version, cache))
            places[version] = open_places.enter_context(stage.made(python))
        for version in versions:
            for what, held, seen in trials(version, places):
                bad += not held
                word = "ok" if held else "FAILED"
                print(f"torch {version}  {word:6}  {what:24}  {seen}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
