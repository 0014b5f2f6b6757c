from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import processes
import pytest
import stacks
from paths import RunPaths, Workspace

from tests.helpers.wait import wait_for

CODE = """
import sys, time
def deep_inside():
    print("up", flush=True)
    time.sleep(600)
deep_inside()
"""


class Attempt:
    """Processes that carry an attempt's mark, as a launcher would have started them."""

    def __init__(self, root: Path) -> None:
        self.workspace = Workspace(str(root))
        self.workspace.make()
        self.paths: RunPaths = self.workspace.run("r-1")
        self.folder = Path(self.paths.attempt(1))
        self.folder.mkdir(parents=True)
        self.mark = os.urandom(8).hex()
        # not this process, which has other children: by their mark alone they are known
        launcher = dict(processes.identity(), start=0)
        born = {"launcher": launcher, "mark": self.mark, "limit": None, "leases": []}
        (self.folder / "proc.json").write_text(json.dumps(born))
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, *argv: str, **env: str) -> int:
        child = subprocess.Popen(
            argv,
            env={**os.environ, processes.MARK: self.mark, **env},
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        self.children.append(child)
        return child.pid

    def take(self, nproc: int = 1) -> dict[str, object]:
        return stacks.take(self.workspace, self.paths, 1, nproc)


def until_asleep(pid: int) -> None:
    wait_for(lambda: (processes.read_stat(pid) or (0, 0, ""))[2] == "S", 5, "its sleep")


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    made = Attempt(tmp_path)
    yield made
    for pid in processes.Membership(made.mark, None, (), ()).find():
        os.kill(pid, signal.SIGKILL)
    for child in made.children:
        child.communicate()


def test_each_ranks_python_shows_where_it_is(attempt: Attempt) -> None:
    agent = attempt.start(sys.executable, "-c", CODE)  # it has no rank
    first = attempt.start(sys.executable, "-c", CODE, RANK="0")
    second = attempt.start(
        "bash", "-c", f'env -u RANK {sys.executable} -c "$0" & wait', CODE, RANK="1"
    )
    before = {pid: processes.read_stat(pid) for pid in (agent, first, second)}
    taken = attempt.take(nproc=2)
    assert "problem" not in taken
    rows = taken["ranks"]
    assert isinstance(rows, list)
    assert [row["rank"] for row in rows] == [0, 1]
    assert rows[0]["pid"] == first
    assert rows[1]["pid"] not in (agent, second)
    for row in rows:
        assert "deep_inside" in row["text"]
        assert row["text"].startswith(f"Process {row['pid']}: ")
    assert {pid: processes.read_stat(pid) for pid in before} == before


def test_a_rank_without_python_shows_what_the_kernel_says(attempt: Attempt) -> None:
    pid = attempt.start("sh", "-c", "echo up; exec sleep 600")
    wait_for(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes(), 5, "sleep")
    until_asleep(pid)
    taken = attempt.take()
    assert "problem" not in taken
    (row,) = taken["ranks"]  # type: ignore[misc]
    assert (row["rank"], row["pid"]) == (0, pid)
    assert row["text"].startswith(f"Process {pid}: sleep 600\nState: sleeping")


def test_where_py_spy_is_missing_the_way_out_is_said(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pid = attempt.start(sys.executable, "-c", CODE)
    until_asleep(pid)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    taken = attempt.take()
    assert taken["problem"] == (
        f"py-spy is not there; install it with: {tmp_path}/python -m pip install py-spy"
    )
    (row,) = taken["ranks"]  # type: ignore[misc]
    assert row["pid"] == pid
    assert "State: sleeping" in row["text"]
    Path(attempt.workspace.config).write_text(json.dumps({"runtime": "docker"}))
    assert "provision the host again" in str(attempt.take()["problem"])


def test_py_spy_beside_the_workers_python_comes_first(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spy = tmp_path / "bin" / "py-spy"
    spy.parent.mkdir()
    spy.write_text("#!/bin/sh\necho 'Error: Permission denied (os error 13)' >&2; exit 1\n")
    spy.chmod(0o755)
    Path(attempt.workspace.config).write_text(json.dumps({"python": f"{spy.parent}/python"}))
    assert stacks.find_spy(attempt.workspace) == str(spy)
    pid = attempt.start(sys.executable, "-c", CODE)
    problem = str(attempt.take()["problem"])
    assert problem.startswith(f"py-spy may not read process {pid}")
    assert "\n" not in problem
    spy.write_text("#!/bin/sh\nprintf 'Error: odd\\nStack backtrace:\\n 0: x\\n' >&2; exit 1\n")
    assert attempt.take()["problem"] == f"py-spy cannot read process {pid}: odd"


def test_what_was_taken_is_kept_by_number(tmp_path: Path) -> None:
    taken = {"ranks": [{"rank": 1, "pid": 7, "text": "Thread 7\n"}], "problem": "one\n"}
    assert stacks.write(str(tmp_path), taken) == str(tmp_path / "stacks-1.txt")
    assert stacks.write(str(tmp_path), {"ranks": []}) == str(tmp_path / "stacks-2.txt")
    text = (tmp_path / "stacks-1.txt").read_text()
    assert text == "runner: one\n\n\nrank 1, process 7\nThread 7\n"
    assert stacks.write(str(tmp_path / "none"), taken) is None


def test_an_attempt_that_has_not_begun(tmp_path: Path) -> None:
    workspace = Workspace(str(tmp_path))
    workspace.make()
    taken = stacks.take(workspace, workspace.run("r-2"), 1, 1)
    assert taken == {"ranks": [], "problem": "it has no processes yet"}
