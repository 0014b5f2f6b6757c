"""Bringing a run into a phase and holding it there while something is done to it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import processes

from runner.app.reports import CancelReport
from runner.errors import RunnerError
from tests.faults import cells
from tests.helpers.trained import Trained
from tests.helpers.wait import wait_for
from tests.helpers.worlds import World

TRIES = 20
BEFORE_EXIT_S = 20.0


@dataclass
class Held:
    """A run in its phase, and what keeps it there."""

    world: World
    phase: str
    run: Trained
    blocker: Trained | None = None
    """The run that has the slot while this one is queued."""
    stopped: int = 0
    """A dispatcher that was sent STOP, so that the phase lasts."""
    asking: threading.Thread | None = None
    reports: list[CancelReport] = field(default_factory=list)
    goes_on: bool = False
    """Whether the attempt outlives the fault."""
    afterwards: Callable[[], None] = lambda: None
    """What is to be done once the run has ended, before anybody contacts its worker."""

    @property
    def victim(self) -> Trained:
        """The run whose processes a fault is to hit."""
        return self.blocker or self.run

    def resume_dispatcher(self) -> None:
        """Let a stopped dispatcher go on, if it still lives."""
        if self.stopped and processes.living([self.stopped]):
            os.kill(self.stopped, signal.SIGCONT)
        self.stopped = 0

    def release(self) -> None:
        """Let everything go on that still lives."""
        self.resume_dispatcher()
        for trained in filter(None, (self.run, self.blocker)):
            trained.let_go()

    def cancel(self) -> None:
        """Ask for the run's end; reports come into `reports`."""

        def ask() -> None:
            try:
                self.reports += self.world.cancel(self.run.run)
            except RunnerError:
                pass  # the link broke with what was done to the host

        self.asking = threading.Thread(target=ask)
        self.asking.start()


def reach(world: World, phase: str, nproc: int, *words: str) -> Held:
    """A new run, held in a phase."""
    world.warm_up()
    dispatcher = world.dispatcher
    try:
        return _reach(world, phase, nproc, words)
    except BaseException:
        if processes.living([dispatcher]):
            os.kill(dispatcher, signal.SIGCONT)  # it must not stay stopped for those who follow
        raise


def _reach(world: World, phase: str, nproc: int, words: tuple[str, ...]) -> Held:
    if phase == cells.QUEUED:
        blocker = world.train(*words, nproc=nproc)
        blocker.until_at("running")
        run = world.train(*words, nproc=nproc)
        wait_for(lambda: run.state == "queued", 10, "the second run to be queued")
        return Held(world, phase, run, blocker)
    if phase == cells.STARTING:
        return _reach_starting(world, nproc, words)
    if phase == cells.STOPPING:
        held = Held(world, phase, world.train("save_s=5", *words, nproc=nproc))
        held.run.until_at("running")
        held.cancel()
        held.run.until_seen("stopping")
        return held
    held = Held(world, phase, world.train(*words, nproc=nproc))
    point = {cells.RUNNING: "running", cells.CHECKPOINTING: "checkpointing"}.get(phase, "ending")
    held.run.until_at(point)
    if phase == cells.ENDED:
        held.stopped = _stop(world)
        held.run.let_go()
        attempt = world.run_folder(held.run.run) / "attempts/1/exit.json"
        wait_for(attempt.exists, BEFORE_EXIT_S, "exit.json", step_s=0.0002)
    else:
        world.until(held.run.run, "running")
    return held


def _reach_starting(world: World, nproc: int, words: tuple[str, ...]) -> Held:
    """Its ranks are up, and the dispatcher, stopped in the act, has not yet written `running`."""
    for _ in range(TRIES):
        stopped = _stop(world)
        held = Held(world, cells.STARTING, world.train(*words, nproc=nproc))
        path = world.run_folder(held.run.run) / "state.json"
        os.kill(stopped, signal.SIGCONT)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if path.exists() and b'"starting"' in path.read_bytes():
                break
        held.stopped = _stop(world, stopped)
        if held.run.state == "starting" and _has_begun(held.run):
            return held
        held.release()
        held.run.until_ended(30)
    raise AssertionError(f"no run was caught starting in {TRIES} tries")


def _has_begun(run: Trained) -> bool:
    """Whether its ranks come up; they do not when no launcher had been forked yet."""
    try:
        wait_for(lambda: run.is_at("early"), 5, "the ranks")
    except AssertionError:
        return False
    return True


def _stop(world: World, known: int = 0) -> int:
    pid = known or world.dispatcher
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: (processes.read_stat(pid) or (0, 0, "T"))[2] == "T", 5, "a stopped dispatcher")
    return pid
