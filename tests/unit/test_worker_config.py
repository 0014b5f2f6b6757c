from __future__ import annotations

import os
from pathlib import Path

import config
import pytest
import records
from paths import Workspace


@pytest.fixture(autouse=True)
def _no_record_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_WORKER_CONFIG", raising=False)


def test_without_a_record_there_are_defaults(tmp_path: Path) -> None:
    found = config.read(Workspace(str(tmp_path)))
    assert (found.worker, found.runtime, found.gpus) == ("w-unknown", "local", "all")
    assert found.slots == len(os.sched_getaffinity(0))


def test_the_record_that_is_named_comes_before_the_workspaces_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(str(tmp_path))
    workspace.make()
    records.write(workspace.config, {"worker": "w-own", "slots": 3, "gpus": [0], "image": "i"})
    found = config.read(workspace)
    assert (found.worker, found.slots, found.gpus, found.image) == ("w-own", 3, [0], "i")
    other = tmp_path / "worker.json"
    body = {"worker": "w-docker", "runtime": "docker", "image": {"pin": "torch-2.6"}}
    records.write(str(other), dict(body, env={"HTTP_PROXY": "secret"}, slots=0))
    monkeypatch.setenv("RUNNER_WORKER_CONFIG", str(other))
    found = config.read(workspace)
    assert (found.worker, found.runtime, found.image) == ("w-docker", "docker", "torch-2.6")
    assert found.slots == config.cpu_count()
    assert found.env == {"HTTP_PROXY": "secret"}
    assert "env" not in found.facts


@pytest.mark.parametrize(("said", "kept"), [(10**10, 10**10), (0, 0), (-1, 0), ("10g", 0)])
def test_a_reserve_is_a_number_of_bytes(tmp_path: Path, said: object, kept: int) -> None:
    workspace = Workspace(str(tmp_path))
    workspace.make()
    records.write(workspace.config, {"disk_reserve": said})
    assert config.read(workspace).disk_reserve == kept
