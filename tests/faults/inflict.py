"""The faults: real signals to real processes, by their ids."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import processes

from tests.faults import cells
from tests.faults.cells import Cell
from tests.faults.phases import Held
from tests.helpers.wait import wait_for
from tests.helpers.worlds import ContainerWorld, World, in_namespace, parent_of
from tests.rig.engine import RigEngine

OTHER_BOOT = "another-boot"
SWEPT_S = 1.5
"""A dispatcher looks at its runs once a second."""
LOST_S = 40.0
GO_ON_S = 0.3
"""How long `docker restart` is under way before a stopped dispatcher hears of it."""
ENGINE = ("dockerd", "containerd", "containerd-shim-runc-v2")


def kill_all(pids: Iterable[int]) -> None:
    """kill -9, and wait until they are gone; one may have gone by itself."""
    wanted = [pid for pid in pids if pid]
    for pid in wanted:
        assert pid > 1
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    wait_for(lambda: not processes.living(wanted), 10, f"the end of {wanted}")


def rank(held: Held) -> None:
    """The last rank."""
    kill_all([held.world.pid_of(held.victim.ranks[held.victim.nproc - 1])])


def agent(held: Held) -> None:
    kill_all([parent_of(held.world.pid_of(held.victim.ranks[0]))])


def launcher(held: Held) -> None:
    """Once the end is on record it lives for a moment only, and may have gone."""
    kill_all([held.world.launcher_if_any(held.victim.run)])


def dispatcher(held: Held) -> None:
    kill_all([held.world.dispatcher])


def supervisord(held: Held) -> None:
    kill_all([held.world.supervisor])


def supervision(held: Held) -> None:
    kill_all([held.world.supervisor, held.world.dispatcher])


def machinery(held: Held) -> None:
    world = held.world
    pids = [world.supervisor, world.dispatcher, world.launcher_if_any(held.victim.run)]
    kill_all(pids)


def everything(held: Held) -> None:
    kill_all(held.world.everything(held.victim.run))


def host(held: Held) -> None:
    world = held.world
    if isinstance(world, ContainerWorld):
        _reboot(world)
    else:
        everything(held)
        world.set_env("RUNNER_BOOT_ID", OTHER_BOOT)


def _reboot(world: ContainerWorld) -> None:
    """The plug is pulled; the kernel's boot id, which the rig's hosts share, is set by the one
    variable that stands in for it, in the container's record on disk."""
    world.rig.halt(world.rig.gpu)
    wait_for(lambda: not world.contained(), 10, "the end of all containers")
    found = world.rig.paths.engine_data.glob("containers/*/config.v2.json")
    for path in found:
        body = json.loads(path.read_text())
        env = [item for item in body["Config"]["Env"] if not item.startswith("RUNNER_BOOT_ID=")]
        body["Config"]["Env"] = [*env, f"RUNNER_BOOT_ID=boot-{time.monotonic_ns()}"]
        path.write_text(json.dumps(body))
    world.rig.start(world.rig.gpu)
    world.engine.start()


def container_restarted(held: Held) -> None:
    world = _container(held)
    asking = threading.Thread(target=world.engine.docker, args=("restart", world.container))
    asking.start()
    time.sleep(GO_ON_S)
    if held.stopped:
        os.kill(held.stopped, signal.SIGCONT)
    asking.join()


def container_killed(held: Held) -> None:
    world = _container(held)
    world.engine.docker("kill", world.container)
    world.engine.docker("start", world.container)


def dockerd(held: Held) -> None:
    world = _container(held)
    _kill_engine(world.engine)
    world.engine.start()


def dockerd_forgets(held: Held) -> None:
    """Nothing tells the next dockerd of the containers that still run: it starts them once more."""
    world = _container(held)
    _kill_engine(world.engine)
    orphans = set(world.contained())
    for name in ("docker", "containerd"):
        shutil.rmtree(world.rig.gpu.run_folder / name)
    world.engine.start()
    held.goes_on = True
    held.afterwards = lambda: kill_all(orphans)


def _kill_engine(engine: RigEngine) -> None:
    """dockerd, containerd and each container's shim, at once."""
    home = in_namespace(engine.host.init_pid)[0]
    pids = [pid for pid in processes.all_pids() if in_namespace(pid)[0] == home]
    wanted = [pid for pid in pids if _program(pid) in ENGINE]
    assert {_program(pid) for pid in wanted} == set(ENGINE)
    kill_all(wanted)


def _program(pid: int) -> str:
    """The name of the program that a process runs."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return os.path.basename(words[0].decode("utf-8", "replace"))


def _container(held: Held) -> ContainerWorld:
    assert isinstance(held.world, ContainerWorld)
    return held.world


INFLICT: dict[str, Callable[[Held], None]] = {
    "rank": rank,
    "torchrun's agent": agent,
    "launcher": launcher,
    "dispatcher": dispatcher,
    "supervisord": supervisord,
    "supervisord and dispatcher": supervision,
    "machinery": machinery,
    "everything": everything,
    "host": host,
    "container restarted": container_restarted,
    "container killed": container_killed,
    "dockerd": dockerd,
    "dockerd, /run emptied": dockerd_forgets,
}


def _goes_on(held: Held) -> bool:
    """Whether the next attempt has begun, or the run that waited for the only slot has."""
    waited = held.blocker is not None and bool(held.run.lines("starts"))
    return held.victim.began_again or waited


def hit(world: World, held: Held, cell: Cell) -> None:
    """Inflict it, do what a person does next, if anything, and let go what held the run.

    Ranks that outlive what was killed stay where they are until the next attempt has begun: a job
    that had ended before would not show whether anybody deals with them.
    """
    INFLICT[cell.fault](held)
    held.resume_dispatcher()
    if not world.is_container:
        # nobody watches over a `local` worker: the next contact finds or starts one
        world.status(held.run.run)
    if held.phase == cells.STOPPING:
        time.sleep(SWEPT_S)
    elif held.phase != cells.ENDED and cells.KINDS.get(cell.fault) and not held.goes_on:
        wait_for(lambda: _goes_on(held), LOST_S, "what comes after the attempt that was lost")
    held.release()
