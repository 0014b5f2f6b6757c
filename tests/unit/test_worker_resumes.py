"""A run's spec, and what resuming it changed."""

from __future__ import annotations

import os
from pathlib import Path

import records
import resumes
from paths import RunPaths, Workspace


def run_in(tmp_path: Path) -> RunPaths:
    workspace = Workspace(str(tmp_path / "ws"))
    workspace.make()
    paths = workspace.run("dqn-7k3fa")
    os.makedirs(paths.resumes)
    return paths


def test_without_a_resume_the_spec_stays_as_it_is(tmp_path: Path) -> None:
    paths = run_in(tmp_path)
    spec = {"params": {"steps": 10}}
    assert resumes.effective(paths, spec, {}) is spec
    assert not resumes.is_pending(paths, {})


def test_each_resume_changes_what_it_names(tmp_path: Path) -> None:
    paths = run_in(tmp_path)
    records.write(resumes.path(paths, 1), {"params": {"steps": 20}, "env": {"A": "1"}})
    records.write(resumes.path(paths, 2), {"params": {}, "env": {"B": "2"}})
    spec = {"params": {"steps": 10, "lr": 0.1}, "env": {"A": "0"}}
    after = resumes.effective(paths, spec, {"resumed": 2})
    assert after["params"] == {"steps": 20, "lr": 0.1}
    assert after["env"] == {"A": "1", "B": "2"}
    assert resumes.effective(paths, spec, {"resumed": 1})["env"] == {"A": "1"}
    assert spec["params"]["steps"] == 10


def test_one_is_pending_until_the_state_counts_it(tmp_path: Path) -> None:
    paths = run_in(tmp_path)
    records.write(resumes.path(paths, 10), {})
    Path(paths.resumes, "11.json.tmp99").write_text("torn")
    assert resumes.count(paths) == 10
    assert resumes.is_pending(paths, {"resumed": 9})
    assert not resumes.is_pending(paths, {"resumed": 10})
