"""Every byte of a log once, in order, from wherever one begins, through cuts, to the run's end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner import wire
from runner.app import runs, tail
from runner.app.context import Context
from runner.errors import HostError, NotFound, ProvisionError, SpecError, WorkerError
from runner.model import Project
from tests.helpers.hostile_worker import Frame, hostile_host
from tests.helpers.link import Link, make_link
from tests.helpers.local_worker import LocalWorker, Notes
from tests.helpers.wait import wait_for

ROOT = Path(__file__).parents[2]
LINKED = 'runtime = "docker"\nssh = "local"\n'
BINARY = random.Random(1).randbytes(700_000)
PRINTS = """
import random, sys, time
data = random.Random(1).randbytes(700_000)
rng = random.Random(2)
out = sys.stdout.buffer
while data:
    size = rng.choice([1, 10, 100_000])
    out.write(data[:size]); out.flush()
    data = data[size:]
    if size == 100_000: time.sleep(0.05)
"""
COUNTS = """
import itertools, sys, time
for number in itertools.count():
    print("line", number, flush=True)
    time.sleep(0.005)
"""


class Follower:
    """A tail in a thread."""

    def __init__(self, worker: LocalWorker, run: str, host: str = "local", **options: Any) -> None:
        self.data = b""
        self.error: BaseException | None = None
        self.last: Any = None
        options = {"rank": 0, "start": 0, "lines": None, "follow": True} | options
        ref = runs.RunRef(run, host)

        def write(piece: bytes) -> None:
            self.data += piece

        def act() -> None:
            try:
                self.last = tail.tail(worker.ctx, ref, write=write, **options)
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=act)
        self._thread.start()

    def end(self) -> bytes:
        self._thread.join(30)
        assert not self._thread.is_alive(), "the tail goes on"
        if self.error is not None:
            raise self.error
        return self.data


@pytest.fixture
def link(shared_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Link:
    shared_worker.file("hosts/far.toml", LINKED)
    monkeypatch.setattr(tail, "RETRY_WAITS_S", (0.05,))
    return make_link(tmp_path / "link", monkeypatch.setenv)


def test_every_byte_of_a_binary_log_comes_once(shared_worker: LocalWorker) -> None:
    run = shared_worker.python(PRINTS)
    follower = Follower(shared_worker, run)
    assert follower.end() == BINARY
    assert follower.last.status.outcome == "done"
    assert shared_worker.tail(run) == BINARY


def test_tail_begins_where_it_is_told(shared_worker: LocalWorker) -> None:
    run = shared_worker.python("for n in range(30): print('line', n)")
    shared_worker.wait(run)
    whole = b"".join(b"line %d\n" % n for n in range(30))
    assert shared_worker.tail(run) == whole
    assert shared_worker.tail(run, start=100) == whole[100:]
    assert shared_worker.tail(run, start=len(whole)) == b""
    assert shared_worker.tail(run, start=10**9) == b""
    assert shared_worker.tail(run, lines=0) == b""
    assert shared_worker.tail(run, lines=2) == b"line 28\nline 29\n"
    assert shared_worker.tail(run, lines=10**6) == whole
    notes = shared_worker.report.notes
    assert f"last 2 lines of {len(whole)} bytes; all: --from 0" in notes
    assert not any("last 1000000 lines" in note for note in notes)


@pytest.mark.parametrize("count", [1, 3, 5000])
def test_last_lines_of_any_length(shared_worker: LocalWorker, count: int) -> None:
    code = (
        "import sys; sys.stdout.write(''.join('x' * (n % 97) + '\\n' for n in range(9000)) + 'end')"
    )
    run = shared_worker.python(code)
    shared_worker.wait(run)
    lines = [b"x" * (n % 97) + b"\n" for n in range(9000)] + [b"end"]
    assert shared_worker.tail(run, lines=count) == b"".join(lines[-count:])


def test_tail_without_follow_ends_at_once(shared_worker: LocalWorker) -> None:
    run = shared_worker.python("import time; print('here', flush=True); time.sleep(600)")
    shared_worker.until_logged(run, "here")
    assert shared_worker.tail(run, follow=False) == b"here\n"
    shared_worker.cancel(run, now=True)


def test_each_rank_has_its_own_log(shared_worker: LocalWorker) -> None:
    code = "import os; print('rank', os.environ['RANK'])"
    shared_worker.file("r.py", code)
    run = shared_worker.submit("python", "r.py", words=("nproc=1",))
    shared_worker.wait(run)
    (shared_worker.workspace / "logs" / run / "rank-1.log").write_text("rank 1\n")
    spec = shared_worker.run_folder(run) / "spec.json"
    spec.write_text(
        spec.read_text().replace('"nproc":1', '"nproc":2').replace('"nproc": 1', '"nproc": 2')
    )
    assert shared_worker.tail(run, rank=1) == b"rank 1\n"
    with pytest.raises(SpecError, match=r"has 2 rank\(s\), from 0"):
        shared_worker.tail(run, rank=2)


def test_queued_run_is_waited_for_and_told_from_its_first_byte(local_worker: LocalWorker) -> None:
    local_worker.host(slots=1)
    gate = local_worker.root / "gate"
    code = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    local_worker.python(code)
    run = local_worker.python("print('at last')")
    follower = Follower(local_worker, run)
    wait_for(lambda: local_worker.status(run).status.state == "queued", 10, "a queued run")
    gate.touch()
    assert follower.end() == b"at last\n"


def test_tail_ends_with_the_run(shared_worker: LocalWorker) -> None:
    run = shared_worker.python(COUNTS)
    follower = Follower(shared_worker, run)
    wait_for(lambda: len(follower.data) > 100, 20, "some lines")
    shared_worker.cancel(run, now=True)
    assert follower.end() == shared_worker.log(run)
    assert follower.last.status.outcome == "cancelled"


def test_cut_link_goes_on_at_the_next_byte(shared_worker: LocalWorker, link: Link) -> None:
    run = shared_worker.python(PRINTS)
    link.cut_after(100_000)
    follower = Follower(shared_worker, run, "far")
    wait_for(lambda: link.received >= 100_000, 20, "the cut")
    link.cut_after(200_000)
    assert follower.end() == BINARY
    assert any("link lost" in note for note in shared_worker.report.notes)


def test_that_the_link_was_lost_stays_on_the_screen(
    shared_worker: LocalWorker, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "RETRY_WAITS_S", (0.05,))
    run = shared_worker.python(COUNTS)
    follower = Follower(shared_worker, run, "far")
    wait_for(lambda: len(follower.data) > 50, 20, "a few lines")
    steps = shared_worker.report.steps
    before = len(steps)
    link.take_down()
    for pid in programs(shared_worker):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(steps) > before + 2, 20, "some tries")
    shown = {step.rpartition("; ")[2] for step in steps[before:]}
    link.bring_up()
    size = len(follower.data)
    wait_for(lambda: len(follower.data) > size + 50, 20, "new lines")
    shared_worker.cancel(run, now=True)
    assert follower.end() == shared_worker.log(run)
    assert shown == {"trying again"}


def test_killed_worker_program_is_started_again(
    shared_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "RETRY_WAITS_S", (0.05,))
    run = shared_worker.python(COUNTS)
    follower = Follower(shared_worker, run)
    for _ in range(3):
        size = len(follower.data)
        wait_for(lambda size=size: len(follower.data) > size + 50, 20, "new lines")
        for pid in programs(shared_worker):
            os.kill(pid, signal.SIGKILL)
    size = len(follower.data)
    wait_for(lambda: len(follower.data) > size + 50, 20, "new lines")
    shared_worker.cancel(run, now=True)
    assert follower.end() == shared_worker.log(run)


def test_last_lines_are_not_told_twice_after_a_cut(shared_worker: LocalWorker, link: Link) -> None:
    run = shared_worker.python(COUNTS)
    shared_worker.until_logged(run, "line 9\n")
    follower = Follower(shared_worker, run, "far", start=None, lines=3)
    wait_for(lambda: len(follower.data) > 100, 20, "some lines")
    for pid in programs(shared_worker):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(follower.data) > 1000, 20, "more lines")
    shared_worker.cancel(run, now=True)
    data = follower.end()
    assert shared_worker.log(run).endswith(data)
    assert data.startswith(b"line ")


def programs(worker: LocalWorker) -> list[int]:
    """The worker programs of conversations."""
    return [pid for pid, words in worker.machinery().items() if "exec(bytes.fromhex" in words]


def test_another_worker_in_its_place_ends_the_tail(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail, "RETRY_WAITS_S", (0.05,))
    run = local_worker.python(COUNTS)
    local_worker.until_logged(run, "line 9\n")
    follower = Follower(local_worker, run)
    wait_for(lambda: follower.data, 20, "some lines")
    config = local_worker.workspace / ".runner/worker.json"
    body = json.loads(config.read_text())
    body["worker"], before = "w-0123456789ab", body["worker"]
    config.write_text(json.dumps(body))
    for pid in programs(local_worker):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(
        HostError, match=f"another worker answers now .w-0123456789ab, not {before}"
    ):
        follower.end()
    assert local_worker.log(run).startswith(follower.data)


@pytest.mark.parametrize("patience_s", [60.0, 0.0])
def test_a_host_without_its_worker_for_a_while_is_asked_again(
    shared_worker: LocalWorker,
    link: Link,
    monkeypatch: pytest.MonkeyPatch,
    patience_s: float,
) -> None:
    monkeypatch.setattr(tail, "WITHOUT_WORKER_S", patience_s)
    run = shared_worker.python(COUNTS)
    follower = Follower(shared_worker, run, "far")
    wait_for(lambda: len(follower.data) > 100, 20, "some lines")
    docker, tried = link.folder / "docker", link.folder / "tried"
    good = docker.read_text()
    docker.write_text(f"#!/bin/sh\necho . >> {tried}\necho No such container >&2; exit 1\n")
    for pid in programs(shared_worker):
        os.kill(pid, signal.SIGKILL)
    if not patience_s:
        with pytest.raises(ProvisionError, match="no worker there"):
            follower.end()
        return
    wait_for(lambda: tried.exists() and len(tried.read_text()) > 4, 20, "some tries")
    there = docker.with_name("docker.new")
    there.write_text(good)
    there.chmod(0o755)
    there.rename(docker)
    size = len(follower.data)
    wait_for(lambda: len(follower.data) > size + 50, 20, "new lines")
    shared_worker.cancel(run, now=True)
    assert follower.end() == shared_worker.log(run)


def test_host_that_never_answers_ends_the_tail(shared_worker: LocalWorker, link: Link) -> None:
    run = shared_worker.python("pass")
    shared_worker.wait(run)
    link.take_down()
    with pytest.raises(HostError):
        Follower(shared_worker, run, "far").end()


def test_reader_that_has_seen_enough(shared_worker: LocalWorker) -> None:
    run = shared_worker.python(COUNTS)
    shared_worker.until_logged(run, "line 1\n")
    program = f"{sys.executable} -m runner tail {run} | head -1"
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    began = time.monotonic()
    done = subprocess.run(
        ["sh", "-c", program],
        cwd=shared_worker.project,
        env=env,
        capture_output=True,
        timeout=30,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"line 0\n", b"")
    assert time.monotonic() - began < 15
    wait_for(lambda: not programs(shared_worker), 10, "the end of the worker program")
    assert shared_worker.status(run).status.state == "running"
    shared_worker.cancel(run, now=True)


def test_run_that_is_not_there(shared_worker: LocalWorker) -> None:
    shared_worker.python("pass")
    with pytest.raises(NotFound, match="no run nope here"):
        shared_worker.tail("nope")


def test_a_run_that_is_removed_while_it_is_followed(local_worker: LocalWorker) -> None:
    run = local_worker.python("import time; print('here', flush=True); time.sleep(3)")
    follower = Follower(local_worker, run)
    wait_for(lambda: follower.data, 20, "its first line")
    (local_worker.workspace / "runs" / run / "spec.json").unlink()
    with pytest.raises(NotFound, match=f"no run {run} here"):
        follower.end()


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
    def act(*frames: Frame) -> bytes:
        host = hostile_host(tmp_path, monkeypatch.setenv, {"tail": list(frames)})
        ctx = Context(Project(tmp_path, "p", "p"), {"bad": host}, Notes())
        pieces: list[bytes] = []
        tail.tail(ctx, runs.RunRef("a-1", "bad"), 0, 0, None, True, pieces.append)
        return b"".join(pieces)

    return act


def piece(offset: int, data: bytes) -> Frame:
    return (wire.DATA, (wire.TAIL_HEAD.pack(offset) + data).hex())


END: Frame = (wire.REP, {"run": {"id": "a-1", "state": "ended"}})


def test_bytes_that_come_again_are_written_once(hostile: Callable[..., bytes]) -> None:
    frames = [piece(0, b"abc"), piece(1, b"bcd"), piece(0, b"ab"), piece(4, b"e"), END]
    assert hostile(*frames) == b"abcde"


def cut(*where: object) -> Frame:
    return (wire.EVENT, json.dumps({"cut": where}).encode().hex())


def test_bytes_that_the_log_limit_took_are_passed_over(hostile: Callable[..., bytes]) -> None:
    assert hostile(piece(0, b"abc"), cut(3, 10), piece(10, b"k"), END) == b"abck"


@pytest.mark.parametrize("where", [(2, 3), (4, 10), (3, "x"), (3,), (), (3, 1e400)])
def test_a_cut_that_makes_no_sense_hides_no_loss(
    hostile: Callable[..., bytes], where: tuple[object, ...]
) -> None:
    with pytest.raises(WorkerError, match="bytes 3 to 10 of the log did not come"):
        hostile(piece(0, b"abc"), cut(*where), piece(10, b"k"), END)


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([piece(0, b"abc"), piece(4, b"e")], "bytes 3 to 4 of the log did not come"),
        ([(wire.DATA, "0000")], "without its place"),
        ([(wire.EVENT, "5b5d")], "cannot be read"),
        ([(wire.REP, {"run": None})], "cannot be read"),
        ([(wire.REP, {"run": {"id": "../x", "state": "ended"}})], "cannot be read"),
    ],
)
def test_wrong_answers_are_named(
    hostile: Callable[..., bytes], frames: list[Frame], says: str
) -> None:
    with pytest.raises(WorkerError, match=says):
        hostile(*frames)


SPOILS = {
    "delete": "os.unlink(log)",
    "link": "os.unlink(log); os.symlink('/etc/passwd', log)",
    "pipe": "os.unlink(log); os.mkfifo(log)",
    "folder": "os.unlink(log); os.mkdir(log)",
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_log_that_the_job_took_away_is_told_of(shared_worker: LocalWorker, spoil: str) -> None:
    code = f"""
import os, time
log = os.environ["RUNNER_LOGS"] + "/rank-0.log"
print("first", flush=True)
while not os.path.exists("go"): time.sleep(0.02)
{SPOILS[spoil]}
print("second", flush=True)
time.sleep(2)
"""
    run = shared_worker.python(code)
    shared_worker.until_logged(run, "first")
    follower = Follower(shared_worker, run)
    wait_for(lambda: follower.data, 10, "its first line")
    (shared_worker.workspace / "code" / run / "go").touch()
    # who has it open sees it all, and is told
    assert follower.end() == b"first\nsecond\n"
    told = f"{run}: rank-0.log was deleted or replaced while it ran; what is printed since is lost"
    assert shared_worker.report.notes.count(told) == 1
    assert shared_worker.tail(run, follow=False) == b""
    assert shared_worker.report.notes.count(told) == 2
    assert shared_worker.status(run).status.log_problem == told.partition(": ")[2]


def test_a_log_that_became_shorter_goes_on_from_its_start(shared_worker: LocalWorker) -> None:
    code = """
import os, time
log = os.environ["RUNNER_LOGS"] + "/rank-0.log"
print("x" * 1000, flush=True)
while not os.path.exists("go"): time.sleep(0.02)
time.sleep(1.2)
os.truncate(log, 0)
time.sleep(1.2)
print("anew", flush=True)
"""
    run = shared_worker.python(code)
    shared_worker.until_logged(run, "xxx\n")
    follower = Follower(shared_worker, run)
    wait_for(lambda: len(follower.data) == 1001, 10, "its first line")
    (shared_worker.workspace / "code" / run / "go").touch()
    assert follower.end() == b"x" * 1000 + b"\nanew\n"
    notes = shared_worker.report.notes
    text = "rank-0.log became shorter, from 1001 bytes to 0 bytes; here it goes on from its start"
    assert notes.count(text) == 1
    problem = "rank-0.log was cut short while it ran, from 1001 to 0 bytes; what was in it is lost"
    assert follower.last.status.log_problem == problem


def test_a_log_that_was_cut_and_has_grown_again_goes_on_from_its_start(
    shared_worker: LocalWorker,
) -> None:
    """Between two looks, so that its size alone does not tell."""
    code = """
import os, time
log = os.environ["RUNNER_LOGS"] + "/rank-0.log"
print("x" * 1000, flush=True)
while not os.path.exists("go"): time.sleep(0.02)
with open(log, "r+b", buffering=0) as own: own.write(b"anew\\n" * 1000)
time.sleep(0.5)
"""
    run = shared_worker.python(code)
    follower = Follower(shared_worker, run)
    wait_for(lambda: len(follower.data) == 1001, 10, "its first line")
    (shared_worker.workspace / "code" / run / "go").touch()
    assert follower.end() == b"x" * 1000 + b"\n" + b"anew\n" * 1000
    assert (
        "rank-0.log was written anew, 5000 bytes by now; here it goes on from its start"
        in shared_worker.report.notes
    )


def test_a_log_that_the_job_begins_anew_is_gone_on_with(shared_worker: LocalWorker) -> None:
    code = """
import os, time
log = os.environ["RUNNER_LOGS"] + "/rank-0.log"
print("first", flush=True)
while not os.path.exists("go"): time.sleep(0.02)
os.rename(log, log + ".1")
os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
print("second", flush=True)
time.sleep(2)
"""
    run = shared_worker.python(code)
    shared_worker.until_logged(run, "first")
    follower = Follower(shared_worker, run)
    wait_for(lambda: follower.data, 10, "its first line")
    (shared_worker.workspace / "code" / run / "go").touch()
    assert follower.end() == b"first\nsecond\n"
    problem = "rank-0.log was begun anew while it ran; what was in it before is not there"
    assert follower.last.status.log_problem == problem


def test_a_log_that_is_there_no_more_is_told_of(shared_worker: LocalWorker) -> None:
    run = shared_worker.python("print('here')")
    shared_worker.wait(run)
    (shared_worker.workspace / "logs" / run / "rank-0.log").unlink()
    assert shared_worker.tail(run) == b""
    assert f"{run}: rank-0.log is not there any more" in shared_worker.report.notes


def test_what_became_of_a_log_is_told_by_the_command_without_a_terminal(
    shared_worker: LocalWorker,
) -> None:
    code = 'import os; print("x"); os.unlink(os.environ["RUNNER_LOGS"] + "/rank-0.log")'
    run = shared_worker.python(code)
    shared_worker.wait(run)
    done = subprocess.run(
        [sys.executable, "-m", "runner", "tail", run],
        cwd=shared_worker.project,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        timeout=30,
        check=True,
        text=True,
    )
    assert done.stdout == ""
    assert done.stderr.count("rank-0.log was deleted or replaced") == 1


def event(body: dict[str, Any]) -> Frame:
    return (wire.EVENT, json.dumps(body).encode().hex())


def test_bytes_come_from_the_start_of_a_log_that_became_shorter(
    hostile: Callable[..., bytes],
) -> None:
    assert hostile(piece(0, b"abc"), event({"anew": [3, 1]}), piece(0, b"k"), END) == b"abck"
    frames = [event({"anew": where}) for where in ([3], "x", [3, "x"], [3, 1e400])]
    frames += [event({"problem": 3}), piece(1, b"bcd")]
    assert hostile(piece(0, b"abc"), *frames, END) == b"abcd"
