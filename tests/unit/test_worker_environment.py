from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import environment
import pytest
from paths import Workspace

STATE = {"attempt": 2, "token": "t.2", "gpus": [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]}


def variables(tmp_path: Path, secrets: dict[str, bytes] | None = None, **spec: Any) -> Any:
    paths = Workspace(str(tmp_path)).run("r-1")
    return environment.variables(
        paths,
        {"id": "r-1", **spec},
        STATE,
        home="/home/of/jobs",
        resume="/ck/step-1",
        secrets=secrets or {},
    )


def test_what_an_attempt_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_LEASES", "/elsewhere")
    monkeypatch.setenv("SUPERVISOR_ENABLED", "1")
    monkeypatch.setenv("KEPT", "yes")
    env = variables(tmp_path, grace_s=3)
    assert env["RUNNER_ATTEMPT"] == "2"
    assert env["RUNNER_RESUME"] == "/ck/step-1"
    assert env["RUNNER_PARAMS"] == f"{tmp_path}/runs/r-1/attempts/2/params.json"
    assert env["RUNNER_GRACE_S"] == "3"
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert env["RUNNER_MARK"] == "t.2"
    assert env["HOME"] == "/home/of/jobs"
    assert env["KEPT"] == "yes"
    assert "RUNNER_LEASES" not in env
    assert "SUPERVISOR_ENABLED" not in env


def test_secrets_are_variables_and_files(tmp_path: Path) -> None:
    env = variables(tmp_path, {"KEY": b"a\xff", "HOME": b"/bad"}, env={"KEY": "typed"})
    assert env["KEY"] == "a\udcff"
    assert env["HOME"] == "/home/of/jobs"
    assert env["RUNNER_SECRETS"] == f"{tmp_path}/.runner/secrets/r-1"
    assert variables(tmp_path)["RUNNER_SECRETS"] == ""


def test_the_jobs_python_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/opt/py/bin:/bin")
    env = variables(tmp_path, python="/opt/py/bin/python")
    assert env["PATH"] == "/opt/py/bin:/usr/bin:/bin"
    assert environment.python({"python": "/opt/py/bin/python"}, env) == "/opt/py/bin/python"
    assert environment.python({}, {"PATH": str(tmp_path)}) == sys.executable


def test_python_is_a_program_that_is_there(tmp_path: Path) -> None:
    spec = {"argv": ["python", "-c", 1], "python": "/opt/py/bin/python3"}
    assert environment.words(spec, {"PATH": str(tmp_path)}) == ["/opt/py/bin/python3", "-c", "1"]
    (tmp_path / "python").write_text("#!/bin/sh\n")
    (tmp_path / "python").chmod(0o755)
    assert environment.words(spec, {"PATH": str(tmp_path)}) == ["python", "-c", "1"]


def test_grace() -> None:
    assert environment.grace_s({}) == 25
    assert environment.grace_s({"grace_s": 0}) == 0
