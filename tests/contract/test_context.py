"""A command's surroundings: its project, which worker a host answers as, what was seen kept."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from runner.app import context, runs, space, status, submit
from runner.cli import main
from runner.errors import NotFound, ProvisionError, SpecError, Unreachable, WorkerError
from runner.spec import parse_submit
from tests.helpers.local_worker import LocalWorker, Notes
from tests.helpers.many_hosts import ManyHosts, many_here


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


def test_what_a_worker_tells_is_remembered(local_worker: LocalWorker) -> None:
    ctx = local_worker.ctx
    run = local_worker.submit("true")
    local_worker.wait(run)
    with ctx.connect(ctx.host("local")) as worker:
        _, rows = worker.call("runs", ids=[run])
        found = context.seen_one(ctx, worker, run, rows)
        assert context.seen_one(ctx, worker, run, []) is None
        with pytest.raises(WorkerError, match="answered for another run"):
            context.seen_one(ctx, worker, "cmd-other", rows)
    assert found is not None
    assert (found.contact.state, found.pulled) == ("ok", False)
    before = context.last_seen(ctx, run, Unreachable("gone"))
    assert before is not None
    assert before.status == found.status
    assert (before.contact.state, before.contact.error) == ("unreachable", "gone")
    there = context.last_seen(ctx, run, ProvisionError("its container is gone"))
    assert there is not None and there.contact.state == "no-worker"
    assert context.last_seen(ctx, "cmd-nope") is None


def test_records_that_cannot_be_written_stop_no_command(local_worker: LocalWorker) -> None:
    """As on a disk that is full: who looks, or cancels, is not to wait until it is not."""
    ctx = local_worker.ctx
    run = local_worker.submit("true")
    records = local_worker.project / ".runner/runs"
    for path in records.iterdir():
        path.unlink()
    (records / f"{run}.json").mkdir()  # no file can be renamed to it
    with ctx.connect(ctx.host("local")) as worker:
        _, rows = worker.call("runs", ids=[run])
        found = context.seen_one(ctx, worker, run, rows)
    assert found is not None and found.status.id == run


def test_status_that_cannot_be_read_names_its_host() -> None:
    for body in (None, [], {"id": "a-1"}, {"id": "a-1", "state": 3}):
        with pytest.raises(WorkerError, match="gpu1: the worker's answer cannot be read"):
            context.read_status(body, "gpu1")


# which worker a host answers as


@pytest.fixture
def two(local_worker: LocalWorker) -> ManyHosts:
    """Two hosts with a run each."""
    found = many_here(local_worker.project, local_worker.root / "many", 2, local_worker.set_env)
    for name in found.names:
        found.put_run(name, f"cmd-{name}", "ended")
    return found


def test_a_host_that_answers_as_another_worker_is_told_once_before_anything_is_done(
    local_worker: LocalWorker, two: ManyHosts
) -> None:
    first = runs.list_runs(local_worker.ctx)
    assert local_worker.report.notes == []
    told = {contact.host: contact for contact in first.hosts}
    assert (told["h01"].worker, told["h01"].replaced) == ("w-000000000h01", False)
    two.without_worker("h01")
    two.put_worker("h01", "w-new")
    ref = runs.RunRef("cmd-h01", "h01")
    with pytest.raises(NotFound) as caught:
        status.status(local_worker.ctx, ref)
    (note,) = local_worker.report.notes
    assert note.startswith("h01: answers as another worker (w-new; it was w-000000000h01 since ")
    assert note.endswith("runs of before are not there")
    assert caught.value.message == "h01: no run cmd-h01 there any more"
    assert "h01 answers as another worker since" in caught.value.advice[0]
    # once: from then on it is the known one
    again = runs.list_runs(local_worker.ctx)
    assert local_worker.report.notes == [note]
    assert [contact.replaced for contact in again.hosts] == [False] * 3
    known = local_worker.ctx.store.known_worker("h01")
    assert known is not None and known.before == ("w-000000000h01",)


def test_what_was_on_the_worker_of_before_is_explained(
    local_worker: LocalWorker,
    two: ManyHosts,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.list_runs(local_worker.ctx)
    two.without_worker("h01")
    two.put_worker("h01", "w-new")
    monkeypatch.chdir(local_worker.project)
    for argv in (["cancel"], ["resume"], ["stack"], ["why"], ["pull"], ["status"]):
        assert main([*argv, "cmd-h01"]) == 6, argv
        said = capsys.readouterr().err
        assert ("h01: answers as another worker (w-new;" in said) == (argv == ["cancel"]), said
        assert "cmd-h01" in said
        assert "h01 answers as another worker since" in said, argv
    # no other run of the command suffers
    assert main(["cancel", "cmd-h01", "cmd-h02"]) == 6
    shown = capsys.readouterr()
    assert shown.out.split() == ["cmd-h02", "DONE", "had", "ended", "before"]
    assert main(["ps", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert {row["name"]: row["contact"]["worker"] for row in body["hosts"]} == {
        "h01": "w-new",
        "h02": "w-000000000h02",
        "local": None,
    }


def test_an_intent_that_the_worker_of_before_may_have_accepted_is_told(
    local_worker: LocalWorker,
) -> None:
    local_worker.wait(local_worker.submit("true"))
    ctx = local_worker.ctx
    known = ctx.store.known_worker("local")
    config = local_worker.workspace / ".runner/worker.json"
    assert known is not None and known.worker in config.read_text()
    request = parse_submit([], ["echo", "x"])

    def die(ids: list[str]) -> None:
        raise OSError("as if killed while the id was printed")

    with pytest.raises(OSError, match="as if killed"):
        submit.submit(ctx, request, die)
    (path,) = (local_worker.project / ".runner/intents").glob("[!.]*.json")
    body = json.loads(path.read_bytes())
    path.unlink()
    ctx.store.write_intent({**body, "at": time.time() - 60}).leave_open()
    ctx.store.put_worker("local", "w-before", time.time() - 30)
    submit.submit(local_worker.ctx, request, lambda ids: None)
    warned = [note for note in local_worker.report.notes if "may have been accepted" in note]
    assert len(warned) == 1, local_worker.report.notes
    assert "the worker of then (w-before), which answers here no more" in warned[0]


def test_two_names_of_one_worker_show_its_runs_once(
    local_worker: LocalWorker, two: ManyHosts
) -> None:
    text = (local_worker.project / "hosts/h02.toml").read_text()
    local_worker.file("hosts/h02b.toml", text)
    found = runs.list_runs(local_worker.ctx)
    assert [(run.id, run.host) for run in found.runs] == [("cmd-h01", "h01"), ("cmd-h02", "h02")]
    assert [contact.host for contact in found.hosts] == ["h01", "h02", "h02b", "local"]
    assert local_worker.report.notes == ["h02b leads to the same worker as h02: listed once"]
    assert [row.run for row in space.usage(local_worker.ctx).runs] == ["cmd-h01", "cmd-h02"]
    record = local_worker.ctx.store.record("cmd-h02")
    assert record is not None and record.host == "h02"


def test_a_copy_of_a_machine_hides_nothing(local_worker: LocalWorker, two: ManyHosts) -> None:
    """Its workspace was cloned, and so was the worker's id; its runs are others since."""
    two.put_worker("h02", "w-000000000h01")
    found = runs.list_runs(local_worker.ctx)
    assert [(run.id, run.host) for run in found.runs] == [("cmd-h01", "h01"), ("cmd-h02", "h02")]
    assert local_worker.report.notes == []
