"""Ranks that mpirun starts: variables, ends, logs, stop; nothing listens beyond loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import mpi
import processes
import pytest

from tests.contract.test_worker_front import GLOO, START_S, listening
from tests.helpers.local_worker import LocalWorker, read
from tests.helpers.wait import wait_for

TWO = ("nproc=2", "launcher=mpirun")
RANK = "import os, signal, sys, time; rank = int(os.environ['RANK'])\n"
LOOPBACK = {"0100007F", "0" * 24 + "01000000"}

pytestmark = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="left out: mpirun: not installed"
)


@pytest.fixture
def worker(shared_worker: LocalWorker) -> LocalWorker:
    return shared_worker


def front_of(worker: LocalWorker, run: str) -> int:
    """The front's process: the child of the launcher."""
    launcher = worker.launcher(run)
    found = wait_for(
        lambda: [p for p in worker.members(run) if parent(p) == launcher], 20, "the front"
    )
    return found[0]


def parent(pid: int) -> int:
    return (processes.read_stat(pid) or (0, 0, ""))[0]


def mpirun_of(worker: LocalWorker, run: str) -> int:
    front = front_of(worker, run)
    found = wait_for(lambda: [p for p in worker.members(run) if parent(p) == front], 20, "mpirun")
    return found[0]


def test_ranks_know_who_they_are_and_write_their_own_logs(worker: LocalWorker) -> None:
    told = "print({k: os.environ.get(k) for k in sorted(os.environ) if k in"
    told += " ('RANK','LOCAL_RANK','WORLD_SIZE','LOCAL_WORLD_SIZE','MASTER_ADDR','LD_PRELOAD')})"
    run = worker.python(f"{RANK}{told}; print(sys.argv[1:])", "a b", "", "*", words=TWO)
    assert worker.wait(run, START_S).status.outcome == "done"
    for rank in (0, 1):
        expected = {
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "RANK": str(rank),
            "WORLD_SIZE": "2",
        }
        assert worker.log(run, rank).decode().splitlines() == [str(expected), "['a b', '', '*']"]


def test_gloo_meets_in_our_store_and_nothing_listens_beyond_loopback(worker: LocalWorker) -> None:
    pytest.importorskip("torch", reason="left out: torch: not installed")
    gate = worker.root / "mpi-gate"
    run = worker.python(GLOO, words=(*TWO, f"env.GATE={gate}"))
    for rank in (0, 1):
        worker.until_logged(run, f"rank {rank} of 2 sum 3.0", rank, limit_s=START_S)
    # mpirun keeps one for its daemon and one for its ranks, the front one for the store
    found = listening(worker.members(run))
    assert found
    assert {address for address, _ in found} == {"0100007F"} or {a for a, _ in found} <= LOOPBACK
    gate.touch()
    assert worker.wait(run, START_S).status.outcome == "done"


def test_without_what_holds_it_mpirun_listens_on_every_interface(tmp_path: Path) -> None:
    """What the few lines of C are for; when this fails they are needed no more."""
    words = mpi.command(1, ["sleep", "600"])
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    with subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: any(a not in LOOPBACK for a, _ in listening({process.pid})), 20, "it")
        finally:
            process.terminate()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_rank_that_fails_is_named_and_the_other_gets_its_grace(
    worker: LocalWorker, rank: int
) -> None:
    code = f"""
if rank == {rank}: time.sleep(0.5); sys.exit(7)
def end(*_): print("asked", flush=True); time.sleep(1); print("saved", flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, end)
time.sleep(600)
"""
    run = worker.python(RANK + code, words=TWO)
    status = worker.wait(run, START_S).status
    assert (status.outcome, status.exit) == ("failed", {"code": 7, "signal": None, "rank": rank})
    assert worker.log(run, 1 - rank) == b"asked\nsaved\n"


def test_a_rank_that_is_killed_is_told_by_its_signal(worker: LocalWorker) -> None:
    run = worker.python(f"{RANK}if rank: os.kill(os.getpid(), 9)\ntime.sleep(600)", words=TWO)
    status = worker.wait(run, START_S).status
    assert status.exit == {"code": None, "signal": 9, "rank": 1}


def test_a_cancel_asks_each_rank_once_and_waits_for_its_save(worker: LocalWorker) -> None:
    code = """
asked = 0
def end(*_):
    global asked
    asked += 1
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while not asked: time.sleep(0.05)
time.sleep(1 + rank)
print("saved", asked, flush=True)
"""
    run = worker.python(RANK + code, words=TWO)
    for rank in (0, 1):
        worker.until_logged(run, "ready", rank, limit_s=START_S)
    report = worker.cancel(run)[0]
    assert (report.outcome, report.left) == ("cancelled", ())
    for rank in (0, 1):
        assert worker.log(run, rank) == b"ready\nsaved 1\n"
    assert not worker.members(run)


@pytest.mark.parametrize("victim", ["mpirun", "wrapper"])
def test_who_is_killed_leaves_nothing_behind(worker: LocalWorker, victim: str) -> None:
    run = worker.python(f"{RANK}print('up', flush=True); time.sleep(600)", words=TWO)
    worker.until_logged(run, "up", 1, limit_s=START_S)
    mpirun = mpirun_of(worker, run)
    wrappers = [pid for pid in worker.members(run) if parent(pid) == mpirun]
    assert len(wrappers) == 2
    os.kill(mpirun if victim == "mpirun" else wrappers[0], signal.SIGKILL)
    status = worker.wait(run, START_S).status
    assert status.outcome == "failed"
    assert not worker.members(run)


def test_a_program_that_is_not_there_is_named(worker: LocalWorker) -> None:
    run = worker.submit("no-such-program-here", words=TWO)
    status = worker.wait(run, START_S).status
    assert status.outcome == "failed"
    assert "no-such-program-here" in str(status.cause)


def test_without_mpirun_it_says_so(worker: LocalWorker) -> None:
    run = worker.submit("true", words=(*TWO, "env.PATH=/nowhere"))
    status = worker.wait(run, START_S).status
    cause = dict(status.cause or {})
    assert cause["kind"] == "setup"
    assert cause["text"] == "launcher mpirun: there is no mpirun in this worker"


def test_stacks_are_the_ranks_own(worker: LocalWorker) -> None:
    from runner.app import stack

    run = worker.python(f"{RANK}print('up', flush=True); time.sleep(600)", words=TWO)
    for rank in (0, 1):
        worker.until_logged(run, "up", rank, limit_s=START_S)
    taken = stack.stack(worker.ctx, worker.ref(run))
    assert [row.rank for row in taken.ranks] == [0, 1]
    worker.cancel(run, now=True)
    born = worker.run_folder(run) / "attempts/1/stop.ranks"
    assert {path.name for path in born.iterdir()} >= {"rank-0.json", "rank-1.json"}
    assert read(born / "rank-0.json")["pid"]
