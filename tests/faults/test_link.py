"""The link to a host goes dead without a word, during whatever a person does; then it is mended."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import cells, phases
from tests.faults.cells import OF_LINK, Cell, cells_of
from tests.faults.params import params
from tests.faults.phases import Held
from tests.helpers.trained import Traces, Trained
from tests.helpers.wait import wait_for
from tests.helpers.worlds import CONTAINER_HOST, ContainerWorld, World
from tests.rig import network
from tests.rig.engine import RigEngine
from tests.rig.operator import REPOSITORY

DEAD_S = 6.0
"""Longer than a client takes to notice."""
BIG = 48_000_000
MOVED = 2_000_000
COMMAND_S = 90.0


class Command:
    """`runner WORDS…` under way."""

    def __init__(self, world: ContainerWorld, *words: str) -> None:
        env = {**world.operator.env, "PYTHONPATH": str(REPOSITORY)}
        self.words = words
        self.process = world.operator.popen(
            [sys.executable, "-m", "runner", *words],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=COMMAND_S)
        assert b"Traceback" not in err, err
        return self.process.returncode, out.decode(), err.decode()


def moved(world: ContainerWorld) -> int:
    """Bytes over the operator's link so far."""
    folder = Path("/sys/class/net", network.operator_link(world.rig.paths.instance), "statistics")
    return sum(int((folder / name).read_text()) for name in ("rx_bytes", "tx_bytes"))


def dead_for_a_while(world: ContainerWorld, meanwhile: Callable[[], None] = lambda: None) -> None:
    instance = world.rig.paths.instance
    network.drop(instance)
    try:
        until = time.monotonic() + DEAD_S
        meanwhile()
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        network.mend(instance)


def in_the_middle(world: ContainerWorld, command: Command, before: int) -> None:
    """The link dies while bytes of this command are on it."""
    wait_for(lambda: moved(world) > before + MOVED, 30, "bytes on the link", step_s=0.001)
    assert command.process.poll() is None, "it was over too soon"
    dead_for_a_while(world)


def during_submit(world: ContainerWorld) -> Held:
    name = f"outside-{time.monotonic_ns()}"
    world.file("big.bin", "")
    (world.project / "big.bin").write_bytes(os.urandom(BIG))
    (world.outside / name).mkdir()
    (world.outside / name).chmod(0o777)
    words = [f"host={CONTAINER_HOST}", "job=train", f"outside={world.inside}/{name}"]
    before = moved(world)
    command = Command(world, "submit", *words)
    try:
        in_the_middle(world, command, before)
        status, out, err = command.end()
        if status:
            # it may give up, in words; the same words again then take the intent up
            assert status == 3 and err, (status, err)
            status, out, err = Command(world, "submit", *words).end()
        assert status == 0, err
    finally:
        (world.project / "big.bin").unlink()
    made = [
        p.parent.name for p in world.workspace.glob("runs/*/spec.json") if name in p.read_text()
    ]
    assert made == [out.strip()], "one submit, one run"
    return Held(world, cells.QUEUED, Trained.of(world, out.strip(), world.outside / name))


def during_wait(world: ContainerWorld, phase: str) -> Held:
    held = phases.reach(world, phase, 1)
    command = Command(world, "wait", held.run.run)
    time.sleep(1.5)  # it has asked
    dead_for_a_while(world, held.release)
    assert command.end()[0] == 0
    return held


def during_tail(world: ContainerWorld) -> Held:
    held = phases.reach(world, cells.RUNNING, 1, "talks=true")
    before = moved(world)
    command = Command(world, "tail", held.run.run)
    wait_for(lambda: moved(world) > before + 20_000, 30, "lines on the link")
    dead_for_a_while(world)
    held.release()
    status, out, err = command.end()
    assert status == 0, err
    assert out.encode() == world.log(held.run.run), "not every byte once"
    return held


def during_cancel(world: ContainerWorld) -> Held:
    held = Held(world, cells.STOPPING, world.train("save_s=2"))
    held.run.until_at("running")
    command = Command(world, "cancel", held.run.run)
    held.run.until_seen("stopping")
    dead_for_a_while(world)
    assert held.run.state == "ended", "the host goes on without us"
    status, out, err = command.end()
    assert status in (0, 3) and (out or err), (status, out, err)
    assert Command(world, "cancel", held.run.run).end()[0] in (0, 7)
    return held


def during_pull(world: ContainerWorld) -> Held:
    held = phases.reach(world, cells.RUNNING, 1)
    held.release()
    held.run.until_ended(30)
    big = world.workspace / "logs" / held.run.run / "big.bin"
    big.write_bytes(os.urandom(BIG))
    os.chown(big, world.uid, world.uid)
    before = moved(world)
    command = Command(world, "pull", held.run.run)
    in_the_middle(world, command, before)
    status, out, err = command.end()
    assert status in (0, 3), err
    pulled = world.project / "results" / held.run.run / "logs/big.bin"
    if status:
        assert not pulled.exists(), "a file that is not whole"
        status, _, err = Command(world, "pull", held.run.run).end()
    assert status == 0, err
    assert pulled.read_bytes() == big.read_bytes()
    assert not [p for p in pulled.parent.rglob("*") if p.name.endswith(".part")]
    big.unlink()
    return held


@pytest.mark.parametrize("cell", params(cells_of(OF_LINK, "docker")))
def test_the_link_goes_dead(
    docker: RigEngine,
    container_world: ContainerWorld,
    settle: Callable[[World, Held, Cell], Traces],
    cell: Cell,
) -> None:
    during: dict[str, Callable[[], Held]] = {
        cells.QUEUED: lambda: during_submit(container_world),
        cells.RUNNING: lambda: during_tail(container_world),
        cells.STOPPING: lambda: during_cancel(container_world),
        cells.ENDED: lambda: during_pull(container_world),
    }
    held = during.get(cell.phase, lambda: during_wait(container_world, cell.phase))()
    held.release()
    settle(container_world, held, cell)
