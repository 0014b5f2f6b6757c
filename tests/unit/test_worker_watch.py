"""What is looked at while an attempt runs, by a clock of the test's own and real files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import evidence
import pytest
import watch
from paths import RunPaths, Workspace

from tests.helpers import event_writers
from tests.helpers.local_worker import read
from tests.helpers.wait import wait_for


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Scene:
    """One attempt's files and its watch; `pass_s` lets time go by in looks of a second."""

    def __init__(
        self, root: Path, nproc: int = 1, reserve: int = 0, ran_s: Any = None, **spec: Any
    ):
        self.workspace = Workspace(str(root))
        self.workspace.make()
        self.paths: RunPaths = self.workspace.run("r-1")
        self.folder = Path(self.paths.attempt(1))
        for path in (self.folder, Path(self.paths.logs), Path(self.paths.checkpoints)):
            path.mkdir(parents=True)
        self.clock = Clock()
        state = {"attempt": 1} if ran_s is None else {"attempt": 1, "ran_s": ran_s}
        self.watch = watch.Watch(
            self.workspace,
            self.paths,
            {"id": "r-1", **spec},
            state,
            evidence.Marks(self.paths, nproc),
            reserve_bytes=reserve,
            now=self.clock,
        )
        self.watch.begin()

    def pass_s(self, seconds: int) -> Any:
        """The first cause that a look gives, or None."""
        for _ in range(seconds):
            self.clock.now += 1
            cause = self.watch.look()
            if cause is not None:
                return cause
        return None

    def step(self, number: int, rank: int = 0) -> None:
        with open(self.paths.progress(rank), "a") as file:
            file.write(json.dumps({"step": number}) + "\n")

    def log(self, text: str, rank: int = 0) -> None:
        with open(self.paths.log(rank), "a") as file:
            file.write(text)

    def events(self) -> list[str]:
        text = Path(self.paths.events)
        lines = text.read_text().splitlines() if text.exists() else []
        return [json.loads(line)["event"] for line in lines]


def test_the_time_limit_counts_what_earlier_attempts_ran(tmp_path: Path) -> None:
    scene = Scene(tmp_path, time_limit_s=100, ran_s=70)
    assert scene.pass_s(29) is None
    assert scene.watch.pause_s(5) == 1
    assert scene.watch.pause_s(0.5) == 0.5
    assert scene.pass_s(1) == {"kind": "time-limit", "text": "ran for 1m40s, its time limit"}
    scene.watch.end(hurried=False)
    scene.clock.now += 50
    assert scene.watch.ran_s == 30


def test_a_limit_that_is_used_up_lets_nothing_begin(tmp_path: Path) -> None:
    scene = Scene(tmp_path, time_limit_s=100, ran_s=100)
    assert scene.watch.used_up()
    assert Scene(tmp_path / "b", time_limit_s=100, ran_s=99).watch.used_up() is None
    assert Scene(tmp_path / "c").pass_s(5) is None
    assert Scene(tmp_path / "d").watch.pause_s(1) == 1


def test_a_reserve_that_is_reached(tmp_path: Path) -> None:
    free = evidence.disk_free(str(tmp_path))
    cause = Scene(tmp_path / "a", reserve=free * 2).pass_s(1)
    assert cause["kind"] == "disk-full"
    assert Scene(tmp_path / "b", reserve=1).pass_s(2) is None


def test_a_job_that_writes_progress_is_judged_by_it_alone(tmp_path: Path) -> None:
    scene = Scene(tmp_path, nproc=2, stuck_after_s=10, on_stuck="restart")
    scene.step(3, rank=1)
    for _ in range(9):
        assert scene.pass_s(1) is None
        scene.log("still waiting\n")
    scene.step(4)
    assert scene.pass_s(10) is None
    cause = scene.pass_s(5)
    assert cause == {"kind": "stuck", "text": "no step for 10s", "step": 4}
    assert read(scene.folder / "stuck.json")["action"] == "restart"
    assert (scene.folder / "stacks-1.txt").exists()


def test_a_job_without_progress_is_judged_by_its_logs(tmp_path: Path) -> None:
    scene = Scene(tmp_path, nproc=2, stuck_after_s=10, on_stuck="stop")
    for _ in range(30):
        scene.log(".", rank=1)
        assert scene.pass_s(1) is None
    assert scene.pass_s(9) is None
    assert scene.pass_s(1) == {
        "kind": "stuck",
        "text": "no output for 10s",
        "step": None,
        "final": True,
    }


def test_being_told_of_a_stuck_job_ends_when_it_moves(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stuck_after_s=10)
    scene.step(1)
    told = scene.folder / "stuck.json"
    assert scene.pass_s(30) is None
    body = read(told)
    assert body["action"] == "tell"
    assert body["text"] == "no step for 10s"
    assert not (scene.folder / "stacks-1.txt").exists()
    scene.step(2)
    assert scene.pass_s(1) is None
    assert not told.exists()
    assert scene.pass_s(11) is None
    assert told.exists()
    assert scene.events() == ["stuck", "moving", "stuck"]
    scene.watch.end(hurried=False)
    assert not told.exists()


def test_time_in_which_we_were_frozen_ourselves_is_not_the_jobs(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stuck_after_s=120, on_stuck="stop")
    scene.pass_s(10)
    scene.clock.now += 3600
    assert scene.watch.look() is None
    assert scene.pass_s(79) is None
    assert scene.pass_s(2)["kind"] == "stuck"


def test_without_the_option_nothing_is_stuck(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    assert scene.pass_s(50) is None
    assert scene.events() == []


def test_the_beat_says_what_counts_when_the_launcher_is_lost(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.step(12)
    scene.pass_s(1)
    found = os.stat(scene.paths.log(0))
    logs = {"log_problem": None, "logs": [[found.st_dev, found.st_ino]]}
    assert read(scene.folder / "beat.json") == {"ran_s": 1, "step": 12, **logs}
    scene.pass_s(4)
    assert read(scene.folder / "beat.json")["ran_s"] == 1
    scene.pass_s(1)
    assert read(scene.folder / "beat.json")["ran_s"] == 6


@pytest.mark.parametrize("how", ["delete", "move", "replace"])
def test_a_log_that_somebody_took_away_is_told_of_once(tmp_path: Path, how: str) -> None:
    scene = Scene(tmp_path, nproc=2)
    scene.log("here\n")
    scene.pass_s(3)
    assert read(scene.folder / "beat.json")["log_problem"] is None
    path = Path(scene.paths.log(0))
    if how == "delete":
        path.unlink()
    else:
        path.rename(path.with_suffix(".old"))
    if how == "replace":
        path.write_text("another")
    scene.pass_s(2)
    problem = read(scene.folder / "beat.json")["log_problem"]
    assert problem.startswith("rank-0.log was deleted or replaced while it ran")
    scene.pass_s(20)
    assert scene.events() == ["log-gone"]


def test_logs_are_kept_below_their_limit(tmp_path: Path) -> None:
    scene = Scene(tmp_path, nproc=2, log_limit_bytes=100_000)
    scene.log("x" * 1_000_000, rank=1)
    scene.log("y" * 50_000)
    scene.pass_s(1)
    found = os.stat(scene.paths.log(1))
    assert found.st_size == 1_000_000
    assert found.st_blocks * 512 < 100_000
    assert b"cut here" not in Path(scene.paths.log(0)).read_bytes()
    assert scene.events() == ["log-cut"]


def test_checkpoints_are_kept_to_what_is_asked_for(tmp_path: Path) -> None:
    scene = Scene(tmp_path, keep=1)
    folder = Path(scene.paths.checkpoints)
    for number in (1, 2, 3):
        (folder / f"step-{number}.bin").write_bytes(b"x")
        scene.pass_s(1)
        wait_for(lambda: len(os.listdir(folder)) == 1, 10, "one checkpoint")
        # a change within a tick of the file system's clock is seen with the next one
        time.sleep(0.02)
    assert os.listdir(folder) == ["step-3.bin"]
    (folder / "step-4.bin").write_bytes(b"x")
    scene.watch.end(hurried=False)
    assert os.listdir(folder) == ["step-4.bin"]


def test_event_files_that_grow_are_motion_and_are_shown(tmp_path: Path) -> None:
    scene = Scene(tmp_path, stuck_after_s=30, on_stuck="restart", metric="loss")
    path = Path(scene.paths.code) / "runs/x/events.out.tfevents.1"
    event_writers.write(path, event_writers.version())
    for step in range(4):
        event_writers.write(path, event_writers.scalar("loss", 0.5, step))
        assert scene.pass_s(25) is None
    assert read(Path(scene.paths.scalars))["metrics"] == {"loss": 0.5}
    cause = scene.pass_s(10)
    assert (cause["kind"], cause["text"]) == ("stuck", "no output for 30s")
    event_writers.write(path, event_writers.scalar("loss", 0.25, 9))
    scene.watch.end(hurried=True)
    assert read(Path(scene.paths.scalars))["step"] == 9
    with open(path, "ab") as out:
        out.write(bytes(12))
    scene.watch.end(hurried=True)
    assert scene.events() == ["stuck", "event-files"]
