from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import records
import view
from paths import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(str(tmp_path / "ws"))
    made.make()
    (tmp_path / "leases").mkdir()
    return made


def put(workspace: Workspace, run: str, at: float, state: Any = None, **spec: Any) -> None:
    folder = Path(workspace.run(run).folder)
    folder.mkdir()
    body = {"id": run, "argv": ["x"], "accepted_at": at, "snapshot": "s", **spec}
    records.write(str(folder / "spec.json"), body)
    if state:
        records.write(str(folder / "state.json"), {"attempt": 0, **state})


def statuses(workspace: Workspace, full: bool = False) -> Any:
    pairs = view.read_all(workspace)
    maker = view.View(workspace)
    return {spec["id"]: maker.status(spec, state, full) for spec, state in pairs}


def test_a_run_that_nobody_looked_at_is_queued(workspace: Workspace) -> None:
    put(workspace, "a", 5.0)
    (status,) = statuses(workspace).values()
    assert (status.state, status.submitted_at, status.position) == ("queued", 5.0, 1)
    assert view.read_pair(workspace.run("none")) is None


def test_places_in_the_two_lines(workspace: Workspace) -> None:
    put(workspace, "a", 1.0)
    put(workspace, "b", 2.0, gpus=1)
    put(workspace, "c", 3.0, {"state": "queued"})
    put(workspace, "d", 0.0, {"state": "running"})
    lines = {"cpu": [["a", 0, 1.0], ["c", 0, 3.0]], "gpu": [["b", 0, 2.0]]}
    heads = {"gpu": {"kind": "gpus", "want": 1}, "cpu": {"kind": "slot", "holders": ["d"]}}
    records.write(workspace.queue, {"lines": lines, "heads": heads})
    found = statuses(workspace)
    assert {run: s.position for run, s in found.items()} == {"a": 1, "b": 1, "c": 2, "d": None}
    assert found["c"].reason == "next after a"
    assert found["a"].waits == heads["cpu"]
    assert found["b"].reason == "waits for 1 GPU"
    assert found["d"].waits is None


def test_what_resuming_changed_is_shown(workspace: Workspace) -> None:
    put(workspace, "a", 1.0, {"state": "queued", "resumed": 1}, params={"steps": 5}, restarts=3)
    paths = workspace.run("a")
    os.makedirs(paths.resumes)
    records.write(os.path.join(paths.resumes, "1.json"), {"params": {"steps": 9}})
    status = statuses(workspace)["a"]
    assert status.params == {"steps": 9}
    assert status.restarts_left == 3


def test_since_when_nothing_moves(workspace: Workspace) -> None:
    put(workspace, "a", 1.0, {"state": "running", "attempt": 1})
    folder = workspace.run("a").attempt(1)
    os.makedirs(folder)
    assert statuses(workspace)["a"].stuck is None
    records.write(os.path.join(folder, "stuck.json"), {"since": 7.0, "action": "tell"})
    assert statuses(workspace)["a"].stuck == {"since_at": 7.0, "action": "tell"}


def test_a_run_with_an_order_to_stop_is_stopping_at_once(workspace: Workspace) -> None:
    put(workspace, "a", 1.0, {"state": "running", "attempt": 1})
    records.write(workspace.run("a").cancel, {"at": 1})
    assert statuses(workspace)["a"].state == "stopping"


def test_an_ended_runs_progress_is_what_was_kept(workspace: Workspace) -> None:
    final = {"step": 9, "metrics": {"r": 1}, "t": 2.0}
    ended = {"state": "ended", "outcome": "done", "final": final, "exit": {"code": 0}}
    put(workspace, "a", 1.0, ended)
    put(workspace, "b", 1.0, {"state": "running", "exit": {"code": 1}})
    os.makedirs(workspace.run("b").logs)
    Path(workspace.run("b").progress(0)).write_text('{"step": 4}\n')
    Path(workspace.run("b").log(0)).write_text("12345")
    found = statuses(workspace, full=True)
    assert (found["a"].step, found["a"].progress_at, found["a"].exit) == (9, 2.0, {"code": 0})
    assert (found["b"].step, found["b"].exit, found["b"].log_bytes) == (4, None, 5)


def test_folders_that_are_no_runs_are_passed_over(workspace: Workspace) -> None:
    put(workspace, "a", 1.0)
    os.mkdir(os.path.join(workspace.runs, ".tmp-b-1"))
    os.mkdir(os.path.join(workspace.runs, "empty"))
    assert list(statuses(workspace)) == ["a"]


def test_attempts_are_told_in_full_only(workspace: Workspace) -> None:
    put(workspace, "a", 1.0, {"state": "queued", "attempt": 2})
    folder = workspace.run("a").attempt(1)
    os.makedirs(folder)
    records.write(os.path.join(folder, "proc.json"), {"started_at": 3.0})
    records.write(os.path.join(folder, "exit.json"), {"ended_at": 4.0, "cause": {"kind": "x"}})
    assert statuses(workspace)["a"].attempts == []
    first, second = statuses(workspace, full=True)["a"].attempts
    assert (first["started_at"], first["ended_at"], first["cause"]) == (3.0, 4.0, {"kind": "x"})
    assert (second["attempt"], second["started_at"]) == (2, None)


def test_what_became_of_its_logs(workspace: Workspace) -> None:
    put(workspace, "a", 1.0, {"state": "running", "attempt": 1})
    paths = workspace.run("a")
    folder = Path(paths.attempt(1))
    assert statuses(workspace)["a"].log_problem is None
    folder.mkdir(parents=True)
    records.write(str(folder / "beat.json"), {"log_problem": "gone", "logs": [[1, 2]]})
    assert statuses(workspace)["a"].log_problem == "gone"
    records.write(str(folder / "exit.json"), {"by": "dispatcher"})
    assert statuses(workspace)["a"].log_problem == "gone"
    assert view.own_log(paths, 1, 0) == [1, 2]
    assert view.own_log(paths, 1, 1) is None
    records.write(str(folder / "exit.json"), {"log_problem": None, "logs": [[1, 3]]})
    assert statuses(workspace)["a"].log_problem is None
    assert view.own_log(paths, 1, 0) == [1, 3]
    records.write(str(folder / "exit.json"), {"log_problem": 3, "logs": 3})
    assert statuses(workspace)["a"].log_problem is None
    assert view.own_log(paths, 1, 0) is None


def test_of_a_sweep_no_other_run_is_read(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("a-1.1", "a-1.2", "a-12.1", "b"):
        put(workspace, run, 1.0)
    read: list[str] = []
    real = records.read
    monkeypatch.setattr(records, "read", lambda path: (read.append(path), real(path))[1])
    found = view.read_all(workspace, "a-1")
    assert sorted(spec["id"] for spec, _ in found) == ["a-1.1", "a-1.2"]
    assert not [path for path in read if "a-1." not in path]


def test_its_image_is_that_of_the_worker_unless_it_asked_for_one(workspace: Workspace) -> None:
    put(workspace, "a", 1.0, worker_image="cpu")
    put(workspace, "b", 1.0, worker_image="cpu", image="torch-2.6")
    put(workspace, "c", 1.0)
    found = statuses(workspace)
    assert [found[run].image for run in "abc"] == ["cpu", "torch-2.6", None]
