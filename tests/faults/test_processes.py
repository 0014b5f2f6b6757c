"""kill -9 of anything on a `local` worker, at every phase of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults import phases
from tests.faults.cells import OF_PROCESSES, Cell, cells_of
from tests.faults.params import params
from tests.faults.phases import Held
from tests.helpers.trained import Traces
from tests.helpers.worlds import World

Play = Callable[[World, Cell, Held], Traces]


@pytest.mark.parametrize("cell", params(cells_of(OF_PROCESSES, "local")))
def test_a_process_is_killed(local_world: World, play: Play, cell: Cell) -> None:
    play(local_world, cell, phases.reach(local_world, cell.phase, cell.nproc))
