"""A command's surroundings: its project, many hosts asked at once, and what was seen kept."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from runner.app import context
from runner.endpoint import Worker
from runner.errors import NotFound, SpecError, Unreachable, WorkerError
from runner.model import Host
from tests.helpers.local_worker import LocalWorker, Notes


def test_project_is_found_from_within(local_worker: LocalWorker) -> None:
    inside = local_worker.project / "a" / "b"
    inside.mkdir(parents=True)
    found = context.open_context(Notes(), inside)
    assert found.project.root == local_worker.project
    assert "local" in found.hosts
    assert "torch-2.6" in found.images


def test_outside_of_every_project(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no project"):
        context.open_context(Notes(), tmp_path)


def test_host_that_is_nearly_named(local_worker: LocalWorker) -> None:
    with pytest.raises(NotFound, match="lokal") as caught:
        local_worker.ctx.host("lokal")
    assert "local" in " ".join((caught.value.message, *caught.value.advice))


def test_hosts_are_asked_at_the_same_time_and_answer_in_order() -> None:
    together = threading.Barrier(3, timeout=20)

    def act(host: Host) -> str:
        together.wait()
        if host.name == "b":
            raise Unreachable("b: silent")
        return host.name.upper()

    answers = context.on_hosts([Host("a"), Host("b"), Host("c")], act)
    assert [(host.name, found) for host, found, _ in answers] == [
        ("a", "A"),
        ("b", None),
        ("c", "C"),
    ]
    assert [str(error) for _, _, error in answers] == ["None", "b: silent", "None"]
    assert context.on_hosts([], act) == []


def test_what_a_worker_tells_is_remembered(local_worker: LocalWorker) -> None:
    ctx = local_worker.ctx
    run = local_worker.submit("true")
    local_worker.wait(run)
    with Worker(ctx.host("local")) as worker:
        _, rows = worker.call("runs", ids=[run])
        found = context.seen_one(ctx, worker, run, rows)
        assert context.seen_one(ctx, worker, run, []) is None
        with pytest.raises(WorkerError, match="answered for another run"):
            context.seen_one(ctx, worker, "cmd-other", rows)
    assert found is not None
    assert (found.contact.state, found.pulled) == ("ok", False)
    before = context.last_seen(ctx, run, "gone")
    assert before is not None
    assert before.status == found.status
    assert (before.contact.state, before.contact.error) == ("unreachable", "gone")
    assert context.last_seen(ctx, "cmd-nope") is None


def test_status_that_cannot_be_read_names_its_host() -> None:
    for body in (None, [], {"id": "a-1"}, {"id": "a-1", "state": 3}):
        with pytest.raises(WorkerError, match="gpu1: the worker's answer cannot be read"):
            context.read_status(body, "gpu1")
