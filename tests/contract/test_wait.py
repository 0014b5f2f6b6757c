"""Waiting: through silence of the host, no longer than allowed, and never for what is gone."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from runner import wire
from runner.app import runs, wait
from runner.app.context import Context
from runner.errors import NotFound, RunnerError, TimedOut, WorkerError
from runner.model import Project
from tests.helpers.hostile_worker import Frame, hostile_host
from tests.helpers.link import make_link
from tests.helpers.local_worker import LocalWorker, Notes

LINKED = 'runtime = "docker"\nssh = "local"\n'


def test_runs_come_in_the_order_asked_for_once_all_have_ended(shared_worker: LocalWorker) -> None:
    ids = [
        shared_worker.python("import time; time.sleep(0.3)"),
        shared_worker.python("raise SystemExit(2)"),
        shared_worker.python("pass"),
    ]
    order = [ids[2], ids[0], ids[1]]
    found = wait.wait(shared_worker.ctx, [shared_worker.ref(run) for run in order], 30)
    assert [run.id for run in found] == order
    assert [run.status.outcome for run in found] == ["done", "done", "failed"]
    record = shared_worker.ctx.store.record(ids[1])
    assert record is not None and record.run["outcome"] == "failed"


def test_time_that_passed_is_status_7_and_the_run_goes_on(shared_worker: LocalWorker) -> None:
    run = shared_worker.python("import time; time.sleep(600)")
    began = time.monotonic()
    with pytest.raises(TimedOut, match=rf"{run}: not ended after 0\.5 s") as caught:
        shared_worker.wait(run, 0.5)
    assert caught.value.status == 7
    assert time.monotonic() - began < 5
    assert shared_worker.status(run).status.state in ("queued", "starting", "running")
    shared_worker.cancel(run, now=True)


def test_host_that_does_not_answer_is_waited_through(
    shared_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_worker.file("hosts/far.toml", LINKED)
    gate = tmp_path / "gate"
    run = shared_worker.python(
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    )
    link = make_link(tmp_path / "link", monkeypatch.setenv)
    monkeypatch.setattr(wait, "RETRY_WAITS_S", (0.1,))
    link.take_down()
    found: list[Any] = []
    ref = runs.RunRef(run, "far")
    thread = threading.Thread(target=lambda: found.extend(wait.wait(shared_worker.ctx, [ref], 30)))
    thread.start()
    gate.touch()
    shared_worker.wait(run)
    assert not found
    link.bring_up()
    thread.join(20)
    assert [each.status.outcome for each in found] == ["done"]


def test_run_that_is_not_there(shared_worker: LocalWorker) -> None:
    with pytest.raises(NotFound, match="no run nope here"):
        shared_worker.wait("nope", 20)


def test_run_that_goes_away_while_it_is_waited_for(shared_worker: LocalWorker) -> None:
    run = shared_worker.python("import time; time.sleep(600)")
    shared_worker.until(run, "running")
    errors: list[RunnerError] = []

    def act() -> None:
        try:
            shared_worker.wait(run, 20)
        except RunnerError as error:
            errors.append(error)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join(0.5)
    shared_worker.cancel(run, now=True)
    shutil.rmtree(shared_worker.run_folder(run))
    thread.join(20)
    assert not thread.is_alive()
    # it may have been seen to end just before
    assert [type(error) for error in errors] in ([NotFound], [])


@pytest.mark.parametrize(
    ("frames", "kind", "says"),
    [
        ([(wire.REP, {})], NotFound, "no run a-1 there any more"),
        ([(wire.EVENT, {"run": 3})], WorkerError, "cannot be read"),
        ([(wire.EVENT, {"run": {"id": "./../x", "state": "ended"}})], WorkerError, "be read"),
        ([(wire.ERR, {"code": "bug", "text": "oh"})], WorkerError, "oh"),
    ],
)
def test_wrong_answers_end_the_wait(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    frames: list[Frame],
    kind: type[RunnerError],
    says: str,
) -> None:
    host = hostile_host(tmp_path, monkeypatch.setenv, {"wait": frames})
    ctx = Context(Project(tmp_path, "p", "p"), {"bad": host}, Notes())
    with pytest.raises(kind, match=says):
        wait.wait(ctx, [runs.RunRef("a-1", "bad")], 10)


def test_records_that_cannot_be_written_stop_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [(wire.EVENT, {"run": {"id": "a-1", "state": "ended"}}), (wire.REP, {})]
    host = hostile_host(tmp_path, monkeypatch.setenv, {"wait": frames})
    (tmp_path / ".runner").write_text("")
    ctx = Context(Project(tmp_path, "p", "p"), {"bad": host}, Notes())
    (found,) = wait.wait(ctx, [runs.RunRef("a-1", "bad")], 10)
    assert found.status.state == "ended"
