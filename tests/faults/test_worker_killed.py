"""What befalls a `local` worker beside the cells: shutdowns, hidden processes, a second worker."""

from __future__ import annotations

import os
import signal
import subprocess

import processes
import pytest
import supervisor
from paths import Workspace

from tests.faults import cells, phases
from tests.faults.inflict import kill_all
from tests.helpers.wait import stays, wait_for
from tests.helpers.worlds import World


def end_supervisor(world: World) -> None:
    """What a shutdown of the machine, or `docker stop`, does first."""
    pid = world.supervisor
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not processes.living([pid]), 15, "the end of supervisord")


def test_a_shutdown_saves_runs_and_the_next_contact_takes_them_up(local_world: World) -> None:
    held = phases.reach(local_world, cells.RUNNING, 1)
    end_supervisor(local_world)
    assert local_world.machinery() == {}
    assert held.run.state == "queued"
    assert local_world.log(held.run.run).endswith(b"left 7\n")
    held.release()
    assert local_world.status(held.run.run).status.outcome is None
    held.run.until_ended(30)
    traces = held.run.traces()
    assert (traces.outcome, traces.causes) == ("done", ["shutdown", None])
    assert (traces.steps_repeated, traces.problems) == (0, [])


def test_a_shutdown_just_after_the_dispatcher_was_killed_loses_nothing(local_world: World) -> None:
    held = phases.reach(local_world, cells.RUNNING, 1, "save_s=2")
    pid = local_world.supervisor
    os.kill(local_world.dispatcher, signal.SIGKILL)
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not processes.living([pid]), 15, "the end of supervisord")
    local_world.status(held.run.run)
    wait_for(local_world.is_one_worker, 15, "a worker")
    held.release()
    held.run.until_ended(30)
    traces = held.run.traces()
    assert traces.outcome == "done" and traces.problems == []
    assert traces.causes[:-1] == ["shutdown"] * (len(traces.causes) - 1)


def test_a_cancelled_run_stays_cancelled_whatever_is_restarted(local_world: World) -> None:
    held = phases.reach(local_world, cells.STOPPING, 1)
    held.release()
    held.run.until_ended(20)
    assert held.asking is not None
    held.asking.join(20)
    kill_all([local_world.supervisor, local_world.dispatcher])
    assert local_world.status(held.run.run).status.outcome == "cancelled"
    local_world.wait(local_world.submit("true"))
    wait_for(local_world.is_one_worker, 15, "a worker")
    stays(lambda: local_world.state(held.run.run)["outcome"] == "cancelled", 1, "its outcome")
    assert held.run.traces().starts == 1


def test_a_killed_launcher_leaves_none_of_the_processes_that_hide(local_world: World) -> None:
    code = """
import os, signal, subprocess, time
if os.environ["RUNNER_ATTEMPT"] == "1":
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); "
    deaf += "print('up', flush=True); time.sleep(600)"
    subprocess.Popen(["env", "-i", "setsid", "/usr/bin/python3", "-c", deaf], close_fds=True)
    print("begun", flush=True); time.sleep(600)
"""
    run = local_world.python(code, words=("grace=1s",))
    local_world.until_logged(run, "up")
    local_world.until_logged(run, "begun")
    before = local_world.members(run)
    local_world.kill(local_world.launcher(run))
    assert local_world.wait(run).status.outcome == "done"
    assert len(before) == 2
    assert processes.living(before) == set()


@pytest.mark.slow
def test_a_second_supervisord_gives_way(local_world: World) -> None:
    run = local_world.submit("true")
    local_world.wait(run)
    first = (local_world.supervisor, local_world.dispatcher)
    words = local_world.machinery()[local_world.dispatcher].split()
    bundle = words[words.index("dispatcher") - 1]
    code = (
        f"import sys; sys.path.insert(0, {bundle!r})\n"
        "import supervisor; from paths import Workspace\n"
        f"supervisor.start_detached(Workspace({str(local_world.workspace)!r}), {words[0]!r})"
    )
    subprocess.run([words[0], "-I", "-S", "-c", code], check=True)
    assert supervisor.is_up(Workspace(str(local_world.workspace)))
    wait_for(lambda: len(local_world.machinery()) > 2, 10, "a second supervisord")
    wait_for(local_world.is_one_worker, 25, "one supervisord and one dispatcher")
    assert (local_world.supervisor, local_world.dispatcher) == first
    stays(local_world.is_one_worker, 1, "one worker")
