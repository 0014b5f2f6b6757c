"""Drain: what runs goes on, nothing new starts, and a restart changes nothing about it."""

from __future__ import annotations

import json

import pytest

from runner.app import cancel, drain
from runner.cli import main
from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import stays, wait_for

Capture = pytest.CaptureFixture[str]
UNTIL_TOLD = "import os, time\nwhile not os.path.exists(os.environ['GO']): time.sleep(0.02)"


def test_a_drained_host_starts_nothing_new_until_undrained(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(local_worker.project)
    go = local_worker.root / "go"
    live = local_worker.python(UNTIL_TOLD, words=(f"env.GO={go}",))
    local_worker.until(live, "running")
    assert main(["drain", "host=local"]) == 0
    assert capsys.readouterr().out == "local drained: 1 run goes on, 0 wait\n"
    queued = local_worker.submit("true")
    assert main(["drain", "host=local", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    told = {"format": 1, "host": "local", "drained": True, "live": 1, "waiting": 1}
    assert body == told
    reason = wait_for(lambda: local_worker.status(queued).status.reason, 5, "a reason")
    assert "drained" in reason
    go.touch()
    assert local_worker.wait(live).status.outcome == "done"
    # the word outlives the machinery
    local_worker.kill(local_worker.supervisor, local_worker.dispatcher)
    other = local_worker.submit("true")
    waiting = lambda: {local_worker.state(run).get("state") for run in (queued, other)}  # noqa: E731
    stays(lambda: waiting() <= {"queued", None}, 1.5, "both queued")
    assert main(["undrain", "host=local"]) == 0
    assert capsys.readouterr().out == "local takes runs up again: 0 runs go on, 2 wait\n"
    assert {local_worker.wait(run).status.outcome for run in (queued, other)} == {"done"}


def test_what_is_cancelled_while_it_waits_on_a_drained_host_never_starts(
    local_worker: LocalWorker,
) -> None:
    drain.drain(local_worker.ctx, "local", True)
    marker = local_worker.root / "started"
    run = local_worker.submit("touch", str(marker))
    (report,), _ = cancel.cancel_all(local_worker.ctx)
    assert (report.run, report.outcome) == (run, "cancelled")
    drain.drain(local_worker.ctx, "local", False)
    assert local_worker.wait(local_worker.submit("true")).status.outcome == "done"
    assert local_worker.state(run)["outcome"] == "cancelled"
    assert local_worker.state(run)["attempt"] == 0
    assert not marker.exists()


def test_drain_of_a_host_that_is_none_or_silent(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(local_worker.project)
    local_worker.file("hosts/gone.toml", 'ssh = "runner-no-such-host.invalid"\n')
    assert main(["drain", "host=nope"]) == 6
    assert main(["drain", "host=gone"]) == 3
    assert capsys.readouterr().out == ""
