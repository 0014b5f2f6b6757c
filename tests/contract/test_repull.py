"""Pulling while a run goes on: what it makes comes as it is made, through lost links to the end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from runner.app import pull as pull_use
from runner.app import repull
from runner.app.reports import PullReport
from runner.errors import HostError, Unreachable
from tests.helpers.link import Link, make_link
from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import wait_for

LINKED = 'runtime = "docker"\nssh = "local"\n'
TRAINS = """
import os, time
c = os.environ["RUNNER_CHECKPOINTS"]
for step in range(1, 4):
    print("step", step, flush=True)
    os.makedirs(f"{c}/step-{step}.tmp")
    open(f"{c}/step-{step}.tmp/model.pt", "wb").write(bytes([step]) * 300_000)
    os.rename(f"{c}/step-{step}.tmp", f"{c}/step-{step}")
    while not os.path.exists(f"go-{step}"):
        time.sleep(0.02)
"""


@pytest.fixture
def link(shared_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Link:
    """The worker once more as host `far`, behind a link."""
    shared_worker.file("hosts/far.toml", LINKED)
    return make_link(tmp_path / "link", monkeypatch.setenv)


class Watch:
    """A watch of one run in a thread of its own."""

    def __init__(self, worker: LocalWorker, run: str, host: str = "local", what: str = "") -> None:
        self.rounds: list[PullReport] = []
        self.reports: list[PullReport] = []
        self.error: BaseException | None = None
        self.ctx = worker.ctx
        ref = pull_use.RunRef(run, host)
        wish = pull_use.Wish((what,) if what else ())
        arguments = (self.ctx, [ref], None, wish, 0.1, self.rounds.append)
        self._thread = threading.Thread(target=self._run, args=arguments, daemon=True)
        self._thread.start()

    def _run(self, *arguments: object) -> None:
        try:
            self.reports = repull.watch(*arguments)  # type: ignore[arg-type]
        except BaseException as error:
            self.error = error

    def join(self) -> PullReport:
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.reports[0]


def go_on(worker: LocalWorker, run: str, step: int) -> None:
    (worker.workspace / "code" / run / f"go-{step}").touch()


def test_what_is_made_comes_while_the_run_goes_on(shared_worker: LocalWorker) -> None:
    run = shared_worker.python(TRAINS)
    watch = Watch(shared_worker, run)
    top = shared_worker.project / "results" / run
    log = top / "logs" / "rank-0.log"
    inodes = set()
    for step in (1, 2, 3):
        wait_for((top / f"checkpoints/step-{step}/model.pt").exists, 20, f"step {step}")
        wait_for(lambda: f"step {step}\n" in log.read_text(), 20, "its line")  # noqa: B023
        inodes.add(log.stat().st_ino)
        assert not shared_worker.status(run).pulled
        go_on(shared_worker, run, step)
    report = watch.join()
    assert len(inodes) == 1, "the log grew where it lies"
    assert log.read_bytes() == b"step 1\nstep 2\nstep 3\n"
    assert shared_worker.status(run).pulled
    assert sum(each.files for each in watch.rounds) == report.files
    assert len(watch.rounds) >= 3
    assert report.bytes >= 900_000


def test_a_folder_that_went_meanwhile_is_made_again(shared_worker: LocalWorker) -> None:
    run = shared_worker.python(TRAINS)
    watch = Watch(shared_worker, run)
    top = shared_worker.project / "results" / run
    wait_for((top / "checkpoints/step-1/model.pt").is_file, 20, "step 1")
    top.rename(top.with_name(f"{run}-away"))
    for step in (1, 2, 3):
        go_on(shared_worker, run, step)
    watch.join()
    for step in (1, 2, 3):
        assert (top / f"checkpoints/step-{step}/model.pt").stat().st_size == 300_000


def test_log_that_is_written_anew_meanwhile_is_right_in_the_end(shared_worker: LocalWorker) -> None:
    run = shared_worker.python(TRAINS)
    there = shared_worker.workspace / "logs" / run / "progress.jsonl"
    here = shared_worker.project / "results" / run / "logs" / "progress.jsonl"
    shared_worker.until_logged(run, "step 1")
    there.write_bytes(b"a" * 200_000)
    watch = Watch(shared_worker, run)
    wait_for(here.exists, 20, "the log")
    with there.open("r+b") as file:  # far before its end, where a window does not reach
        file.write(b"b" * 10)
        file.seek(0, 2)
        file.write(b"more\n")
    wait_for(lambda: here.read_bytes().endswith(b"more\n"), 20, "what was appended")
    for step in (1, 2, 3):
        go_on(shared_worker, run, step)
    watch.join()
    assert here.read_bytes() == there.read_bytes()
    assert shared_worker.status(run).pulled


def test_lost_link_is_gone_on_from(shared_worker: LocalWorker, link: Link) -> None:
    run = shared_worker.python(TRAINS)
    top = shared_worker.project / "results" / run
    shared_worker.until_logged(run, "step 1")
    link.cut_after(400_000)
    watch = Watch(shared_worker, run, "far")
    for step in (1, 2, 3):
        wait_for((top / f"checkpoints/step-{step}/model.pt").exists, 20, f"step {step}")
        go_on(shared_worker, run, step)
    watch.join()
    assert any("nothing missed" in note for note in shared_worker.report.notes)
    assert shared_worker.status(run).pulled


def test_host_that_never_answers_is_not_waited_for(shared_worker: LocalWorker, link: Link) -> None:
    run = shared_worker.python(TRAINS)
    link.take_down()
    with pytest.raises(HostError) as caught:
        Watch(shared_worker, run, "far").join()
    assert isinstance(caught.value, Unreachable)
    for step in (1, 2, 3):
        go_on(shared_worker, run, step)


def test_run_that_ended_long_ago_comes_in_one_look(shared_worker: LocalWorker) -> None:
    run = shared_worker.python("print('said')")
    shared_worker.wait(run)
    began = time.monotonic()
    report = Watch(shared_worker, run).join()
    assert report.files == 1
    assert shared_worker.status(run).pulled
    assert time.monotonic() - began < 20


def test_watching_a_part_alone_does_not_count_as_pulled(shared_worker: LocalWorker) -> None:
    run = shared_worker.python("print('said')")
    shared_worker.wait(run)
    Watch(shared_worker, run, what="logs").join()
    assert not shared_worker.status(run).pulled


def test_pause_follows_what_a_look_costs() -> None:
    assert repull.pause_s([0.01], None) == repull.SHORTEST_S
    assert repull.pause_s([0.2, 0.3], None) == pytest.approx(5)
    assert repull.pause_s([100.0], None) == repull.LONGEST_S
    assert repull.pause_s([100.0], 0.5) == 0.5
