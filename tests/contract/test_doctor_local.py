"""Doctor of this machine, end to end: its own worker, and an engine that misbehaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.app import context
from runner.app.doctor import doctor
from runner.app.drain import drain
from runner.doctor.findings import FAULT, NOTE, OK, Check, HostHealth
from tests.helpers.local_worker import LocalWorker


def told(health: HostHealth, *states: str) -> dict[str, Check]:
    return {check.id: check for check in health.checks if check.state in states}


def only(worker: LocalWorker, host: str = "local") -> HostHealth:
    (health,) = doctor(context.open_context(worker.report, worker.project), host)
    return health


def test_where_nothing_ran_nothing_is_made(local_worker: LocalWorker) -> None:
    health = only(local_worker)
    assert health.contact == "ok" and health.faults == 0 and health.way == "this machine"
    assert not local_worker.workspace.exists() and not local_worker.leases.exists()
    assert {"worker", "disk", "memory", "workspace"} <= set(told(health, OK))
    assert local_worker.report.steps == ["looking at local"]


def test_a_worker_that_is_there_tries_torch_and_stays_as_it_was(local_worker: LocalWorker) -> None:
    local_worker.wait(local_worker.submit("true"))
    drain(local_worker.ctx, "local", True)
    leases = sorted(path.name for path in local_worker.leases.iterdir())
    health = only(local_worker)
    assert health.faults == 0, told(health, FAULT)
    well, notes = told(health, OK), told(health, NOTE)
    assert "dispatcher" in well
    assert notes["drained"].fix[-1] == "  runner undrain host=local"
    try:
        import torch
    except ImportError:
        assert "torch" in notes
    else:
        # a machine under load may be too slow for it; that is told, too
        assert "torch" in notes or well["torch"].text == f"torch {torch.__version__}"
        assert "torch" in notes or {"matmul", "all-reduce"} <= {*well, *notes}
    assert sorted(path.name for path in local_worker.leases.iterdir()) == leases
    drain(local_worker.ctx, "local", False)
    assert local_worker.wait(local_worker.submit("true")).status.outcome == "done"


def fake_docker(worker: LocalWorker, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `docker` on PATH, and a host `bad` of this machine that needs it."""
    folder = worker.root / "bin"
    folder.mkdir()
    (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(worker.root))
    worker.file("hosts/bad.toml", 'ssh = "local"\n')


def test_an_engine_that_floods_and_heeds_no_signal_is_one_fault(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_docker(local_worker, "trap '' TERM; exec tr '\\0' x </dev/zero", monkeypatch)
    health = only(local_worker, "bad")
    assert list(told(health, FAULT)) == ["docker"], health
    check = told(health, FAULT)["docker"]
    assert "does not answer within 5 s" in check.text and check.fix
    assert health.contact == "ok"
    assert {"disk", "memory"} <= set(told(health, OK))


def test_a_file_that_is_wrong_hides_no_other_host(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_docker(local_worker, "exit 1", monkeypatch)
    local_worker.file("hosts/odd.toml", "sssh = 1\n")
    found = {each.name: each for each in doctor(local_worker.ctx, None)}
    assert set(found) == {"local", "bad", "odd"}
    assert found["odd"].contact == "unreachable" and "odd.toml" in found["odd"].checks[0].text
    assert found["local"].faults == 0 and found["bad"].contact == "ok"


def test_as_a_command_with_its_document_and_its_status(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_docker(local_worker, "echo 'permission denied' >&2; exit 1", monkeypatch)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "runner", "doctor", *words]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run(
            argv, cwd=local_worker.project, env=env, capture_output=True, text=True, timeout=60
        )

    plain = run("host=bad")
    assert plain.returncode == 4
    assert plain.stdout.startswith("FAULT  docker  ") and "usermod -aG docker" in plain.stdout
    assert plain.stdout.endswith("1 fault: a run would not start\n") and not plain.stderr
    body = json.loads(run("host=bad", "--json").stdout)
    (host,) = body["hosts"]
    assert body["format"] == 1 and host["contact"] == {"state": "ok"}
    assert [row["id"] for row in host["checks"] if row["state"] == "fault"] == ["docker-rights"]
    assert run("host=local").returncode == 0
    everything = run("host=local", "--all").stdout.splitlines()
    assert all(line[:5].strip() in ("ok", "note", "FAULT", "skip", "") for line in everything)
    assert len(everything) > 10
    nowhere = run("host=nowhere")
    assert nowhere.returncode == 6 and nowhere.stderr.startswith("nowhere is no host")
