"""The end of an attempt whose launcher vanished."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import burying
import leases
import processes
import pytest
import records
from paths import RunPaths, Workspace


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    workspace = Workspace(str(tmp_path / "ws"))
    workspace.make()
    (tmp_path / "leases").mkdir()
    paths = workspace.run("cmd-1")
    os.makedirs(paths.attempt(1))
    return paths


def test_what_became_of_a_launcher_that_is_gone() -> None:
    who = processes.identity()
    assert burying.lost_kind(None) == "not-started"
    assert burying.lost_kind({"launcher": who}) == "launcher-lost"
    assert burying.lost_kind({"launcher": dict(who, boot="x")}) == "host-restart"
    assert burying.lost_kind({"launcher": dict(who, init=1)}) == "worker-lost"
    assert burying.lost_kind({"launcher": dict(who, ns=1)}) == "worker-lost"


def test_the_end_that_is_written_for_it(run: RunPaths) -> None:
    records.write(os.path.join(run.attempt(1), "beat.json"), {"ran_s": 12.5})
    burying.bury(run, {"attempt": 1}, "host-restart")
    end = records.read(os.path.join(run.attempt(1), "exit.json")) or {}
    assert (end["cause"]["kind"], end["by"], end["ran_s"]) == ("host-restart", "dispatcher", 12.5)
    Path(run.cancel).touch()
    assert burying.bury(run, {"attempt": 1}, "worker-lost")["cause"]["kind"] == "cancelled"


def test_what_lives_is_ended_and_its_lease_held_until_then(run: RunPaths, tmp_path: Path) -> None:
    mark = "cmd-1.1.abc"
    path = str(tmp_path / "leases/slot-000")
    fd = leases.claim(path, mark, "cmd-1")
    assert fd is not None
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); "
    child = subprocess.Popen(
        [sys.executable, "-c", code + "time.sleep(60)"],
        env={processes.MARK: mark},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    child.stdout.readline()
    os.close(fd)
    born: dict[str, Any] = {"mark": mark, "limit": None, "leases": [path]}
    undertaker = os.fork()
    if not undertaker:
        assert len(burying.join(born)) == 1
        workspace = Workspace(str(tmp_path / "ws"))
        burying.sweep_and_bury(workspace, {"id": "cmd-1", "grace_s": 0.5}, {"attempt": 1}, born)
        os._exit(0)
    time.sleep(0.3)
    assert records.is_locked(path, alone=False)
    assert os.waitpid(undertaker, 0)[1] == 0
    child.stdout.close()
    assert child.wait(5) == -9
    end = records.read(os.path.join(run.attempt(1), "exit.json")) or {}
    assert (end["cause"]["kind"], end["killed"], end["left"]) == ("launcher-lost", 1, [])
    assert not records.is_locked(path, alone=False)


def test_a_lease_that_somebody_else_has_by_now_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "slot-000")
    born = {"leases": [path, str(tmp_path / "gone")], "mark": "cmd-1.1.abc"}
    theirs = leases.claim(path, "other.1.x", "other")
    assert theirs is not None
    assert burying.join(born) == []
    os.close(theirs)
    ours = leases.claim(path, "cmd-1.1.abc", "cmd-1")
    assert ours is not None
    (kept,) = burying.join(born)
    os.close(ours)
    with open(path) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(kept)
