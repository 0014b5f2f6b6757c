"""A disk without a free byte, at every phase of a run; then there is room again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.faults import cells, phases
from tests.faults.cells import OF_DISK, Cell, cells_of
from tests.faults.params import params
from tests.faults.phases import Held
from tests.helpers.small_disk import fill, free_bytes, small_disk
from tests.helpers.trained import Traces
from tests.helpers.wait import stays, wait_for
from tests.helpers.worlds import World

LITTLE = 1 << 16
"""What runs give back at their end."""
FULL_S = 1.0
"""How long it stays full while the run must not end."""
FILLS = """
import time
while True:
    try:
        print("x" * 100_000, flush=True)
    except OSError:
        time.sleep(0.05)
"""


@pytest.fixture
def full_world(local_world: World) -> Iterator[World]:
    """A worker whose workspace is a file system of a few MB."""
    with small_disk(local_world.workspace, "16m"):
        yield local_world
        local_world.close()


@pytest.mark.parametrize("cell", params(cells_of(OF_DISK, "local")))
def test_the_disk_is_full(
    full_world: World, settle: Callable[[World, Held, Cell], Traces], cell: Cell
) -> None:
    gives_up = cell.fault != "disk full"
    words = ["talks=true", "grace=1s", *(["patient=false"] if gives_up else [])]
    held = phases.reach(full_world, cell.phase, 1, *words)
    filler = fill(full_world.workspace)
    try:
        held.release()
        if gives_up or cell.phase in (cells.STOPPING, cells.ENDED):
            # the end is written where there is no room
            held.run.until_ended(30)
            assert free_bytes(full_world.workspace) < LITTLE
        else:
            wait_for(lambda: held.victim.lines("full"), 10, "the job to meet the full disk")
            stays(lambda: held.run.state != "ended", FULL_S, "a run that waits for room")
    finally:
        filler.unlink()
    settle(full_world, held, cell)


def test_the_run_that_fills_it_can_be_cancelled_at_once(full_world: World) -> None:
    run = full_world.python(FILLS)
    wait_for(lambda: free_bytes(full_world.workspace) == 0, 20, "a full disk")
    began = time.monotonic()
    (report,) = full_world.cancel(run, now=True)
    assert (report.outcome, report.error, report.left) == ("cancelled", None, ())
    assert time.monotonic() - began < 15
    assert full_world.state(run)["outcome"] == "cancelled"
