"""All ranks of a run in one output: whole lines, each rank's bytes once and in order."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from runner import wire
from runner.app import runs, tail
from runner.app.context import Context
from runner.errors import WorkerError
from runner.model import Project
from tests.helpers.hostile_worker import Frame, hostile_host
from tests.helpers.local_worker import LocalWorker, Notes
from tests.helpers.wait import wait_for

ROOT = Path(__file__).parents[2]
TWO = """
import os, sys
rank = int(os.environ["RANK"])
for number in range(5000):
    sys.stdout.write(f"{rank} {number} {'x' * 190}\\n")
sys.stdout.write(f"rank {rank} ends")
"""
START_S = 60.0


def runner(worker: LocalWorker, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "runner", *words],
        cwd=worker.project,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        timeout=60,
    )


def apart(shown: bytes, ranks: int) -> list[bytes]:
    """Each rank's lines, without what stands before them."""
    logs = [b""] * ranks
    for line in shown.splitlines(keepends=True):
        rank, _, text = line.partition(b"| ")
        logs[int(rank)] += text
    return logs


def make_ranks(worker: LocalWorker, run: str, logs: list[bytes]) -> None:
    """Let an ended run have had several ranks, with these logs."""
    folder = worker.workspace / "logs" / run
    for rank, log in enumerate(logs):
        (folder / f"rank-{rank}.log").write_bytes(log)
    spec = worker.run_folder(run) / "spec.json"
    body = dict(json.loads(spec.read_text()), nproc=len(logs))
    spec.write_text(json.dumps(body))


def ended(worker: LocalWorker, code: str = "pass") -> str:
    run = worker.python(code)
    worker.wait(run)
    return run


def test_lines_of_two_ranks_are_whole(shared_worker: LocalWorker) -> None:
    pytest.importorskip("torch", reason="left out: torch: not installed")
    run = shared_worker.python(TWO, words=("nproc=2",))
    done = runner(shared_worker, "tail", run, "--merged")
    assert done.returncode == 0, done.stderr
    logs = [shared_worker.log(run, rank) for rank in (0, 1)]
    assert [log.count(b"\n") for log in logs] == [5000, 5000]
    assert apart(done.stdout, 2) == [log + b"\n" for log in logs]


def test_one_rank_has_its_number_too(shared_worker: LocalWorker) -> None:
    run = ended(shared_worker, "print('a'); print('b', end='')")
    assert runner(shared_worker, "tail", run, "--merged").stdout == b"0| a\n0| b\n"


def test_last_lines_are_those_of_each_rank(shared_worker: LocalWorker) -> None:
    run = ended(shared_worker)
    lines = [[b"%d of %d\n" % (n, rank) for n in range(9)] for rank in range(11)]
    lines[4] = []
    make_ranks(shared_worker, run, [b"".join(each) for each in lines])
    done = runner(shared_worker, "tail", run, "--merged", "-n", "2")
    assert apart(done.stdout, 11) == [b"".join(each[-2:]) for each in lines]
    assert b"\n 0| 8 of 0\n" in done.stdout
    every = runner(shared_worker, "tail", run, "--merged", "--from", "0").stdout
    assert apart(every, 11) == [b"".join(each) for each in lines]


def test_cuts_lose_and_repeat_nothing_of_any_rank(
    shared_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "RETRY_WAITS_S", (0.05,))
    gate = shared_worker.root / "gate"
    code = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)"
    run = shared_worker.python(code)
    shared_worker.until(run, "running")
    logs = [random.Random(rank).randbytes(3_000_000) for rank in range(3)]
    make_ranks(shared_worker, run, logs)
    came = [b""] * 3
    kills = 0

    def write(rank: int, ranks: int, data: bytes) -> None:
        nonlocal kills
        assert ranks == 3
        came[rank] += data
        if sum(map(len, came)) > 2_000_000 * (kills + 1) and kills < 3:
            kills += 1
            for pid, words in shared_worker.machinery().items():
                if "exec(bytes.fromhex" in words:
                    os.kill(pid, signal.SIGKILL)
        if sum(map(len, came)) >= 9_000_000:
            gate.touch()

    last = tail.tail_all(shared_worker.ctx, shared_worker.ref(run), None, True, write)
    assert kills == 3
    assert came == logs
    assert last.status.outcome == "done"


def test_what_makes_no_sense_is_refused(shared_worker: LocalWorker) -> None:
    for words in (["--rank", "0"], ["--from", "5"], ["--from", "0", "-n", "1"]):
        done = runner(shared_worker, "tail", "x", "--merged", *words)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    def act(*frames: Frame) -> bytes:
        host = hostile_host(tmp_path, monkeypatch.setenv, {"tail": list(frames)})
        ctx = Context(Project(tmp_path, "p", "p"), {"bad": host}, Notes())
        pieces: list[bytes] = []
        tail.tail_all(
            ctx,
            runs.RunRef("a-1", "bad"),
            None,
            True,
            lambda rank, ranks, data: pieces.append(data),
        )
        return b"".join(pieces)

    return act


def event(**body: object) -> Frame:
    return (wire.EVENT, json.dumps(body).encode().hex())


@pytest.mark.parametrize("ranks", [0, -1, 257, 1 << 40, "2", None, [1], 1.5])
def test_a_number_of_ranks_that_makes_no_sense_is_named(
    hostile: Callable[..., bytes], ranks: object
) -> None:
    with pytest.raises(WorkerError, match="ranks is"):
        hostile(event(start=0, size=0, ranks=ranks))


def test_a_worker_that_does_not_begin_with_the_place_is_named(
    hostile: Callable[..., bytes],
) -> None:
    with pytest.raises(WorkerError, match="out of turn"):
        hostile((wire.DATA, (wire.TAIL_HEAD.pack(0) + b"abc").hex()))


def test_no_tail_follows_the_end_of_another(shared_worker: LocalWorker) -> None:
    run = ended(shared_worker)
    make_ranks(shared_worker, run, [b"a\n", b"b\n"])
    done = runner(shared_worker, "tail", run, "--merged", "--no-follow")
    assert sorted(done.stdout.splitlines()) == [b"0| a", b"1| b"]
    wait_for(
        lambda: not [w for w in shared_worker.machinery().values() if "exec(bytes" in w],
        10,
        "the end of the worker program",
    )
