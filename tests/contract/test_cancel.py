"""Cancel proves release: nothing of the run left, whatever its processes do to hide."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import processes
import pytest

from runner.app import cancel as cancel_use
from runner.app import retrying, runs
from runner.app.reports import CancelReport
from runner.cli import main
from tests.helpers.link import Link, make_link
from tests.helpers.local_worker import LocalWorker
from tests.helpers.typed import typed
from tests.helpers.wait import wait_for

ROOT = Path(__file__).parents[2]
NASTY = """
import os, signal, subprocess, sys, time
pids = open(os.environ["PIDS"], "a")
def note(name):
    pids.write("%d %s\\n" % (os.getpid(), name)); pids.flush()
def sleep(name):
    note(name)
    while True: time.sleep(60)
def child(name, deaf=False, setsid=False, double=False, stop=False):
    if os.fork(): return
    if setsid: os.setsid()
    if double and os.fork(): os._exit(0)
    if deaf: signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if stop:
        note(name); os.kill(os.getpid(), signal.SIGSTOP)
    sleep(name)
child("plain")
child("setsid", setsid=True)
child("double fork", setsid=True, double=True)
child("deaf", deaf=True)
child("deaf double fork", deaf=True, setsid=True, double=True)
child("stopped", stop=True)
hidden = "import os, signal, sys, time; signal.signal(15, signal.SIG_IGN); "
hidden += "open(sys.argv[1], 'a').write('%d env -i\\\\n' % os.getpid()); time.sleep(600)"
subprocess.Popen(["env", "-i", "setsid", "/usr/bin/python3", "-c", hidden, os.environ["PIDS"]])
if os.fork() == 0:
    os.setsid()
    while True:
        if os.fork(): os._exit(0)
        time.sleep(0.02)
print("ready", flush=True)
time.sleep(600)
"""
KINDS = 7


def nasty(worker: LocalWorker, grace: str = "1s") -> tuple[str, set[int]]:
    """A run whose processes hide, and the pids of those that stay the same."""
    pids = worker.root / f"pids-{time.monotonic_ns()}"
    run = worker.python(NASTY, words=(f"env.PIDS={pids}", f"grace={grace}"))
    worker.until_logged(run, "ready")
    wait_for(
        lambda: pids.exists() and pids.read_text().count("\n") == KINDS, 10, "all its processes"
    )
    return run, {int(line.split()[0]) for line in pids.read_text().splitlines()}


def test_nothing_is_left_of_a_tree_that_hides(shared_worker: LocalWorker) -> None:
    bystander = shared_worker.python("import time; time.sleep(600)")
    shared_worker.until(bystander, "running")
    run, pids = nasty(shared_worker)
    (report,) = shared_worker.cancel(run)
    assert (report.outcome, report.left) == ("cancelled", ())
    assert processes.living(pids) == set()
    assert shared_worker.members(run) == set()
    # the seven, the job itself, and the hoppers that were seen
    assert report.processes >= KINDS + 1
    (end,) = shared_worker.attempts(run)
    assert end["left"] == []
    assert 3 <= end["killed"] < end["processes"]
    assert 1 <= report.seconds < 6
    assert shared_worker.state(bystander)["state"] == "running"
    shared_worker.cancel(bystander, now=True)


def test_now_kills_at_once(shared_worker: LocalWorker) -> None:
    run, pids = nasty(shared_worker, grace="300s")
    (report,) = shared_worker.cancel(run, now=True)
    assert report.outcome == "cancelled"
    assert processes.living(pids) == set()
    assert shared_worker.members(run) == set()
    assert report.seconds < 5


def test_now_cuts_the_grace_of_a_cancel_under_way_short(shared_worker: LocalWorker) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True)\n"
    code += "while 1: time.sleep(1)"
    run = shared_worker.python(code, words=("grace=300s",))
    shared_worker.until_logged(run, "on")
    reports: list[CancelReport] = []
    asking = threading.Thread(target=lambda: reports.extend(shared_worker.cancel(run)))
    asking.start()
    wait_for(lambda: (shared_worker.run_folder(run) / "cancel").exists(), 10, "the order")
    assert shared_worker.status(run).status.state == "stopping"
    (second,) = shared_worker.cancel(run, now=True)
    asking.join(10)
    assert [report.outcome for report in (*reports, second)] == ["cancelled", "cancelled"]


def test_cancelling_what_has_ended_changes_nothing(shared_worker: LocalWorker) -> None:
    run = shared_worker.submit("true")
    shared_worker.wait(run)
    before = shared_worker.state(run)
    (report,) = shared_worker.cancel(run)
    assert (report.ended_before, report.outcome) == (True, "done")
    assert shared_worker.state(run) == before


def test_a_queued_run_is_cancelled_at_once_and_the_next_moves_up(
    local_worker: LocalWorker,
) -> None:
    local_worker.host(slots=1)
    first = local_worker.python("import time; time.sleep(600)")
    local_worker.until(first, "running")
    second, third = local_worker.submit("true"), local_worker.submit("true")
    assert local_worker.status(third).status.position == 2
    assert local_worker.status(third).status.reason == f"next after {second}"
    (report,) = local_worker.cancel(second)
    assert report.outcome == "cancelled"
    assert local_worker.state(second)["attempt"] == 0
    assert local_worker.status(third).status.position == 1
    local_worker.cancel(first, now=True)
    assert local_worker.wait(third).status.outcome == "done"
    assert not (local_worker.run_folder(second) / "attempts" / "1").exists()


def test_several_runs_are_cancelled_by_one_request(shared_worker: LocalWorker) -> None:
    ids = [shared_worker.python("import time; time.sleep(600)") for _ in range(3)]
    reports = shared_worker.cancel(*ids)
    assert [report.run for report in reports] == ids
    assert {report.outcome for report in reports} == {"cancelled"}
    for run in ids:
        assert shared_worker.members(run) == set()


@pytest.mark.parametrize("moment", range(6))
def test_a_run_cancelled_while_it_starts_is_cancelled(
    shared_worker: LocalWorker, moment: int
) -> None:
    run = shared_worker.python("import time; time.sleep(600)")
    time.sleep(moment * 0.01)  # six points of its start
    (report,) = shared_worker.cancel(run)
    assert report.outcome == "cancelled"
    assert shared_worker.members(run) == set()


def test_an_out_of_reach_host_is_reported_and_its_run_not_called_stopped(
    local_worker: LocalWorker,
) -> None:
    from runner.app import cancel, runs

    local_worker.file(
        "hosts/gone.toml", 'ssh = "runner-no-such-host.invalid"\nruntime = "docker"\n'
    )
    (report,) = cancel.cancel(local_worker.ctx, [runs.RunRef("cmd-abcde", "gone")])
    assert report.error
    assert report.outcome is None


# -- all of them

Capture = pytest.CaptureFixture[str]
SLEEP = "import time; time.sleep(600)"


def test_all_stops_every_run_of_this_project_and_of_no_other(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    local_worker.host(slots=3)
    theirs = local_worker.python(SLEEP)
    local_worker.until(theirs, "running")
    pid = local_worker.launcher(theirs)
    local_worker.file("runner.toml", 'name = "q"\nid = "q-1"\n')
    ended = local_worker.submit("true")
    local_worker.wait(ended)
    live = [local_worker.python(SLEEP) for _ in range(2)]
    for run in live:
        local_worker.until(run, "running")
    queued = local_worker.submit("true")
    monkeypatch.chdir(local_worker.project)
    assert main(["cancel", "--all", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["format"] == 1
    assert {row["run"]: row["outcome"] for row in body["runs"]} == dict.fromkeys(
        [*live, queued], "cancelled"
    )
    assert local_worker.state(queued)["attempt"] == 0
    assert local_worker.state(theirs)["state"] == "running"
    assert local_worker.launcher(theirs) == pid
    assert main(["cancel", "--all"]) == 0
    assert main(["cancel", "host=local", "--now"]) == 0
    assert capsys.readouterr() == ("", "")
    local_worker.cancel(theirs, now=True)


def test_how_many_will_be_stopped_is_said_before(local_worker: LocalWorker) -> None:
    from runner.app import cancel

    for _ in range(2):
        local_worker.until(local_worker.python(SLEEP), "running")
    ctx = local_worker.ctx
    reports, unseen = cancel.cancel_all(ctx, "local", cancel.Order(now=True))
    assert (len(reports), unseen) == (2, [])
    assert "stopping 2 runs of this project on local" in local_worker.report.notes
    assert cancel.cancel_all(ctx) == ([], [])
    assert local_worker.report.notes[-1].startswith("nothing to stop")


def test_all_names_what_could_not_be_stopped(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    run = local_worker.python(SLEEP)
    local_worker.until(run, "running")
    far = local_worker.python(SLEEP)
    local_worker.status(far)
    record = local_worker.project / f".runner/runs/{far}.json"
    body = json.loads(record.read_bytes())
    local_worker.file("hosts/gone.toml", 'ssh = "runner-no-such-host.invalid"\n')
    monkeypatch.chdir(local_worker.project)
    assert main(["cancel", "host=gone"]) == 3
    assert "what runs there was NOT stopped" in capsys.readouterr().err
    # as if it had been seen there last
    lost = {**body, "host": "gone", "run": {**body["run"], "id": "cmd-lost1"}}
    (record.parent / "cmd-lost1.json").write_text(json.dumps(lost))
    assert main(["cancel", "--all"]) == 3
    shown = capsys.readouterr()
    assert "cmd-lost1 was NOT stopped" in shown.err
    assert run in shown.out and far in shown.out
    assert {local_worker.state(each)["outcome"] for each in (run, far)} == {"cancelled"}


def test_a_host_file_that_is_wrong_or_gone_keeps_no_other_run_going(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    run = local_worker.python(SLEEP)
    local_worker.until(run, "running")
    local_worker.status(run)
    record = local_worker.project / f".runner/runs/{run}.json"
    body = json.loads(record.read_bytes())
    for name in ("bad", "gone"):
        lost = {**body, "host": name, "run": {**body["run"], "id": f"cmd-{name}"}}
        (record.parent / f"cmd-{name}.json").write_text(json.dumps(lost))
    local_worker.file("hosts/bad.toml", "ssh = 3\nfoo = 1\n")
    monkeypatch.chdir(local_worker.project)
    assert main(["cancel", "cmd-bad", "cmd-gone", run, "--now"]) == 6
    shown = capsys.readouterr()
    assert shown.out.split()[0] == run
    assert shown.err.splitlines() == [
        "hosts/bad.toml; cmd-bad was NOT stopped",
        "  ssh is 3; it must be a text",
        "  foo is not known here",
        "cmd-gone: it was on gone, which is no host here now; NOT stopped",
        "  all of them: runner host list",
    ]
    assert local_worker.state(run)["outcome"] == "cancelled"
    assert main(["cancel", "--all"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("hosts/bad.toml; what runs there was NOT stopped\n  ssh is 3;")


def test_a_run_that_is_not_there_keeps_no_other_run_going(local_worker: LocalWorker) -> None:
    run = local_worker.submit("sleep", "600")
    said = typed("cancel", "nope", run, "neither")
    assert said.status == 6
    assert local_worker.status(run).status.outcome == "cancelled"
    assert "no run nope" in said.err and "no run neither" in said.err
    assert run in said.text


def test_all_that_was_cancelled_stays_so_after_a_restart(local_worker: LocalWorker) -> None:
    from runner.app import cancel

    local_worker.host(slots=1)
    runs = [local_worker.python(SLEEP) for _ in range(3)]
    local_worker.until(runs[0], "running")
    cancel.cancel_all(local_worker.ctx)
    before = [local_worker.state(run) for run in runs]
    local_worker.kill(local_worker.supervisor, local_worker.dispatcher)
    other = local_worker.submit("true")
    assert local_worker.wait(other).status.outcome == "done"
    assert [local_worker.state(run) for run in runs] == before
    assert {state["outcome"] for state in before} == {"cancelled"}
    assert [state["attempt"] for state in before] == [1, 0, 0]


def test_hundreds_of_queued_runs_are_cancelled_in_a_moment(local_worker: LocalWorker) -> None:
    from runner.app import cancel

    local_worker.host(slots=1)
    first = local_worker.python(SLEEP)
    local_worker.until(first, "running")
    spec = json.loads((local_worker.run_folder(first) / "spec.json").read_bytes())
    ids = [f"cmd-many{number:03d}" for number in range(400)]
    for run in ids:
        _put_queued(local_worker.run_folder(run), {**spec, "id": run})
    wait_for(lambda: all(local_worker.state(run) for run in ids), 60, "all taken up")
    began = time.monotonic()
    reports, _ = cancel.cancel_all(local_worker.ctx, order=cancel.Order(now=True))
    took_s = time.monotonic() - began
    assert len(reports) == 401
    assert {report.outcome for report in reports} == {"cancelled"}
    assert took_s < 40, f"{took_s:.1f} s"  # one by one it would be minutes; now a second or two


def _put_queued(folder: Path, spec: dict[str, object]) -> None:
    """A run as submit makes it; its snapshot is there."""
    temporary = folder.with_name(f".tmp-{folder.name}")
    (temporary / "attempts").mkdir(parents=True)
    (temporary / "spec.json").write_text(json.dumps(spec))
    temporary.rename(folder)


# -- a host that is silent


@pytest.fixture
def far(local_worker: LocalWorker) -> Link:
    """The worker once more as `far`, behind a link, with a run `r` that is live."""
    local_worker.wait(local_worker.submit("true"))
    local_worker.file("hosts/far.toml", 'runtime = "docker"\nssh = "local"\n')
    link = make_link(local_worker.root / "link", local_worker.set_env)
    local_worker.until(local_worker.python(SLEEP, words=("host=far", "name=r")), "running")
    return link


def seen_on_far(worker: LocalWorker) -> runs.RunRef:
    """The run `r`, which this side knows to be on `far`."""
    (ref,) = runs.find(worker.ctx, "name:r")
    record = worker.ctx.store.record(ref.id)
    assert record is not None
    worker.ctx.store.put("far", record.run, record.seen_at)
    return ref


@pytest.mark.parametrize("words", [["name:r"], ["host=far"], ["--all"]])
def test_until_keeps_trying_until_the_host_is_back(
    local_worker: LocalWorker,
    far: Link,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(local_worker.project)
    monkeypatch.setattr(retrying, "ACT_WAITS_S", ())
    monkeypatch.setattr(retrying, "LOOK_WAITS_S", ())
    monkeypatch.setattr(cancel_use, "PAUSES_S", (0.2,))
    ref = seen_on_far(local_worker)
    far.take_down()
    before = far.begun

    def bring_back() -> None:
        wait_for(lambda: far.begun > before + 1, 30, "two tries")
        far.bring_up()

    back = threading.Thread(target=bring_back)
    back.start()
    assert main(["cancel", *words, "--until", "60s", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    (row,) = [row for row in body["runs"] if row["run"] == ref.id]
    assert (row["outcome"], row["error"]) == ("cancelled", None)
    back.join()


@pytest.mark.parametrize("words", [["name:r"], ["host=far"]])
def test_until_ends_with_3_and_says_what_was_not_stopped(
    local_worker: LocalWorker,
    far: Link,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(local_worker.project)
    monkeypatch.setattr(retrying, "LOOK_WAITS_S", ())
    ref = seen_on_far(local_worker)
    monkeypatch.setattr(cancel_use, "PAUSES_S", (0.2,))
    local_worker.file("hosts/far.toml", "ssh = 'runner-no-such-host.invalid'\n")
    began = time.monotonic()
    assert main(["cancel", *words, "--until", "2s"]) == 3
    assert time.monotonic() - began > 1.5
    said = capsys.readouterr().err
    assert f"{ref.id} was NOT stopped" in said
    assert "--until" not in said, "it was tried already"
    assert main(["cancel", *words]) == 3
    said = capsys.readouterr().err
    assert f"{ref.id} was NOT stopped; to keep trying:\n  runner cancel " in said
    assert "--until 1h" in said
    assert local_worker.state(ref.id)["state"] == "running"
    local_worker.cancel(ref.id, now=True)


def test_until_is_a_duration_and_does_not_wait_where_nothing_will_change(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(local_worker.project)
    assert main(["cancel", "x", "--until", "soon"]) == 2
    run = local_worker.submit("true")
    local_worker.wait(run)
    path = local_worker.project / f".runner/runs/{run}.json"
    body = json.loads(path.read_bytes())
    lost = {**body, "run": {**body["run"], "id": "cmd-lost1"}}
    (path.parent / "cmd-lost1.json").write_text(json.dumps(lost))
    began = time.monotonic()
    assert main(["cancel", "cmd-lost1", run, "--until", "1h"]) == 6
    assert time.monotonic() - began < 60
    shown = capsys.readouterr()
    assert "local: no run cmd-lost1 there any more" in shown.err
    assert shown.out.split()[0] == run


def test_ctrl_c_says_what_was_not_stopped(local_worker: LocalWorker, far: Link) -> None:
    ref = seen_on_far(local_worker)
    far.take_down()
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", "cancel", ref.id, "--until", "1h"],
        cwd=local_worker.project,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: far.begun > 2, 30, "two tries")
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1]
    assert process.returncode == 130
    assert said == f"far: interrupted; {ref.id} was NOT stopped\n"
    local_worker.cancel(ref.id, now=True)
