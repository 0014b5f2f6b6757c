"""supervisord and the dispatcher below it: started once, gone when idle, back when needed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import processes
import pytest
import records

from runner import content
from runner.app import runs
from runner.errors import ProvisionError
from tests.helpers.bundles import unpack_bundle
from tests.helpers.local_worker import LocalWorker, read
from tests.helpers.wait import stays, wait_for


def supervisors(worker: LocalWorker) -> list[int]:
    found = worker.machinery()
    return [pid for pid, words in found.items() if "/supervisord.py" in words]


def test_many_clients_at_once_start_one_worker(local_worker: LocalWorker) -> None:
    ids: list[str] = []
    clients = [
        threading.Thread(target=lambda: ids.append(local_worker.submit("true"))) for _ in range(4)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join(60)
    assert len(set(ids)) == 4
    assert len(supervisors(local_worker)) == 1
    for run in ids:
        assert local_worker.wait(run).status.outcome == "done"
    stays(lambda: len(supervisors(local_worker)) == 1, 0.5, "one supervisord")


def test_looking_starts_nothing_where_nothing_waits(local_worker: LocalWorker) -> None:
    assert runs.list_runs(local_worker.ctx).runs == ()
    assert local_worker.machinery() == {}


def test_an_idle_worker_ends_and_the_next_submit_starts_another(
    local_worker: LocalWorker,
) -> None:
    local_worker.set_env("RUNNER_IDLE_END_S", "0.2")
    run = local_worker.submit("true")
    local_worker.wait(run)
    wait_for(lambda: not local_worker.machinery(), 15, "the end of the idle worker")
    assert local_worker.status(run).status.outcome == "done"
    assert local_worker.machinery() == {}
    again = local_worker.submit("true")
    assert local_worker.wait(again).status.outcome == "done"


def test_a_worker_with_a_run_is_not_idle(local_worker: LocalWorker) -> None:
    local_worker.set_env("RUNNER_IDLE_END_S", "0.2")
    local_worker.host(slots=1)
    gate = local_worker.root / "gate"
    code = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    run = local_worker.python(code)
    local_worker.until(run, "running")
    dispatcher = local_worker.dispatcher
    stays(lambda: local_worker.dispatcher == dispatcher, 2.5, "the dispatcher")
    gate.touch()
    assert local_worker.wait(run).status.outcome == "done"


def submit_around_the_idle_end(worker: LocalWorker, tries: int) -> None:
    worker.set_env("RUNNER_IDLE_END_S", "0.01")
    draw = random.Random(1)
    for _ in range(tries):
        first = worker.submit("true")
        worker.until(first, "ended")
        # the dispatcher looks whether it is idle once a second
        time.sleep(draw.uniform(0.7, 1.15))
        second = worker.submit("true")
        worker.until(second, "ended", 15)


def test_no_run_is_lost_when_a_submit_meets_the_idle_end(local_worker: LocalWorker) -> None:
    submit_around_the_idle_end(local_worker, 1)


@pytest.mark.slow
def test_no_run_is_lost_when_many_submits_meet_the_idle_end(local_worker: LocalWorker) -> None:
    submit_around_the_idle_end(local_worker, 40)


def test_a_run_that_nobody_told_of_is_found(local_worker: LocalWorker) -> None:
    run = local_worker.submit("true")
    local_worker.wait(run)
    pid = local_worker.dispatcher
    # a client that is killed between making the run and saying so leaves just this
    os.kill(pid, signal.SIGSTOP)
    untold = local_worker.submit("true")
    (local_worker.workspace / ".runner/inbox" / untold).unlink()
    fifo = os.open(local_worker.workspace / ".runner/wake", os.O_RDONLY | os.O_NONBLOCK)
    os.read(fifo, 100)
    os.close(fifo)
    os.kill(pid, signal.SIGCONT)
    local_worker.until(untold, "ended", 10)


def test_a_worker_that_lives_takes_up_what_it_is_to_be(local_worker: LocalWorker) -> None:
    gate = local_worker.root / "gate"
    wait = ("sh", "-c", f"until test -e {gate}; do sleep 0.02; done")
    local_worker.host(slots=1)
    first, second = (local_worker.submit(*wait) for _ in range(2))
    local_worker.until(first, "running")
    config = local_worker.workspace / ".runner/worker.json"
    before, pid = read(config), local_worker.dispatcher
    local_worker.host(slots=3, disk_reserve="1k", gpus="none")
    assert local_worker.status(second).status.state == "queued"
    assert read(config) == before
    third = local_worker.submit(*wait)
    for run in (second, third):
        local_worker.until(run, "running", 5)
    after = read(config)
    assert after == dict(before, slots=3, disk_reserve=after["disk_reserve"], gpus="none")
    assert after["disk_reserve"] > 0
    assert local_worker.dispatcher == pid
    gate.touch()
    for run in (first, second, third):
        assert local_worker.wait(run).status.outcome == "done"


@pytest.mark.slow
def test_a_worker_that_cannot_come_up_says_where_to_look(local_worker: LocalWorker) -> None:
    (local_worker.workspace / ".runner").mkdir(parents=True)
    (local_worker.workspace / ".runner/dispatcher.log").mkdir()
    with pytest.raises(ProvisionError, match="did not come up|does not stay up"):
        local_worker.submit("true")


def test_in_a_container_runs_outlive_supervisord_and_are_saved_at_its_stop(
    local_worker: LocalWorker, tmp_path: Path
) -> None:
    """The container's first program, here without a container."""
    config = tmp_path / "worker.json"
    records.write(str(config), {"format": 1, "worker": "w-1", "runtime": "docker", "slots": 1})
    keeper = start_keeper(local_worker, config)
    try:
        wait_for(lambda: local_worker.dispatcher, 20, "a dispatcher")
        local_worker.set_env("RUNNER_WORKER_CONFIG", str(config))
        code = """
import os, signal, sys, time
def save(*_):
    print("TERM", flush=True); time.sleep(2); print("saved", flush=True); sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("begun", flush=True)
while True: time.sleep(0.05)
"""
        run = local_worker.python(code, words=("grace=10s",))
        local_worker.until_logged(run, "begun")
        first = local_worker.dispatcher
        local_worker.kill(local_worker.supervisor)
        wait_for(lambda: local_worker.dispatcher not in (0, first), 20, "another dispatcher")
        assert local_worker.state(run)["attempt"] == 1
        # the worst moment to be stopped at: nobody below supervisord knows of the run
        os.kill(local_worker.dispatcher, signal.SIGKILL)
        keeper.terminate()
        assert keeper.wait(20) == 0
        assert local_worker.log(run) == b"begun\nTERM\nsaved\n"
        assert local_worker.causes(run) == ["shutdown"]
        assert local_worker.machinery() == {}
        assert processes.living([local_worker.launcher(run)]) == set()
    finally:
        keeper.kill()
        keeper.wait()


def start_keeper(worker: LocalWorker, config: Path) -> subprocess.Popen[bytes]:
    bundle = unpack_bundle(worker.root / "bundle")
    env = dict(
        os.environ,
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        RUNNER_WORKER_CONFIG=str(config),
    )
    argv = [sys.executable, "-I", "-S", str(bundle), "supervise"]
    return subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_the_log_of_a_worker_holds_no_trace_of_a_crash(local_worker: LocalWorker) -> None:
    run = local_worker.submit("true")
    local_worker.wait(run)
    log = (local_worker.workspace / ".runner/dispatcher.log").read_text()
    assert "Traceback" not in log
    assert read(local_worker.workspace / ".runner/worker.json")["runtime"] == "local"


@pytest.mark.parametrize("held", [True, False])
def test_a_term_to_a_program_that_was_only_just_forked_is_not_lost(held: bool) -> None:
    """`held` False shows what would happen: the child runs supervisord's handler, and lives on."""
    code = f"""
import os, runpy, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: None)
os.register_at_fork(after_in_child=lambda: time.sleep(0.2))
module = runpy.run_path(sys.argv[1])
{"module['hold_over_forks']()" if held else ""}
child = os.fork()
if not child:
    os.execv("/bin/sleep", ["sleep", "2"])
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    script = content.worker_folder() / "supervisord.py"
    done = subprocess.run(
        [sys.executable, "-c", code, str(script)], capture_output=True, text=True, timeout=30
    )
    assert done.stdout.strip() == ("-15" if held else "0"), done.stderr
