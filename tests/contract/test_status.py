"""One run in full, from its host or as last seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import wire
from runner.app import runs, status
from runner.app.context import Context
from runner.errors import HostError, NotFound, WorkerError
from runner.model import Project
from tests.helpers.hostile_worker import Frame, hostile_host
from tests.helpers.local_worker import LocalWorker, Notes

SAVES = """
import os
os.makedirs(os.environ["RUNNER_CHECKPOINTS"] + "/step-7")
open(os.environ["RUNNER_CHECKPOINTS"] + "/step-7/model.pt", "wb").write(b"x" * 123)
raise SystemExit(4)
"""


def test_everything_of_a_run(shared_worker: LocalWorker) -> None:
    run = shared_worker.python(SAVES, words=("name=n", "tags=a,b"))
    shared_worker.wait(run)
    found = shared_worker.status(run)
    assert found.contact.state == "ok"
    assert (found.status.name, found.status.tags) == ("n", ["a", "b"])
    assert (found.status.state, found.status.outcome) == ("ended", "failed")
    assert found.status.cause is not None and found.status.cause["code"] == 4
    (point,) = found.status.checkpoints
    assert (point["name"], point["step"], point["bytes"]) == ("step-7", 7, 123)
    assert [attempt["attempt"] for attempt in found.status.attempts] == [1]
    assert not found.pulled
    record = shared_worker.ctx.store.record(run)
    assert record is not None and record.run["outcome"] == "failed"


def test_run_that_is_gone_is_not_found(shared_worker: LocalWorker) -> None:
    with pytest.raises(NotFound, match="no run nope there any more"):
        shared_worker.status("nope")


def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *frames: Frame) -> Context:
    script = {} if frames else {"dies": True}
    host = hostile_host(tmp_path, monkeypatch.setenv, {"runs": list(frames)}, **script)
    return Context(Project(tmp_path, "p", "p"), {"bad": host}, Notes())


def test_silent_host_gives_what_was_last_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(tmp_path, monkeypatch)
    ref = runs.RunRef("a-1", "bad")
    with pytest.raises(HostError):
        status.status(ctx, ref)
    ctx.store.put("bad", {"id": "a-1", "state": "running"}, 50.0)
    found = status.status(ctx, ref)
    assert found.status.state == "running"
    assert (found.contact.state, found.contact.at) == ("unreachable", 50.0)
    assert found.contact.error is not None and "link was lost" in found.contact.error


@pytest.mark.parametrize("row", [{"id": "b-2", "state": "ended"}, {"id": "a-1"}, 3, None, []])
def test_answer_about_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: object
) -> None:
    ctx = context(tmp_path, monkeypatch, (wire.DATA, [row]), (wire.REP, {}))
    with pytest.raises(WorkerError):
        status.status(ctx, runs.RunRef("a-1", "bad"))
    assert ctx.store.record("a-1") is None
