"""Faults of a worker in a container: of its processes, of the container, of Docker, of the host.

Nobody contacts the worker until the run has ended: it comes back by itself, by the container's
restart policy.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults import phases
from tests.faults.cells import OF_CONTAINERS, OF_PROCESSES, Cell, cells_of
from tests.faults.params import params
from tests.faults.phases import Held
from tests.helpers.trained import Traces
from tests.helpers.worlds import ContainerWorld, World
from tests.rig.engine import RigEngine

Play = Callable[[World, Cell, Held], Traces]


@pytest.mark.parametrize("cell", params(cells_of(OF_PROCESSES, "docker")))
def test_a_process_in_a_container_is_killed(
    docker: RigEngine, container_world: ContainerWorld, play: Play, cell: Cell
) -> None:
    play(container_world, cell, phases.reach(container_world, cell.phase, cell.nproc))


@pytest.mark.parametrize("cell", params(cells_of(OF_CONTAINERS, "docker")))
def test_a_container_or_its_engine_goes_away(
    docker: RigEngine, container_world: ContainerWorld, play: Play, cell: Cell
) -> None:
    play(container_world, cell, phases.reach(container_world, cell.phase, cell.nproc))
