"""What a job is told: its variables, its words, the Python it gets."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any, Dict, List

import processes
from paths import RunPaths

from runner.passing import passed_words

NOT_FOR_JOBS = ("SUPERVISOR_", "RUNNER_")
_SET_ANEW = ("CUDA_VISIBLE_DEVICES", "PWD", "OLDPWD")
OURS = "@runner"
"""As a run's first word: this worker program, which must know where it is (door.py)."""
_WHERE = tuple(
    "RUNNER_" + name for name in ("WORKSPACE", "PLACE", "WORKER_CONFIG", "LEASES", "VENV")
)


def variables(
    paths: RunPaths,
    spec: Dict[str, Any],
    state: Dict[str, Any],
    *,
    home: str,
    resume: str,
    secrets: Dict[str, bytes],
    data: str = "",
    first: str = "",
) -> Dict[str, str]:
    """A rank's environment, but for the variables that tell ranks apart.

    data: the folder of the host's data. first: a folder of programs that goes before all others.

    The spec's variables go before the worker's own, the secrets before those, and nothing goes
    before ours.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(NOT_FOR_JOBS) and name not in _SET_ANEW
    }
    utf8 = any("UTF-8" in env.get(name, "").upper() for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    if not utf8:
        env["LC_ALL"] = "C.UTF-8"
    chosen = spec.get("python")
    if chosen:
        _put_first(env, os.path.dirname(chosen))
    env.update({str(k): str(v) for k, v in spec.get("env", {}).items()})
    # so that programs which look for a variable of that name find it
    env.update({name: os.fsdecode(value) for name, value in secrets.items()})
    if first:
        _put_first(env, first)
    attempt = int(state["attempt"])
    env.update(
        HOME=home,
        PWD=paths.code,
        PYTHONUNBUFFERED="1",
        RUNNER_RUN=spec["id"],
        RUNNER_ATTEMPT=str(attempt),
        RUNNER_PARAMS=paths.params(attempt),
        RUNNER_CODE=paths.code,
        RUNNER_CHECKPOINTS=paths.checkpoints,
        RUNNER_LOGS=paths.logs,
        RUNNER_DATA=data,
        RUNNER_RESUME=resume,
        RUNNER_SECRETS=paths.secrets if secrets else "",
        RUNNER_GRACE_S="%g" % grace_s(spec),
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
        CUDA_VISIBLE_DEVICES=",".join(card["uuid"] for card in state.get("gpus", [])),
    )
    env[processes.MARK] = state["token"]
    if spec.get("argv", [])[:1] == [OURS]:
        env.update({name: os.environ[name] for name in _WHERE if name in os.environ})
    return env


def words(spec: Dict[str, Any], env: Dict[str, str]) -> List[str]:
    """The program and its arguments, parameters among them where it takes them so."""
    argv = said_words(spec)
    if argv[0] == OURS:
        here = os.path.dirname(os.path.abspath(__file__))
        return [sys.executable, "-I", "-S", "-B", here, *argv[1:]]
    if argv[0] == "python" and shutil.which("python", path=env.get("PATH")) is None:
        argv[0] = python(spec, env)
    return argv


def said_words(spec: Dict[str, Any]) -> List[str]:
    """The argv that a spec stands for, `python` as it was written."""
    passed = passed_words(spec.get("pass"), spec.get("params") or {})
    return [str(word) for word in spec.get("argv") or ()] + passed


def _put_first(env: Dict[str, str], folder: str) -> None:
    rest = [item for item in env.get("PATH", os.defpath).split(os.pathsep) if item != folder]
    env["PATH"] = os.pathsep.join([folder, *rest])


def python(spec: Dict[str, Any], env: Dict[str, str]) -> str:
    """The job's Python."""
    found = shutil.which("python3", path=env.get("PATH"))
    return str(spec.get("python") or found or sys.executable)


def grace_s(spec: Dict[str, Any]) -> float:
    """Seconds between TERM and KILL."""
    return float(spec.get("grace_s", 25.0))
