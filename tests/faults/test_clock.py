"""The clock of the worker and of the job jumps by a day, at every phase of a run."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from tests.faults import cells, inflict, phases
from tests.faults.cells import OF_CLOCK, Cell, cells_of
from tests.faults.params import params
from tests.faults.phases import Held
from tests.helpers.fake_clock import DAY_S, FakeClock
from tests.helpers.trained import Traces, Trained
from tests.helpers.wait import stays, wait_for
from tests.helpers.worlds import World

STARTS_AGAIN_S = 15.0
"""Far above the pause of a run that was repeated four times."""


@pytest.fixture
def clock(local_world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    made = FakeClock(local_world.root / "clock", platform.machine())
    monkeypatch.setattr(sys, "executable", str(made.python))
    yield made
    local_world.close()


def has_begun(run: Trained, attempt: int) -> bool:
    return len(run.lines("starts")) == attempt


def reach_pause(world: World) -> Held:
    """A run that was repeated so often that it waits before it is started again."""
    run = world.train("saves=false")
    lost = sum(cause is not None for cause in cells.PAUSED)
    for attempt in range(1, lost + 1):
        wait_for(partial(has_begun, run, attempt), 20, f"attempt {attempt}")
        inflict.kill_all([world.launcher(run.run)])
    wait_for(lambda: run.state == "queued", 10, "a run that waits", step_s=0.002)
    pause_s = world.state(run.run)["not_before"] - time.time()
    assert pause_s > 0.5, "too short a pause to jump in"
    return Held(world, cells.QUEUED, run)


@pytest.mark.parametrize("cell", params(cells_of(OF_CLOCK, "local")))
def test_the_clock_jumps(
    local_world: World,
    clock: FakeClock,
    settle: Callable[[World, Held, Cell], Traces],
    cell: Cell,
) -> None:
    jump = DAY_S if "+1" in cell.fault else -DAY_S
    if cell.phase == cells.QUEUED:
        held = reach_pause(local_world)
    else:
        held = phases.reach(local_world, cell.phase, cell.nproc)
    clock.jump(jump)
    if cell.phase == cells.STOPPING:
        # its grace is ten seconds of anybody's clock
        time.sleep(1)
        assert local_world.members(held.run.run), "it was killed before its grace was over"
    held.release()
    held.run.until_ended(STARTS_AGAIN_S)
    wrong_by = local_world.state(held.run.run)["updated_at"] - time.time()
    assert abs(wrong_by - jump) < 60, "the worker's clock did not jump"
    settle(local_world, held, cell)


def test_a_jump_forward_does_not_use_up_a_time_limit(local_world: World, clock: FakeClock) -> None:
    held = phases.reach(local_world, cells.RUNNING, 1, "time_limit=60s")
    clock.jump(DAY_S)
    stays(lambda: held.run.state == "running", 2.5, "a run within its limit")
    held.release()
    held.run.until_ended(STARTS_AGAIN_S)
    traces = held.run.traces()
    assert (traces.outcome, traces.causes, traces.problems) == ("done", [None], [])


def test_a_jump_back_does_not_lengthen_a_time_limit(local_world: World, clock: FakeClock) -> None:
    held = phases.reach(local_world, cells.RUNNING, 1, "time_limit=4s")
    clock.jump(-DAY_S)
    held.run.until_ended(STARTS_AGAIN_S)
    traces = held.run.traces()
    assert (traces.outcome, traces.causes, traces.problems) == ("failed", ["time-limit"], [])
