"""`runner tail` as it is typed: what people do with it, and what it costs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import pytest

from runner import wire
from tests.helpers.link import Link, make_link
from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import wait_for

ROOT = Path(__file__).parents[2]
LINKED = 'runtime = "docker"\nssh = "local"\n'
COUNTS = """
import itertools, time
for number in itertools.count():
    print("line", number)
    time.sleep(0.005)
"""
BIG = 200_000_000
MOST_MIB = 90
"""Each side's: some 25 of an idle one, what may wait in between, and some more."""


class Tail:
    """A `runner tail` that is under way."""

    def __init__(self, worker: LocalWorker, *words: str) -> None:
        self._worker = worker
        self.child = subprocess.Popen(
            [sys.executable, "-m", "runner", "tail", *words],
            cwd=worker.project,
            env=dict(os.environ, PYTHONPATH=str(ROOT)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.out = cast(IO[bytes], self.child.stdout)
        self.came = 0

    def read(self, size: int) -> bytes:
        data = os.read(self.out.fileno(), size)
        self.came += len(data)
        return data

    def end(self) -> tuple[int, bytes, str]:
        out, err = self.child.communicate(timeout=60)
        return self.child.returncode, out, err.decode()

    @property
    def programs(self) -> list[int]:
        """The worker programs that send."""
        found = self._worker.machinery()
        return [pid for pid, words in found.items() if "exec(bytes.fromhex" in words]


def peak_mib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10


@pytest.fixture
def counting(shared_worker: LocalWorker) -> Iterator[str]:
    """A run that prints for ever, without a flush of its own."""
    run = shared_worker.python(COUNTS)
    shared_worker.until_logged(run, "line 1\n")
    yield run
    shared_worker.cancel(run, now=True)


def ended(worker: LocalWorker, log: bytes | None = None, size: int | None = None) -> str:
    """A run that has ended, with this log; or with one of so many NULs and three lines."""
    run = worker.python("pass")
    worker.wait(run)
    with open(worker.workspace / "logs" / run / "rank-0.log", "wb") as file:
        file.write(log or b"")
        if size is not None:
            file.truncate(size)
            file.seek(0, os.SEEK_END)
            file.write(b"\nx\ny\nz\n")
    return run


def test_ctrl_c_ends_the_tail_and_not_the_run(shared_worker: LocalWorker, counting: str) -> None:
    tail = Tail(shared_worker, counting)
    assert tail.read(100)
    tail.child.send_signal(signal.SIGINT)
    status, _, err = tail.end()
    assert status == 130
    assert err == f"{counting} goes on; back to it: runner tail {counting}\n"
    assert shared_worker.status(counting).status.state == "running"
    wait_for(lambda: not tail.programs, 10, "the end of the worker program")


def test_a_tail_that_is_killed_leaves_nothing_there(
    shared_worker: LocalWorker, counting: str
) -> None:
    tail = Tail(shared_worker, counting)
    assert tail.read(100)
    assert tail.programs
    tail.child.kill()
    tail.end()
    wait_for(lambda: not tail.programs, 5, "the end of the worker program")


def test_a_client_that_slept_goes_on_where_it_was(
    shared_worker: LocalWorker, counting: str
) -> None:
    tail = Tail(shared_worker, counting)
    data = tail.read(1 << 16)
    tail.child.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    slept_s = wire.CLIENT_PATIENCE_S + 2.5
    wait_for(lambda: time.monotonic() - began > slept_s, slept_s + 5, "a while asleep")
    tail.child.send_signal(signal.SIGCONT)
    while len(data) < 20_000:
        data += tail.read(1 << 16)
    shared_worker.cancel(counting, now=True)
    status, rest, err = tail.end()
    assert status == 0, err
    assert data + rest == shared_worker.log(counting)


@pytest.mark.parametrize("pause_s", [0.0, 4.0])
def test_a_reader_of_any_speed_costs_no_memory(shared_worker: LocalWorker, pause_s: float) -> None:
    tail = Tail(shared_worker, ended(shared_worker, size=BIG))
    assert tail.read(1)
    wait_for(lambda: len(tail.programs) == 1, 10, "its worker program alone")
    (program,) = tail.programs
    began = time.monotonic()
    wait_for(lambda: time.monotonic() - began >= pause_s, pause_s + 5, "a slow reader")
    peaks = {}
    while tail.came < BIG and tail.read(1 << 20):
        for pid in (tail.child.pid, program):
            with contextlib.suppress(OSError, StopIteration):  # it may have ended
                peaks[pid] = peak_mib(pid)
    status, rest, err = tail.end()
    assert (status, tail.came + len(rest)) == (0, BIG + 7), err
    assert len(peaks) == 2 and max(peaks.values()) < MOST_MIB, peaks


def test_a_slow_reader_is_no_dead_link(shared_worker: LocalWorker) -> None:
    run = ended(shared_worker, size=BIG // 4)
    tail = Tail(shared_worker, run)
    assert tail.read(1)
    wait_for(lambda: len(tail.programs) == 1, 10, "its worker program alone")
    (program,) = tail.programs
    began = time.monotonic()
    slow_s = 2 * wire.CLIENT_PATIENCE_S
    wait_for(lambda: time.monotonic() - began > slow_s, slow_s + 5, "a while without reading")
    assert tail.programs == [program], "the same conversation"
    status, rest, _ = tail.end()
    assert (status, tail.came + len(rest)) == (0, BIG // 4 + 7)


def test_the_end_of_a_huge_log_is_there_at_once(shared_worker: LocalWorker) -> None:
    run = ended(shared_worker, size=1 << 30)
    status, out, _ = Tail(shared_worker, run, "-n", "3").end()
    assert (status, out) == (0, b"x\ny\nz\n")


EDGES = {
    "nothing": (b"", [], b""),
    "one line without an end": (b"x" * 3_000_000, ["-n", "1"], b"x" * 3_000_000),
    "NULs and no text": (b"\0\xff\x1b[2J\n\0", [], b"\0\xff\x1b[2J\n\0"),
    "fewer lines than asked for": (b"a\nb\n", ["-n", "50"], b"a\nb\n"),
    "no lines asked for": (b"a\nb\n", ["-n", "0"], b""),
    "the very end": (b"a\nb\n", ["--from", "4"], b""),
    "nothing, its end": (b"", ["-n", "5"], b""),
}


@pytest.mark.parametrize("edge", EDGES)
def test_any_log_is_shown_as_it_is(shared_worker: LocalWorker, edge: str) -> None:
    log, words, shown = EDGES[edge]
    assert Tail(shared_worker, ended(shared_worker, log), *words).end() == (0, shown, "")


def test_a_place_beyond_the_end_is_said(shared_worker: LocalWorker) -> None:
    run = ended(shared_worker, b"a\nb\n")
    status, out, err = Tail(shared_worker, run, "--from", "5").end()
    assert (status, out) == (0, b"")
    assert err == "--from 5 is beyond the end of rank-0.log, which has 4 bytes\n"
    last = str(2**63 - 1)
    status, out, err = Tail(shared_worker, run, "--from", last).end()
    assert (status, out) == (0, b"")
    assert err == f"--from {last} is beyond the end of rank-0.log, which has 4 bytes\n"


def test_a_place_that_is_not_reached_yet_is_waited_for(
    shared_worker: LocalWorker, counting: str
) -> None:
    place = len(shared_worker.log(counting)) + 2000
    tail = Tail(shared_worker, counting, "--from", str(place))
    data = b""
    while len(data) < 1000:
        data += tail.read(1000)
    log = shared_worker.log(counting)
    assert log[place:].startswith(data)
    tail.child.kill()
    assert "is beyond the end of rank-0.log" in tail.end()[2]


def test_a_log_that_grows_faster_than_the_link_loses_nothing(
    shared_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_worker.file("hosts/far.toml", LINKED)
    link = make_link(tmp_path / "link", monkeypatch.setenv)
    link.plan({"rate": 4_000_000})
    code = "import sys\nfor n in range(160_000): sys.stdout.write(f'{n:099}\\n')"
    run = shared_worker.python(code)
    shared_worker.wait(run)
    log = shared_worker.log(run)
    assert len(log) == 16_000_000
    assert follow_through(shared_worker, link, run) == log


def follow_through(worker: LocalWorker, link: Link, run: str) -> bytes:
    """A run's log as a tail over the link gives it."""
    from runner.app import runs, tail

    pieces: list[bytes] = []
    act = threading.Thread(
        target=lambda: tail.tail(
            worker.ctx, runs.RunRef(run, "far"), 0, 0, None, True, pieces.append
        )
    )
    act.start()
    act.join(60)
    assert not act.is_alive() and link.received
    return b"".join(pieces)


def test_a_restarted_run_keeps_both_of_its_outputs(shared_worker: LocalWorker) -> None:
    code = "import os, sys; print('attempt', os.environ['RUNNER_ATTEMPT']); sys.exit(1)"
    run = shared_worker.python(code, words=("restarts=1",))
    status, out, err = Tail(shared_worker, run).end()
    assert (status, out) == (0, b"attempt 1\nattempt 2\n")
    assert err.startswith(f"{run}  FAILED")


def test_stdout_and_stderr_come_in_their_order(shared_worker: LocalWorker) -> None:
    code = "for i in 1 2 3; do echo o$i; echo e$i >&2; done"
    run = shared_worker.submit("bash", "-c", code)
    assert Tail(shared_worker, run).end()[:2] == (0, b"o1\ne1\no2\ne2\no3\ne3\n")
