"""Cards are leased one run each, strangers respected, and given back only when their memory is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.errors import SpecError
from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import wait_for
from tests.rig import gpus as rig_gpus

GPU = ("gpus=1",)
HOLD = """
import os, sys, time
sys.path.insert(0, os.getcwd())
import hold_gpu
print("on", hold_gpu.hold(2000), os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
while not os.path.exists(os.environ["GATE"]): time.sleep(0.01)
"""

ALONE = """
import fcntl, os, sys, time
sys.path.insert(0, os.getcwd())
import hold_gpu
cards = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
for uuid in cards:
    place = os.path.join(os.environ["WITNESS"], uuid)
    fd = os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails when another run is on the card
    os.write(fd, b"%s\\n" % os.environ["RUNNER_RUN"].encode())
time.sleep(0.5)  # until it takes memory its lease alone keeps others away
for device in range(len(cards)):
    hold_gpu.hold(2000, device)
"""
"""A job that fails when it is not alone on its cards."""


class Machine:
    """A worker on a machine with cards."""

    def __init__(self, worker: LocalWorker, cards: rig_gpus.FakeGpus) -> None:
        self.worker = worker
        self.cards = cards
        self.gate = worker.root / "gate"

    def hold(self, *words: str) -> str:
        return self.worker.python(HOLD, words=(*GPU, *words, f"env.GATE={self.gate}"))

    @property
    def witness(self) -> Path:
        """A folder where each card has the list of runs that were on it."""
        folder = self.worker.root / "witness"
        folder.mkdir(exist_ok=True)
        return folder

    def clients(self, places: list[Path], runs: int) -> list[list[str]]:
        """A client per workspace, each of which submits one run after the other; their ids."""
        argv = [sys.executable, "-m", "runner", "submit", f"env.WITNESS={self.witness}"]
        loop = f'for n in $(seq {runs}); do "$@" gpus=$((n % 5 ? 1 : 2)) -- python -c "$JOB"; done'
        children = [
            subprocess.Popen(
                ["sh", "-c", loop, "sh", *argv],
                cwd=self.worker.project,
                env=dict(os.environ, RUNNER_WORKSPACE=str(place), JOB=ALONE),
                stdout=subprocess.PIPE,
                text=True,
            )
            for place in places
        ]
        return [child.communicate(timeout=120)[0].split() for child in children]

    def card_of(self, run: str) -> str:
        self.worker.until_logged(run, "on ")
        _, held, told = self.worker.log(run).decode().split()
        assert held == told
        return held


@pytest.fixture
def machine(local_worker: LocalWorker) -> Iterator[Machine]:
    cards = rig_gpus.FakeGpus(local_worker.root / "gpus")
    tools = local_worker.root / "bin"
    rig_gpus.place_tool(tools, cards.folder)
    local_worker.set_env("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    local_worker.file("hold_gpu.py", rig_gpus.HOLD.read_text())
    try:
        yield Machine(local_worker, cards)
    finally:
        cards.close()


def test_a_card_has_one_run_and_the_next_waits_for_it_by_name(machine: Machine) -> None:
    machine.cards.set_cards(1)
    worker = machine.worker
    first = machine.hold()
    assert machine.card_of(first) == machine.cards.uuids[0]
    second = machine.hold()
    status = worker.status(second).status
    assert (status.state, status.position) == ("queued", 1)
    assert status.reason == f"waits for 1 GPU: {first}'s"
    # a run without a card has a line of its own
    assert worker.wait(worker.submit("true", words=("gpus=0",))).status.outcome == "done"
    assert worker.status(second).status.state == "queued"
    machine.gate.touch()
    assert worker.wait(first).status.outcome == "done"
    assert worker.wait(second).status.outcome == "done"
    found = worker.status(second).status.gpus
    assert [card["uuid"] for card in found] == machine.cards.uuids


def test_two_runs_get_two_cards(machine: Machine) -> None:
    machine.cards.set_cards(2)
    ids = [machine.hold(), machine.hold()]
    assert {machine.card_of(run) for run in ids} == set(machine.cards.uuids)
    machine.gate.touch()


def test_a_big_run_is_not_overtaken(machine: Machine) -> None:
    machine.cards.set_cards(2)
    worker = machine.worker
    first = machine.hold()
    machine.card_of(first)
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    big = worker.python(code, words=("gpus=2",))
    small = worker.python(code, words=GPU)
    assert worker.status(small).status.reason == f"next after {big}"
    machine.gate.touch()
    assert worker.wait(big).status.outcome == "done"
    assert worker.wait(small).status.outcome == "done"
    assert worker.log(big).decode().strip() == ",".join(machine.cards.uuids)
    assert worker.state(big)["started_at"] < worker.state(small)["started_at"]


def test_a_strangers_card_is_left_alone_and_said_to_be_so(machine: Machine) -> None:
    machine.cards.set_cards(1)
    stranger = machine.cards.hold(0, 3000)
    run = machine.hold()
    worker = machine.worker

    def reason() -> str:
        return worker.status(run).status.reason or ""

    wait_for(lambda: "GPU 0 is in use by others (3003 MiB, " in reason(), 10, "the reason")
    assert worker.state(run)["state"] == "queued"
    stranger.kill()
    stranger.wait()
    assert machine.card_of(run) == machine.cards.uuids[0]
    machine.gate.touch()
    assert worker.wait(run).status.outcome == "done"


def test_memory_is_back_before_a_cancel_says_so(machine: Machine) -> None:
    machine.cards.set_cards(1)
    run = machine.hold()
    machine.card_of(run)
    assert machine.cards.used_mib(0) > 2000
    (report,) = machine.worker.cancel(run)
    assert machine.cards.used_mib(0) == 3
    assert [card["used_mib"] for card in report.gpus] == [3]
    assert [card["index"] for card in report.gpus] == [0]


def test_more_cards_than_there_are_is_refused(machine: Machine) -> None:
    machine.cards.set_cards(2)
    with pytest.raises(SpecError, match="asked for 3 GPUs, there are 2"):
        machine.worker.submit("true", words=("gpus=3",))
    machine.cards.set_cards(0)
    machine.cards.remove_driver()
    assert not list(machine.worker.workspace.glob("runs/[!.]*"))


def test_auto_is_one_per_rank_where_there_are_any(machine: Machine) -> None:
    machine.cards.set_cards(2)
    worker = machine.worker
    worker.file("agents/two.toml", 'command = ["true"]\nnproc = 2\n')
    from runner.app import submit
    from runner.spec import parse_submit

    request = parse_submit(["job=two"], None)
    run = submit.submit(worker.ctx, request, lambda line: None)[0]
    spec = json.loads(Path(worker.run_folder(run) / "spec.json").read_text())
    assert (spec["gpus"], spec["gpus_asked"]) == (2, "auto")
    worker.cancel(run, now=True)


def test_a_card_in_use_is_passed_over_for_one_that_is_free(machine: Machine) -> None:
    machine.cards.set_cards(2)
    machine.cards.hold(0, 15_000)
    run = machine.hold()
    assert machine.card_of(run) == machine.cards.uuids[1]
    machine.gate.touch()
    assert machine.worker.wait(run).status.outcome == "done"


def test_twenty_runs_of_two_clients_never_meet_on_a_card(machine: Machine) -> None:
    machine.cards.set_cards(2)
    place = machine.worker.workspace
    first, second = machine.clients([place, place], 10)
    assert len({*first, *second}) == 20
    ends = {run: machine.worker.wait(run, 90).status.outcome for run in (*first, *second)}
    assert set(ends.values()) == {"done"}, ends
    seen = [(machine.witness / uuid).read_text().split() for uuid in machine.cards.uuids]
    assert {*seen[0], *seen[1]} == {*first, *second}
    assert all(len(runs) == len(set(runs)) for runs in seen)
    assert len(seen[0]) + len(seen[1]) == 24  # four of them had both


def test_two_workers_with_one_lease_folder_never_meet_on_a_card(machine: Machine) -> None:
    machine.cards.set_cards(2)
    worker = machine.worker
    other = worker.root / "ws-other"
    try:
        first, second = machine.clients([worker.workspace, other], 6)
        ends = {run: worker.wait(run, 90).status.outcome for run in first}
        worker.set_env("RUNNER_WORKSPACE", str(other))
        ends.update((run, worker.wait(run, 90).status.outcome) for run in second)
        assert set(ends.values()) == {"done"}, ends
        assert len(ends) == 12
    finally:
        end_worker(worker, other)
    seen = [(machine.witness / uuid).read_text().split() for uuid in machine.cards.uuids]
    assert len(seen[0]) + len(seen[1]) == 14


def end_worker(worker: LocalWorker, workspace: Path) -> None:
    """End a second worker of a test."""
    first, worker.workspace = worker.workspace, workspace
    try:
        pids = sorted(worker.machinery(), key=lambda pid: pid != worker.supervisor)
        for pid in pids:
            worker.kill(pid)
    finally:
        worker.workspace = first


def test_a_driver_that_fails_fails_no_run(machine: Machine) -> None:
    machine.cards.set_cards(1)
    worker = machine.worker
    worker.wait(worker.submit("true", words=GPU))
    machine.cards.fail("NVIDIA-SMI has failed because it couldn't communicate", 9)
    runs = [worker.submit("true", words=GPU) for _ in range(4)]
    said = "nvidia-smi exits 9"
    wait_for(lambda: said in str(worker.status(runs[0]).status.reason), 10, "the reason")
    assert {worker.state(run)["state"] for run in runs} == {"queued"}
    # the rest goes on
    assert worker.wait(worker.submit("true", words=("gpus=0",))).status.outcome == "done"
    machine.cards.heal()
    assert {worker.wait(run).status.outcome for run in runs} == {"done"}


def test_a_driver_that_never_showed_a_card_is_quoted(machine: Machine) -> None:
    machine.cards.set_cards(1)
    machine.cards.fail("Failed to initialize NVML: Driver/library version mismatch", 18)
    said = r"there are none \(nvidia-smi exits 18: Failed to initialize NVML: Driver"
    with pytest.raises(SpecError, match=said):
        machine.worker.submit("true", words=GPU)
    assert not list(machine.worker.workspace.glob("runs/[!.]*"))


@pytest.mark.slow
def test_a_sick_driver_holds_runs_back_and_fails_none(machine: Machine) -> None:
    machine.cards.set_cards(1)
    worker = machine.worker
    first = machine.hold()
    machine.card_of(first)
    second = machine.hold()
    machine.cards.fail("Failed to initialize NVML: Unknown Error")
    worker.cancel(first, now=True)
    assert worker.wait(worker.submit("true", words=("gpus=0",))).status.outcome == "done"
    assert worker.state(second)["state"] == "queued"
    machine.cards.heal()
    machine.card_of(second)
    machine.gate.touch()
    assert worker.wait(second).status.outcome == "done"


def test_a_lost_launcher_gives_its_card_back_only_with_its_processes(machine: Machine) -> None:
    machine.cards.set_cards(1)
    worker = machine.worker
    run = machine.hold()
    machine.card_of(run)
    worker.kill(worker.launcher(run))
    worker.until_logged(run, f"on {machine.cards.uuids[0]} {machine.cards.uuids[0]}\non")
    assert machine.cards.used_mib(0) == 2003
    machine.gate.touch()
    assert worker.wait(run).status.outcome == "done"
    assert worker.causes(run) == ["launcher-lost", None]


def test_a_tool_that_goes_missing_takes_no_cards_with_it(machine: Machine) -> None:
    machine.cards.set_cards(1)
    worker = machine.worker
    assert worker.wait(machine.hold("grace=1s", "time_limit=1s")).status.outcome == "failed"
    rig_gpus.remove_tool(worker.root / "bin")
    time.sleep(2.5)
    runs = [worker.submit("true", words=words) for words in (("gpus=1",), ())]
    reason = "waits for 1 GPU: nvidia-smi is not installed"
    wait_for(lambda: worker.status(runs[0]).status.reason == reason, 40, "the reason")
    assert worker.state(runs[1])["state"] == "queued"  # auto: not a quiet run on the CPU
    rig_gpus.place_tool(worker.root / "bin", machine.cards.folder)
    for run in runs:
        assert worker.wait(run, 60).status.outcome == "done"


def test_a_cancel_that_could_not_read_the_memory_says_so(machine: Machine) -> None:
    machine.cards.set_cards(1)
    run = machine.hold()
    machine.card_of(run)
    machine.cards.fail("no driver", 9)
    (report,) = machine.worker.cancel(run)
    assert (report.outcome, report.unread, report.gpus) == ("cancelled", True, ())
