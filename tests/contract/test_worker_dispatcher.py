"""The dispatcher's decisions: order, repeats, ends, and what it does about odd folders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import config
import processes
import pytest
import records
from dispatcher import Dispatcher
from paths import Workspace
from tenure import Tenure

from runner import states
from tests.helpers.local_worker import LocalWorker, read
from tests.helpers.wait import wait_for


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dispatcher]:
    """A dispatcher in this process whose loop does not run: each step is taken by the test."""
    monkeypatch.delenv("RUNNER_WORKER_CONFIG", raising=False)
    workspace = Workspace(str(tmp_path / "ws"))
    workspace.make()
    (tmp_path / "leases").mkdir()
    lock = records.try_lock(workspace.dispatcher_lock)
    assert lock is not None
    known = config.read(workspace)
    hold = Tenure(workspace, lock, os.getppid(), known)
    made = Dispatcher(workspace, str(tmp_path / "leases"), known, hold)
    yield made
    os.close(made.fifo)
    os.close(lock)


def waiting(one: Dispatcher) -> list[str]:
    return [item.run for line in ("gpu", "cpu") for item in one.queue.due(line, time.time() + 100)]


def put_run(one: Dispatcher, run: str, **state: Any) -> Path:
    """A run in the workspace, with an attempt under way when a state is given."""
    folder = Path(one.workspace.run(run).folder)
    folder.mkdir(parents=True)
    spec = {"id": run, "argv": ["true"], "accepted_at": 1.0, "gpus": 0}
    records.write(str(folder / "spec.json"), spec)
    if state:
        body = {"format": 1, "outcome": None, "cause": None, "attempt": 1, "submitted_at": 1.0}
        records.write(
            str(folder / "state.json"), {**body, "started_at": None, "outside": 0, **state}
        )
        (folder / "attempts/1").mkdir(parents=True)
    return folder


def end_attempt(folder: Path, kind: str | None, number: int = 1) -> None:
    cause = None if kind is None else {"kind": kind, "text": kind}
    place = folder / "attempts" / str(number)
    place.mkdir(parents=True, exist_ok=True)
    body = {"cause": cause, "exit": {"code": 0, "signal": None, "rank": 0}, "ended_at": 9.0}
    records.write(str(place / "exit.json"), body)


def test_a_new_run_is_queued(one: Dispatcher) -> None:
    folder = put_run(one, "cmd-1")
    one._look("cmd-1")
    state = read(folder / "state.json")
    assert (state["state"], state["attempt"], state["submitted_at"]) == ("queued", 0, 1.0)
    assert waiting(one) == ["cmd-1"]


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        (None, "done"),
        ("cancelled", "cancelled"),
        *((kind, "failed") for kind in sorted(states.OWN_FAULTS)),
        ("nan", "failed"),
        ("setup", "failed"),
        ("disk-full", "failed"),
    ],
)
def test_how_a_run_ends(one: Dispatcher, kind: str | None, outcome: str) -> None:
    folder = put_run(one, "cmd-1", state="running")
    born = {"started_at": 5.0, "launcher": processes.identity(), "mark": "m"}
    records.write(str(folder / "attempts/1/proc.json"), born)
    end_attempt(folder, kind)
    one._look("cmd-1")
    state = read(folder / "state.json")
    assert (state["state"], state["outcome"]) == ("ended", outcome)
    assert (state["started_at"], state["ended_at"]) == (5.0, 9.0)
    assert (state["cause"] or {}).get("kind") == kind
    assert not len(one.queue)
    assert not one.live
    # an end is final, whatever lies there later
    end_attempt(folder, "shutdown")
    one._look("cmd-1")
    assert read(folder / "state.json") == state


@pytest.mark.parametrize("kind", sorted(states.FROM_OUTSIDE))
def test_a_cause_from_outside_repeats_the_run(one: Dispatcher, kind: str) -> None:
    folder = put_run(one, "cmd-1", state="running")
    end_attempt(folder, kind)
    one._look("cmd-1")
    state = read(folder / "state.json")
    assert (state["state"], state["outcome"], state["cause"]["kind"]) == ("queued", None, kind)
    assert state["outside"] == 1
    assert waiting(one) == ["cmd-1"]


@pytest.mark.parametrize("kind", sorted(states.FROM_OUTSIDE))
def test_but_not_one_that_was_cancelled(one: Dispatcher, kind: str) -> None:
    folder = put_run(one, "cmd-1", state="stopping")
    records.write(str(folder / "cancel"), {"at": 1.0})
    end_attempt(folder, kind)
    one._look("cmd-1")
    state = read(folder / "state.json")
    assert (state["outcome"], state["cause"]["kind"]) == ("cancelled", "cancelled")


def repeat(one: Dispatcher, folder: Path, number: int) -> dict[str, Any]:
    """Lose attempt `number`; the state after it."""
    records.write(
        str(folder / "state.json"),
        dict(read(folder / "state.json"), state="running", attempt=number),
    )
    end_attempt(folder, "launcher-lost", number)
    one._forget("cmd-1")
    one._look("cmd-1")
    return read(folder / "state.json")


def test_twenty_repeats_in_a_row_are_enough_and_come_ever_later(one: Dispatcher) -> None:
    folder = put_run(one, "cmd-1", state="running")
    waits = []
    for number in range(1, states.OUTSIDE_LIMIT + 1):
        state = repeat(one, folder, number)
        assert state["state"] == "queued"
        waits.append(max(0.0, state["not_before"] - time.time()))
    assert waits[:2] == [0, 0]
    assert 0 < waits[2] <= 1 < waits[3] <= 2
    assert 59 < waits[-1] <= 60
    state = repeat(one, folder, states.OUTSIDE_LIMIT + 1)
    assert (state["outcome"], state["cause"]["kind"]) == ("failed", "launcher-lost")


def test_a_new_checkpoint_starts_the_count_anew(one: Dispatcher) -> None:
    folder = put_run(one, "cmd-1", state="running")
    for number in range(1, 6):
        assert repeat(one, folder, number)["outside"] == number
    for number in (6, 7):
        (folder / f"attempts/{number}").mkdir()
        records.write(str(folder / f"attempts/{number}/resume.json"), {"from": "step-1"})
    assert repeat(one, folder, 6)["outside"] == 1
    assert repeat(one, folder, 7)["outside"] == 2


def test_a_run_whose_launcher_lives_is_left_alone(one: Dispatcher) -> None:
    folder = put_run(one, "cmd-1", state="running")
    code = f"import fcntl; f = open({str(folder / 'lock')!r}, 'w'); fcntl.flock(f, 2)"
    code += "; print(); input()"
    holder = subprocess.Popen(
        ["python3", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        one._look("cmd-1")
        assert read(folder / "state.json")["state"] == "running"
        assert not (folder / "attempts/1/exit.json").exists()
    finally:
        holder.kill()
        holder.communicate()
    one._look("cmd-1")
    end = read(folder / "attempts/1/exit.json")
    assert (end["cause"]["kind"], end["by"]) == ("not-started", "dispatcher")


@pytest.mark.parametrize(
    "damage",
    [
        {"spec.json": "{torn"},
        {"spec.json": "[]"},
        {"state.json": '{"state": "running"}'},
        {"state.json": '{"state": "no such", "attempt": 1}'},
        {"state.json": '{"state": "running", "attempt": "x"}'},
        {"spec.json": '{"id": "cmd-1", "gpus": "many"}'},
    ],
)
def test_a_folder_that_cannot_be_read_stops_no_other(
    one: Dispatcher, damage: dict[str, str]
) -> None:
    folder = put_run(one, "cmd-1", state="running")
    for name, text in damage.items():
        (folder / name).write_text(text)
    put_run(one, "cmd-2")
    (Path(one.workspace.runs) / "a file").write_text("x")
    for run in ("cmd-1", "a file", "cmd-2"):
        one._look(run)
    assert "cmd-2" in one.queue


def test_what_could_not_be_written_is_not_believed(
    one: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put_run(one, "cmd-1")
    one._look("cmd-1")
    # a folder in the place of the temporary file: no write succeeds
    block = folder / f"state.json.tmp{os.getpid()}"
    block.mkdir()
    one._schedule()
    assert waiting(one) == ["cmd-1"]
    assert not one.live
    block.rmdir()
    assert read(folder / "state.json")["attempt"] == 0


def test_runs_start_in_the_order_of_their_submission(local_worker: LocalWorker) -> None:
    local_worker.host(slots=1)
    order = local_worker.root / "order"
    gate = local_worker.root / "gate"
    hold = local_worker.submit("sh", "-c", f"until test -e {gate}; do sleep 0.02; done")
    ids = [local_worker.submit("sh", "-c", f"echo $RUNNER_RUN >> {order}") for _ in range(4)]
    assert [local_worker.status(run).status.position for run in ids] == [1, 2, 3, 4]
    gate.touch()
    for run in (hold, *ids):
        assert local_worker.wait(run).status.outcome == "done"
    assert order.read_text().split() == ids


def test_slots_bound_how_many_run_at_once(local_worker: LocalWorker) -> None:
    local_worker.host(slots=2)
    gate = local_worker.root / "gate"
    ids = [
        local_worker.submit("sh", "-c", f"until test -e {gate}; do sleep 0.02; done")
        for _ in range(3)
    ]
    for run in ids[:2]:
        local_worker.until(run, "running")
    assert local_worker.status(ids[2]).status.reason == "waits for a slot"
    gate.touch()
    for run in ids:
        assert local_worker.wait(run).status.outcome == "done"


def test_a_run_starts_the_moment_it_comes(local_worker: LocalWorker) -> None:
    local_worker.wait(local_worker.submit("true"))
    waits = []
    for _ in range(3):
        run = local_worker.submit("date", "+%s.%N")
        local_worker.wait(run)
        spec = json.loads((local_worker.run_folder(run) / "spec.json").read_bytes())
        waits.append(float(local_worker.log(run)) - spec["accepted_at"])
    # far below a tick: it was woken and did not find the run by looking
    assert min(waits) < 0.5


def test_a_dispatcher_that_is_asked_to_end_stops_its_runs_first(local_worker: LocalWorker) -> None:
    run = local_worker.python("print('on', flush=True); import time; time.sleep(600)")
    local_worker.until_logged(run, "on")
    os.kill(local_worker.dispatcher, signal.SIGTERM)
    # supervisord starts the next one, which takes the run up
    wait_for(lambda: local_worker.log(run).count(b"on") == 2, 20, "its second attempt")
    assert local_worker.causes(run)[0] == "shutdown"
    local_worker.cancel(run, now=True)


def record(local_worker: LocalWorker) -> str:
    """A shell line that notes which run started."""
    return f"echo $RUNNER_RUN >> {local_worker.root / 'order'}"


def gated(local_worker: LocalWorker, **options: Any) -> str:
    """A run that lasts until the file `gate` is there."""
    gate = local_worker.root / "gate"
    return local_worker.submit("sh", "-c", f"until test -e {gate}; do sleep 0.02; done", **options)


def open_gate(local_worker: LocalWorker) -> None:
    (local_worker.root / "gate").touch()


def started(local_worker: LocalWorker) -> list[str]:
    return (local_worker.root / "order").read_text().split()


def test_priority_goes_first_and_submission_decides_between_equals(
    local_worker: LocalWorker,
) -> None:
    local_worker.host(slots=1)
    hold = gated(local_worker)
    local_worker.until(hold, "running")
    words = ((), ("priority=5",), ("priority=-5",), ("priority=5",))
    ids = [local_worker.submit("sh", "-c", record(local_worker), words=each) for each in words]
    assert local_worker.status(ids[1]).status.position == 1
    open_gate(local_worker)
    for run in ids:
        local_worker.wait(run)
    assert started(local_worker) == [ids[1], ids[3], ids[0], ids[2]]


def test_a_run_starts_only_after_those_it_waits_for_are_done(local_worker: LocalWorker) -> None:
    first = gated(local_worker)
    second = local_worker.submit("sh", "-c", record(local_worker), words=(f"after={first}",))
    third = local_worker.submit("true", words=(f"after={second},{first}",))
    waits = local_worker.status(third).status.waits
    assert waits == {"kind": "after", "runs": sorted([first, second])}
    assert local_worker.status(second).status.reason == f"after {first}"
    open_gate(local_worker)
    for run in (first, second, third):
        assert local_worker.wait(run).status.outcome == "done"
    assert started(local_worker) == [second]


def test_what_waits_for_a_run_that_failed_is_skipped_and_so_on(local_worker: LocalWorker) -> None:
    first = gated(local_worker)
    second = local_worker.submit("sh", "-c", record(local_worker), words=(f"after={first}",))
    third = local_worker.submit("sh", "-c", record(local_worker), words=(f"after={second}",))
    local_worker.cancel(first, now=True)
    ends = [local_worker.wait(run).status for run in (second, third)]
    assert [end.outcome for end in ends] == ["skipped", "skipped"]
    assert ends[0].cause == {
        "kind": "dependency",
        "text": f"{first}, which it waited for, is cancelled",
        "run": first,
        "outcome": "cancelled",
    }
    assert not (local_worker.root / "order").exists()
    late = local_worker.submit("true", words=(f"after={first}",))
    assert local_worker.wait(late).status.outcome == "skipped"


def test_a_drained_worker_starts_nothing_and_lets_go_on_what_runs(
    local_worker: LocalWorker,
) -> None:
    hold = gated(local_worker)
    local_worker.until(hold, "running")
    with local_worker.ctx.connect(local_worker.ctx.host("local")) as worker:
        assert worker.call("drain", on=True)[0] == {"drained": True, "live": 1, "waiting": 0}
    run = local_worker.submit("true")
    open_gate(local_worker)
    assert local_worker.wait(hold).status.outcome == "done"
    wait_for(lambda: local_worker.status(run).status.reason == "the host is drained", 5, "why")
    time.sleep(1.5)
    assert local_worker.state(run)["state"] == "queued"
    with local_worker.ctx.connect(local_worker.ctx.host("local")) as worker:
        worker.call("drain", on=False)
    assert local_worker.wait(run).status.outcome == "done"


def test_below_the_disks_reserve_nothing_starts(local_worker: LocalWorker) -> None:
    free = os.statvfs(local_worker.root)
    reserve = free.f_bavail * free.f_frsize // 10**9 + 50
    local_worker.host(disk_reserve=f"{reserve}g")
    run = local_worker.submit("true")
    wait_for(lambda: (local_worker.status(run).status.waits or {}).get("kind") == "disk", 5, "why")
    assert local_worker.state(run)["attempt"] == 0
    assert local_worker.cancel(run)[0].outcome == "cancelled"


def test_an_own_fault_is_repeated_as_often_as_the_run_may(local_worker: LocalWorker) -> None:
    code = """
import json, os
n = int(os.environ["RUNNER_ATTEMPT"])
with open(os.environ["RUNNER_PROGRESS"], "a") as file:
    file.write(json.dumps({"step": n, "metrics": {}}) + "\\n")
raise SystemExit(0 if n == 3 else 7)
"""
    run = local_worker.python(code, words=("restarts=2",))
    assert local_worker.wait(run).status.outcome == "done"
    assert local_worker.causes(run) == ["exit", "exit", None]
    assert local_worker.state(run)["restarts_used"] == 2
    run = local_worker.python(code, words=("restarts=1",))
    end = local_worker.wait(run).status
    assert (end.outcome, end.exit, end.restarts_left) == (
        "failed",
        {"code": 7, "signal": None, "rank": 0},
        0,
    )
    assert local_worker.causes(run) == ["exit", "exit"]


def test_what_fails_at_its_start_again_and_again_is_no_crash_loop(
    local_worker: LocalWorker,
) -> None:
    run = local_worker.python("import nope", words=("restarts=9",))
    end = local_worker.wait(run).status
    assert (end.outcome, (end.cause or {})["repeated"]) == ("failed", 2)
    assert local_worker.log(run).count(b"ModuleNotFoundError") == 2


def test_an_agent_that_refuses_ends_its_run_at_once_with_the_reason(
    local_worker: LocalWorker,
) -> None:
    pytest.importorskip("torch", reason="left out: torch: not installed")
    agent = str(Path(__file__).resolve().parents[2] / "agents/dqn.py")
    code = f"""
import os, runpy, sys
del os.environ["RUNNER_PARAMS"]
os.environ["CUDA_VISIBLE_DEVICES"] = ""
sys.argv = [{agent!r}, "device=cuda"]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
    run = local_worker.python(code, words=("restarts=9",))
    end = local_worker.wait(run).status
    assert (end.outcome, end.attempt, (end.cause or {})["kind"]) == ("failed", 1, "setup")
    assert (end.cause or {})["text"].startswith("device=cuda is asked for, but torch ")


def test_a_lost_attempt_that_takes_long_to_end_holds_up_no_other(
    local_worker: LocalWorker,
) -> None:
    local_worker.host(slots=2)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True)"
    run = local_worker.python(code + "; time.sleep(600)", words=("grace=5s",))
    local_worker.until_logged(run, "on")
    local_worker.kill(local_worker.launcher(run))
    began = time.monotonic()
    other = local_worker.submit("true")
    assert local_worker.wait(other).status.outcome == "done"
    assert time.monotonic() - began < 4
    wait_for(lambda: local_worker.causes(run) == ["launcher-lost", None], 20, "its next attempt")
    local_worker.cancel(run, now=True)


def test_a_dispatcher_killed_while_a_lost_attempt_is_ended_changes_nothing(
    local_worker: LocalWorker,
) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('on', flush=True)"
    run = local_worker.python(code + "; time.sleep(600)", words=("grace=3s",))
    local_worker.until_logged(run, "on")
    local_worker.kill(local_worker.launcher(run))
    time.sleep(1.2)
    local_worker.kill(local_worker.dispatcher)
    wait_for(lambda: len(local_worker.attempts(run)) == 2, 20, "its next attempt")
    local_worker.cancel(run, now=True)
    assert local_worker.causes(run) == ["launcher-lost", "cancelled"]


def test_state_files_are_whole_at_every_instant(local_worker: LocalWorker) -> None:
    code = "import os, time; time.sleep(0.1); raise SystemExit(int(os.environ['RUNNER_ATTEMPT']))"
    ids = [local_worker.python(code, words=("restarts=2",)) for _ in range(2)]
    seen: set[str] = set()
    looks = 0
    files = [local_worker.run_folder(run) / "state.json" for run in ids]
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = []
        for file in files:
            try:
                found.append(json.loads(file.read_bytes()))
            except FileNotFoundError:
                assert not seen, "a state file that was there is gone"
        looks += 1
        seen |= {body["state"] for body in found}
        if len(found) == 2 and all(body["state"] == "ended" for body in found):
            break
    assert {"starting", "queued", "ended"} <= seen
    assert looks > 1000


def test_two_workers_of_one_account_never_end_each_others_processes(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import time; print('on', flush=True); time.sleep(600)"
    run = local_worker.python(code)
    local_worker.until_logged(run, "on")
    other = LocalWorker(monkeypatch.setenv)
    try:
        monkeypatch.setenv("RUNNER_LEASES", str(local_worker.leases))
        neighbour = other.python(code)
        other.until_logged(neighbour, "on")
        theirs = other.members(neighbour) | set(other.machinery())
        # everything that ends processes: a lost launcher, a cancel, a worker that comes back
        for pid in (*local_worker.members(run), local_worker.launcher(run)):
            os.kill(pid, signal.SIGKILL)
        local_worker.kill(local_worker.supervisor, local_worker.dispatcher)
        monkeypatch.setenv("RUNNER_WORKSPACE", str(local_worker.workspace))
        local_worker.status(run)
        wait_for(lambda: len(local_worker.attempts(run)) == 2, 30, "its next attempt")
        local_worker.cancel(run, now=True)
        assert processes.living(theirs) == theirs
        assert other.attempts(neighbour) == [{}]
    finally:
        other.close()


def test_a_lost_run_keeps_its_place_before_those_behind_it(local_worker: LocalWorker) -> None:
    local_worker.host(slots=1)
    first = local_worker.submit("sh", "-c", record(local_worker) + "; sleep 600")
    wait_for(lambda: (local_worker.root / "order").exists(), 20, "its start")
    second = local_worker.submit("sh", "-c", record(local_worker))
    pids = [local_worker.supervisor, local_worker.dispatcher, local_worker.launcher(first)]
    for pid in (*pids, *local_worker.members(first)):
        os.kill(pid, signal.SIGKILL)
    local_worker.status(first)
    wait_for(lambda: len(started(local_worker)) == 2, 20, "the next start")
    assert started(local_worker) == [first, first]
    local_worker.cancel(first, now=True)
    assert local_worker.wait(second).status.outcome == "done"
