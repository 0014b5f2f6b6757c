"""Several ranks on one node, under torchrun's own agent and without torch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import front
import processes
import pytest

from tests.helpers.local_worker import LocalWorker, read
from tests.helpers.wait import wait_for

TWO = ("nproc=2",)
START_S = 60.0
"""torchrun takes seconds to start, more on a busy machine."""

GLOO = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
t = torch.ones(1) * (rank + 1); dist.all_reduce(t)
print("rank", rank, "of", dist.get_world_size(), "sum", t.item(), flush=True)
gate = os.environ.get("GATE")
while gate and not os.path.exists(gate): time.sleep(0.01)
dist.barrier(); dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def _torch() -> None:
    pytest.importorskip("torch", reason="left out: torch: not installed")


def listening(pids: set[int]) -> set[tuple[str, int]]:
    """(address in hex, port) of every TCP socket that these processes listen on."""
    inodes = set()
    for pid in pids:
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                address, port = words[1].split(":")
                found.add((address, int(port, 16)))
    return found


def test_two_runs_of_two_ranks_at_once_listen_on_loopback_alone(
    shared_worker: LocalWorker,
) -> None:
    gate = shared_worker.root / "gate"
    words = (*TWO, f"env.GATE={gate}")
    before = set(os.listdir("/tmp"))
    ids = [shared_worker.python(GLOO, words=words) for _ in range(2)]
    for run in ids:
        for rank in (0, 1):
            shared_worker.until_logged(run, f"rank {rank} of 2 sum 3.0", rank, START_S)
    for run in ids:
        sockets = listening(shared_worker.members(run))
        assert sockets
        assert {address for address, _ in sockets} <= {"0100007F"}
    gate.touch()
    for run in ids:
        assert shared_worker.wait(run, START_S).status.outcome == "done"
        assert shared_worker.log(run, 0) == b"rank 0 of 2 sum 3.0\n"
        assert shared_worker.tail(run, rank=1) == b"rank 1 of 2 sum 3.0\n"
        assert shared_worker.members(run) == set()
    left = set(os.listdir("/tmp")) - before
    assert not [name for name in left if "torchelastic" in name]


@pytest.mark.slow
def test_the_first_rank_that_fails_is_the_cause(shared_worker: LocalWorker) -> None:
    code = """
import os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if os.environ["RANK"] == "1": sys.exit(5)
t = torch.ones(1); dist.all_reduce(t)
"""
    began = time.monotonic()
    run = shared_worker.python(code, words=TWO)
    status = shared_worker.wait(run, START_S).status
    assert status.outcome == "failed"
    assert status.cause is not None
    assert {"kind": "exit", "rank": 1, "code": 5}.items() <= status.cause.items()
    assert status.exit == {"code": 5, "signal": None, "rank": 1}
    assert time.monotonic() - began < 50


def test_a_rank_that_is_killed_is_told_from_one_that_exits(shared_worker: LocalWorker) -> None:
    code = """
import os, time, torch.distributed as dist
dist.init_process_group("gloo"); dist.barrier()
print("pid", os.getpid(), flush=True); time.sleep(600)
"""
    run = shared_worker.python(code, words=TWO)
    for rank in (0, 1):
        shared_worker.until_logged(run, "pid ", rank, START_S)
    shared_worker.kill(int(shared_worker.log(run, 1).split()[1]))
    cause = shared_worker.wait(run, START_S).status.cause
    assert cause is not None
    assert {"kind": "signal", "rank": 1, "signal": "SIGKILL"}.items() <= cause.items()
    assert shared_worker.members(run) == set()


@pytest.mark.slow
def test_a_killed_agent_takes_its_ranks_along(shared_worker: LocalWorker) -> None:
    code = "import os, time; print('begun', flush=True); time.sleep(600)"
    run = shared_worker.python(code, words=TWO)
    shared_worker.until_logged(run, "begun", 1, START_S)
    (agent,) = [
        pid
        for pid in shared_worker.members(run)
        if (processes.read_stat(pid) or (0, 0, ""))[0] == shared_worker.launcher(run)
    ]
    shared_worker.kill(agent)
    status = shared_worker.wait(run, START_S).status
    assert status.outcome == "failed"
    assert status.cause is not None
    assert status.cause["kind"] == "signal"
    assert "torchrun's agent killed by SIGKILL" in status.cause["text"]
    assert shared_worker.members(run) == set()


SLOW_SAVE = """
import os, signal, sys, time
count = 0
def save(*_):
    global count
    count += 1
    print("TERM", count, flush=True)
    if count > 1: return
    time.sleep(2.5 if os.environ["RANK"] == "1" else 0.2)
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
while True: time.sleep(0.01)
"""


@pytest.mark.parametrize("with_torch", [True, False])
def test_cancel_sends_term_once_to_each_rank_and_waits_for_the_slowest(
    shared_worker: LocalWorker, with_torch: bool
) -> None:
    words = (*TWO, *(() if with_torch else no_torch(shared_worker)))
    run = shared_worker.python(SLOW_SAVE, words=words)
    for rank in (0, 1):
        shared_worker.until_logged(run, "begun", rank, START_S)
    (report,) = shared_worker.cancel(run)
    assert report.outcome == "cancelled"
    for rank in (0, 1):
        assert shared_worker.log(run, rank) == b"begun\nTERM 1\nsaved\n"
    assert 2.4 < report.seconds < 10
    assert shared_worker.members(run) == set()
    assert shared_worker.attempts(run)[0]["killed"] == 0


def no_torch(worker: LocalWorker) -> tuple[str, ...]:
    """Words that hide torch from the job's Python."""
    worker.file("hide/torch/__init__.py", "raise ImportError('hidden')\n")
    return (f"env.PYTHONPATH={worker.project}/hide",)


def test_two_ranks_without_torch(shared_worker: LocalWorker) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    code = f"import os; print([os.environ[n] for n in {names!r}], os.environ['OMP_NUM_THREADS'])"
    run = shared_worker.python(code, words=(*TWO, *no_torch(shared_worker)))
    assert shared_worker.wait(run).status.outcome == "done"
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    for rank in ("0", "1"):
        told = [rank, rank, "2", "2", "127.0.0.1"]
        assert shared_worker.log(run, int(rank)).decode() == f"{told} {threads}\n"


def test_without_torch_too_the_first_failure_ends_the_others(shared_worker: LocalWorker) -> None:
    code = "import os, sys, time; os.environ['RANK'] == '1' and sys.exit(7); time.sleep(600)"
    run = shared_worker.python(code, words=(*TWO, *no_torch(shared_worker)))
    cause = shared_worker.wait(run).status.cause
    assert cause is not None
    assert {"kind": "exit", "rank": 1, "code": 7}.items() <= cause.items()


IGNORES_TERM = """
import os, signal, sys, time
if os.environ["RANK"] == "0": signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("up-" + os.environ["RANK"], "w").close()
while not os.path.exists("up-0"): time.sleep(0.01)
os.environ["RANK"] == "1" and sys.exit(7)
time.sleep(600)
"""


@pytest.mark.parametrize("with_torch", [True, False])
def test_when_one_rank_has_failed_the_others_have_the_runs_grace(
    shared_worker: LocalWorker, with_torch: bool
) -> None:
    words = (*TWO, "grace=2s", *(() if with_torch else no_torch(shared_worker)))
    run = shared_worker.python(IGNORES_TERM, words=words)
    cause = shared_worker.wait(run, START_S).status.cause
    assert cause is not None
    assert {"kind": "exit", "rank": 1, "code": 7}.items() <= cause.items()
    code = shared_worker.workspace / "code" / run
    ends = read(shared_worker.run_folder(run) / "attempts/1/ranks.json")
    assert ends["0"]["code"] == -9
    assert 1.9 < ends["0"]["t"] - ends["1"]["t"] < 10
    assert (code / "up-0").exists()


UNTOLD = """
import os, signal, sys, time
import front

signal.signal = lambda *_: None  # as if each SIGCHLD came too late
there, runs = os.path.exists, front._runs

def late(path):
    # asked after the failure was seen, before the others are told to stop
    if path == sys.argv[3] and not there("go"):
        open("go", "w").close()
        while runs(int(open("pid").read())): time.sleep(0.01)
    return there(path)

os.path.exists = late
sys.exit(front.main(sys.argv[1:]))
"""

RANK_0_FOLLOWS = """
import os, sys, time
if os.environ["RANK"] == "0":
    with open("pid.tmp", "w") as file: file.write(str(os.getpid()))
    os.rename("pid.tmp", "pid")
    while not os.path.exists("go"): time.sleep(0.01)
    sys.exit(9)
while not os.path.exists("pid"): time.sleep(0.01)
sys.exit(7)
"""


@pytest.mark.parametrize("with_torch", [True, False])
def test_the_end_of_a_rank_that_nobody_was_told_of_is_noted(
    tmp_path: Path, with_torch: bool
) -> None:
    """Its time is the one it was seen at, not cut to whole seconds, so that the first failure is
    the first; and nobody waits for a rank that was reaped unseen."""
    (tmp_path / "rank.py").write_text(RANK_0_FOLLOWS)
    (tmp_path / "hide/torch").mkdir(parents=True)
    (tmp_path / "hide/torch/__init__.py").write_text("raise ImportError('hidden')\n")
    path = [str(Path(front.__file__).parent), *([] if with_torch else [str(tmp_path / "hide")])]
    argv = ("2", "report", "stop", "torchrun", "--", sys.executable, "rank.py")
    found = subprocess.run(
        [sys.executable, "-c", UNTOLD, *argv],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "RUNNER_GRACE_S": "5"},
        capture_output=True,
        timeout=120,
    )
    ends = read(tmp_path / "report")
    assert {rank: end["code"] for rank, end in ends.items()} == {"0": 9, "1": 7}
    assert ends["0"]["t"] % 1 and ends["1"]["t"] % 1
    if not with_torch:  # torchrun's agent is asked after it has seen both
        assert ends["1"]["t"] < ends["0"]["t"]
        assert found.returncode == 7


def test_a_program_that_is_not_there_is_named_for_several_ranks_too(
    shared_worker: LocalWorker,
) -> None:
    run = shared_worker.submit("no-such-thing", words=(*TWO, *no_torch(shared_worker)))
    cause = shared_worker.wait(run).status.cause
    assert cause is not None
    assert "no-such-thing: no such program" in cause["text"]


def test_a_front_that_cannot_start_the_ranks_says_why(shared_worker: LocalWorker) -> None:
    shared_worker.file("broken/torch/__init__.py", "raise RuntimeError('driver too old')\n")
    words = (*TWO, f"env.PYTHONPATH={shared_worker.project}/broken")
    run = shared_worker.submit("true", words=words)
    cause = shared_worker.wait(run).status.cause
    assert cause is not None
    assert "driver too old" in cause["text"]
    assert read(shared_worker.run_folder(run) / "attempts/1/ranks.json") == {}
    assert wait_for(lambda: not shared_worker.members(run), 5, "no process left")
