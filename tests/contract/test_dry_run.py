"""`submit --dry-run` says what a submit would do, refuses what it would, and touches nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.app import dry_run as use
from runner.errors import NotFound, SpecError
from runner.spec import parse_submit
from tests.contract.test_submit import LINKED, environment
from tests.helpers.local_worker import LocalWorker

JOB = 'command = ["true"]\n[params]\nseed = -1\nlr = 0.1\n'


def dry(worker: LocalWorker, *words: str, command: list[str] | None = None, **more: Any) -> Any:
    return use.dry_run(worker.ctx, parse_submit(list(words), command), **more)


def run(worker: LocalWorker, *words: str) -> tuple[int, str, str]:
    """(exit status, stdout, stderr) of the command itself."""
    argv = [sys.executable, "-m", "runner", "submit", *words]
    done = subprocess.run(
        argv, cwd=worker.project, env=environment(), capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def project(local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> LocalWorker:
    monkeypatch.setenv("HOME", str(local_worker.root))
    local_worker.file("train.py", "print()\n")
    local_worker.file("data/big.bin", "x" * 1000)
    local_worker.file(".gitignore", "# no data\n\ndata/\n")
    return local_worker


def everything(worker: LocalWorker) -> set[Path]:
    return set(worker.root.rglob("*"))


def test_what_is_left_out_is_listed_with_its_rule(project: LocalWorker) -> None:
    status, out, err = run(project, "--dry-run", "--", "true")
    assert (status, err) == (0, "")
    assert "data/  .gitignore:3: data/" in out.splitlines()
    assert "train.py" not in out


def test_the_document_has_every_file_and_run(project: LocalWorker) -> None:
    project.file("agents/s.toml", JOB)
    status, out, _ = run(project, "--dry-run", "--json", "job=s", "lr=1,2", "env.TOKEN=s3cr3t")
    assert status == 0
    assert "s3cr3t" not in out
    body = json.loads(out)
    assert (body["format"], body["runs"], body["host"]) == (1, 2, "local")
    files = {file["path"]: file for file in body["files"]}
    assert files["train.py"] == {"path": "train.py", "bytes": 8, "changed": True}
    assert {"path": "data/", "rule": ".gitignore:3: data/"} in body["left_out"]
    assert body["code"]["files"] == len(files)
    assert [spec["params"]["lr"] for spec in body["specs"]] == [1.0, 2.0]
    assert body["specs"][0]["env"] == ["TOKEN"]


def test_nothing_is_made_and_nobody_is_asked(
    project: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.file("hosts/far.toml", LINKED)
    asked = tmp_path / "asked"
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\ntouch {asked}\nexit 1\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    before = everything(project)
    for host in ("local", "far"):
        report = dry(project, f"host={host}", "after=dqn-7k3fa", command=["true"])
        assert report.host == host
    made = {path.relative_to(project.root) for path in everything(project) - before}
    assert not [path for path in made if "intents" in path.parts or "ws" in path.parts]
    assert not asked.exists()


def test_what_changed_since_the_last_submit(project: LocalWorker) -> None:
    assert "nothing is known to be on local" in dry(project, command=["true"]).code_text
    project.submit("true")
    report = dry(project, command=["true"])
    assert "0 changed since the last submit to local" in report.code_text
    assert not any(file.changed for file in report.files)
    project.file("train.py", "print(2)\n")
    report = dry(project, command=["true"])
    assert [file.path for file in report.files if file.changed] == ["train.py"]
    assert "1 changed since" in report.code_text
    assert report.runs_text == "run    true on local"


@pytest.mark.parametrize(
    ("words", "more", "error"),
    [
        (["host=nowhere"], {}, NotFound),
        (["image=nope"], {}, SpecError),
        (["secret.NOT_SET_ANYWHERE"], {}, SpecError),
        (["each.n=1..1001"], {}, SpecError),
        (["each.n=1..2"], {"alone": True}, SpecError),
        (["gpus=-1"], {}, SpecError),
    ],
)
def test_what_submit_refuses_is_refused(
    project: LocalWorker, words: list[str], more: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        dry(project, *words, command=["true", "{n}"], **more)


def test_a_secret_in_the_project_is_refused(
    project: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.project)
    project.file("token.txt", "s3cr3t")
    with pytest.raises(SpecError, match="would travel with the code"):
        dry(project, "secret.T=@token.txt", command=["true"])


def test_a_run_of_another_host_cannot_be_waited_for(project: LocalWorker) -> None:
    run_id = project.submit("true")
    project.file("hosts/far.toml", LINKED)
    with pytest.raises(SpecError, match=f"after: {run_id} is on local"):
        dry(project, "host=far", f"after={run_id}", command=["true"])


def test_in_a_fresh_project_not_even_a_folder_is_made(project: LocalWorker) -> None:
    assert not (project.project / ".runner").exists()
    assert run(project, "--dry-run", "--", "true")[0] == 0
    assert not (project.project / ".runner").exists()
