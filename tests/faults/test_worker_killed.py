"""kill -9 of anything on a `local` worker: no run lost, none twice at a time, true causes."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import supervisor
from paths import Workspace

from runner.app.results import CancelReport
from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import stays, wait_for

HEART = """
import json, os, signal, sys, time
attempt, rank = os.environ["RUNNER_ATTEMPT"], os.environ["RANK"]
save_s = float(os.environ.get("SAVE_S", "0"))
def save(*_):
    print("TERM", flush=True)
    end = time.time() + save_s
    while time.time() < end: beat()
    place = os.environ["RUNNER_CHECKPOINTS"] + "/step-%s" % attempt
    if rank == "0": open(place + ".tmp", "w").close(); os.rename(place + ".tmp", place)
    print("saved", flush=True)
    os._exit(143)
signal.signal(signal.SIGTERM, save)
beats = os.open(os.environ["BEATS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def beat():
    os.write(beats, b"%s-%s %r\\n" % (attempt.encode(), rank.encode(), time.time()))
    time.sleep(0.005)
print("begun", attempt, os.path.basename(os.environ["RUNNER_RESUME"]), flush=True)
while not os.path.exists(os.environ["GATE"]): beat()
print("end", attempt, flush=True)
"""


class Heart:
    """A run that beats until its gate opens, and what its beats tell."""

    def __init__(self, worker: LocalWorker, save_s: float = 0.0, nproc: int = 1) -> None:
        self.worker = worker
        self.gate = worker.root / f"gate-{time.monotonic_ns()}"
        self.beats = self.gate.with_suffix(".beats")
        words = [f"env.GATE={self.gate}", f"env.BEATS={self.beats}", f"env.SAVE_S={save_s}"]
        if nproc > 1:
            worker.file("hide/torch/__init__.py", "raise ImportError('hidden')\n")
            words += [f"nproc={nproc}", f"env.PYTHONPATH={worker.project}/hide"]
        self.run = worker.python(HEART, words=(*words, "grace=10s"))

    def until_begun(self, attempt: int = 1) -> None:
        self.worker.until_logged(self.run, f"begun {attempt}")
        self.worker.until(self.run, "running")

    def ends_done(self, causes: list[str | None]) -> None:
        """Open the gate; the run ends done, after exactly these attempts, none beside another."""
        self.gate.touch()
        status = self.worker.wait(self.run).status
        assert (status.state, status.outcome) == ("ended", "done"), status
        assert self.worker.causes(self.run) == causes
        assert status.attempt == len(causes)
        log = self.worker.log(self.run).decode().splitlines()
        assert log[-1] == f"end {len(causes)}"
        assert [line for line in log if line.startswith("end")] == [log[-1]]
        self.left_nothing()

    def left_nothing(self) -> None:
        """No process of it lives, and its attempts did not overlap."""
        assert self.worker.members(self.run) == set()
        assert processes.living([self.worker.launcher(self.run)]) == set()
        spans: dict[str, list[float]] = {}
        if self.beats.exists():
            for line in self.beats.read_text().splitlines():
                who, moment = line.split()
                spans.setdefault(who.split("-")[0], []).append(float(moment))
        ordered = [spans[number] for number in sorted(spans, key=int)]
        for earlier, later in zip(ordered, ordered[1:], strict=False):
            assert max(earlier) < min(later), "two attempts at the same time"


Kill = Callable[[LocalWorker, str], None]


def kill_rank(worker: LocalWorker, run: str) -> None:
    worker.kill(*worker.members(run))


def kill_launcher(worker: LocalWorker, run: str) -> None:
    worker.kill(worker.launcher(run))


def kill_dispatcher(worker: LocalWorker, run: str) -> None:
    worker.kill(worker.dispatcher)


def kill_supervisor(worker: LocalWorker, run: str) -> None:
    worker.kill(worker.supervisor)


def kill_both(worker: LocalWorker, run: str) -> None:
    worker.kill(worker.supervisor, worker.dispatcher)


def kill_machinery(worker: LocalWorker, run: str) -> None:
    """All but the ranks."""
    worker.kill(worker.supervisor, worker.dispatcher, worker.launcher(run))


def kill_everything(worker: LocalWorker, run: str) -> None:
    ranks = worker.members(run)
    worker.kill(worker.supervisor, worker.dispatcher, worker.launcher(run), *ranks)


def reboot(worker: LocalWorker, run: str) -> None:
    kill_everything(worker, run)
    worker.set_env("RUNNER_BOOT_ID", "another-boot")


def one_worker(worker: LocalWorker) -> bool:
    """Whether exactly one supervisord and one dispatcher of the workspace live."""
    found = worker.machinery()
    supervisors = {pid for pid, words in found.items() if "/supervisord.py" in words}
    # launchers are forked by the dispatcher and have its command line, but another parent
    dispatchers = {pid for pid in found if parent_of(pid) in supervisors}
    return dispatchers == {worker.dispatcher} and supervisors == {worker.supervisor}


def parent_of(pid: int) -> int:
    return (processes.read_stat(pid) or (0, 0, ""))[0]


LOST: list[str | None] = ["launcher-lost", None]
LONG = pytest.mark.slow
"""Rows that differ from their neighbours by little."""


@pytest.mark.parametrize(
    ("kill", "causes", "nproc"),
    [
        pytest.param(kill_launcher, LOST, 1, marks=LONG),
        (kill_launcher, LOST, 2),
        (kill_dispatcher, [None], 1),
        (kill_supervisor, [None], 1),
        (kill_both, [None], 1),
        pytest.param(kill_machinery, LOST, 1, marks=LONG),
        pytest.param(kill_machinery, LOST, 2, marks=LONG),
        (kill_everything, LOST, 1),
        (reboot, ["host-restart", None], 1),
        *(
            pytest.param(kill, causes, 2, marks=LONG)
            for kill, causes in [
                (kill_dispatcher, [None]),
                (kill_supervisor, [None]),
                (kill_both, [None]),
                (kill_everything, LOST),
                (reboot, ["host-restart", None]),
            ]
        ),
    ],
)
def test_a_running_run_survives(
    local_worker: LocalWorker, kill: Kill, causes: list[str | None], nproc: int
) -> None:
    heart = Heart(local_worker, nproc=nproc)
    heart.until_begun()
    dispatcher = local_worker.dispatcher
    kill(local_worker, heart.run)
    # the next contact, whatever it is, finds the worker or starts one
    assert local_worker.status(heart.run).status.state in ("queued", "starting", "running")
    if len(causes) > 1:
        heart.until_begun(2)
    if kill is not kill_launcher:
        wait_for(lambda: local_worker.dispatcher not in (0, dispatcher), 15, "a new dispatcher")
    wait_for(lambda: one_worker(local_worker), 15, "one supervisord and one dispatcher")
    heart.ends_done(causes)
    assert one_worker(local_worker)


@pytest.mark.parametrize("nproc", [pytest.param(1, marks=LONG), 2])
def test_a_killed_rank_is_an_own_fault(local_worker: LocalWorker, nproc: int) -> None:
    heart = Heart(local_worker, nproc=nproc)
    heart.until_begun()
    (rank, *_) = [
        pid
        for pid in local_worker.members(heart.run)
        if b"begun" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and b"front.py" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    local_worker.kill(rank)
    status = local_worker.wait(heart.run).status
    assert status.outcome == "failed"
    assert status.cause is not None
    assert status.cause["signal"] == "SIGKILL"
    assert local_worker.causes(heart.run) == ["signal"]
    heart.left_nothing()


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(kill_dispatcher, marks=LONG),
        pytest.param(kill_supervisor, marks=LONG),
        kill_both,
        pytest.param(kill_everything, marks=LONG),
        reboot,
    ],
)
def test_a_queued_run_is_not_lost(local_worker: LocalWorker, kill: Kill) -> None:
    local_worker.host(slots=1)
    first = Heart(local_worker)
    first.until_begun()
    second = Heart(local_worker)
    local_worker.until(second.run, "queued")
    kill(local_worker, first.run)
    assert local_worker.status(second.run).status.state == "queued"
    losing: dict[Kill, str] = {kill_everything: "launcher-lost", reboot: "host-restart"}
    lost = losing.get(kill)
    first.ends_done([lost, None] if lost else [None])
    second.ends_done([None])
    assert min(beat_times(second)) > max(beat_times(first)), "one slot, two runs at once"


def beat_times(heart: Heart) -> list[float]:
    text = heart.beats.read_text() if heart.beats.exists() else ""
    return [float(line.split()[1]) for line in text.splitlines()] or [time.time()]


@pytest.mark.parametrize(
    "kill",
    [
        pytest.param(kill_rank, marks=LONG),
        kill_launcher,
        pytest.param(kill_dispatcher, marks=LONG),
        pytest.param(kill_supervisor, marks=LONG),
        pytest.param(kill_both, marks=LONG),
        pytest.param(kill_machinery, marks=LONG),
        pytest.param(kill_everything, marks=LONG),
    ],
)
def test_a_run_that_is_being_cancelled_ends_cancelled(
    local_worker: LocalWorker, kill: Kill
) -> None:
    heart = Heart(local_worker, save_s=1.5)
    heart.until_begun()
    reports: list[CancelReport] = []
    asking = threading.Thread(target=lambda: reports.extend(local_worker.cancel(heart.run)))
    asking.start()
    local_worker.until_logged(heart.run, "TERM")
    kill(local_worker, heart.run)
    asking.join(30)
    assert [report.outcome for report in reports] == ["cancelled"]
    assert local_worker.state(heart.run)["cause"]["kind"] == "cancelled"
    assert len(local_worker.attempts(heart.run)) == 1
    assert local_worker.log(heart.run).count(b"TERM") == 1
    heart.left_nothing()
    # it stays so, whatever is restarted
    local_worker.kill(local_worker.supervisor)
    wait_for(lambda: one_worker(local_worker), 15, "a worker")
    assert local_worker.status(heart.run).status.outcome == "cancelled"


def end_supervisor(worker: LocalWorker) -> None:
    """What a shutdown of the machine, or `docker stop`, does first."""
    pid = worker.supervisor
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not processes.living([pid]), 15, "the end of supervisord")


def test_a_shutdown_saves_runs_and_the_next_contact_takes_them_up(
    local_worker: LocalWorker,
) -> None:
    heart = Heart(local_worker, save_s=1.5)
    heart.until_begun()
    end_supervisor(local_worker)
    assert local_worker.machinery() == {}
    assert local_worker.log(heart.run).endswith(b"TERM\nsaved\n")
    assert local_worker.state(heart.run)["state"] == "queued"
    assert local_worker.status(heart.run).status.outcome is None
    heart.until_begun(2)
    assert b"begun 2 step-1\n" in local_worker.log(heart.run)
    heart.ends_done(["shutdown", None])


def test_a_shutdown_just_after_the_dispatcher_was_killed_loses_nothing(
    local_worker: LocalWorker,
) -> None:
    heart = Heart(local_worker, save_s=3)
    heart.until_begun()
    pid = local_worker.supervisor
    os.kill(local_worker.dispatcher, signal.SIGKILL)
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not processes.living([pid]), 15, "the end of supervisord")
    local_worker.status(heart.run)
    wait_for(lambda: one_worker(local_worker), 15, "a worker")
    attempts = len(local_worker.attempts(heart.run))
    heart.until_begun(attempts)
    heart.ends_done([*["shutdown"] * (attempts - 1), None])


@pytest.mark.slow
def test_a_run_whose_launcher_is_killed_again_and_again_goes_on(
    local_worker: LocalWorker,
) -> None:
    heart = Heart(local_worker)
    for attempt in (1, 2, 3):
        heart.until_begun(attempt)
        local_worker.kill(local_worker.launcher(heart.run))
    heart.until_begun(4)
    heart.ends_done([*["launcher-lost"] * 3, None])


def test_a_killed_launcher_leaves_none_of_the_processes_that_hide(
    local_worker: LocalWorker,
) -> None:
    code = """
import os, signal, subprocess, time
if os.environ["RUNNER_ATTEMPT"] == "1":
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); "
    deaf += "print('up', flush=True); time.sleep(600)"
    subprocess.Popen(["env", "-i", "setsid", "/usr/bin/python3", "-c", deaf], close_fds=True)
    print("begun", flush=True); time.sleep(600)
"""
    run = local_worker.python(code, words=("grace=1s",))
    local_worker.until_logged(run, "up")
    local_worker.until_logged(run, "begun")
    before = local_worker.members(run)
    local_worker.kill(local_worker.launcher(run))
    assert local_worker.wait(run).status.outcome == "done"
    assert len(before) == 2
    assert processes.living(before) == set()


@pytest.mark.slow
def test_a_second_supervisord_gives_way(local_worker: LocalWorker) -> None:
    run = local_worker.submit("true")
    local_worker.wait(run)
    first = (local_worker.supervisor, local_worker.dispatcher)
    words = local_worker.machinery()[local_worker.dispatcher].split()
    bundle = words[words.index("dispatcher") - 1]
    code = (
        f"import sys; sys.path.insert(0, {bundle!r})\n"
        "import supervisor; from paths import Workspace\n"
        f"supervisor.start_detached(Workspace({str(local_worker.workspace)!r}), {words[0]!r})"
    )
    subprocess.run([words[0], "-I", "-S", "-c", code], check=True)
    assert supervisor.is_up(Workspace(str(local_worker.workspace)))
    wait_for(lambda: len(local_worker.machinery()) > 2, 10, "a second supervisord")
    wait_for(lambda: one_worker(local_worker), 25, "one supervisord and one dispatcher")
    assert (local_worker.supervisor, local_worker.dispatcher) == first
    stays(lambda: one_worker(local_worker), 1, "one worker")
