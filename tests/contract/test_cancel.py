"""Cancel proves release: nothing of the run left, whatever its processes do to hide."""

from __future__ import annotations

import threading
import time

import processes
import pytest

from runner.app.results import CancelReport
from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import wait_for

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
