"""Worlds to break, and the table of what came of it: printed, and written where it is wanted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import cut_table, inflict, table
from tests.faults.cells import Cell
from tests.faults.judge import judge
from tests.faults.phases import Held
from tests.helpers.become import become
from tests.helpers.trained import Traces
from tests.helpers.worlds import ContainerWorld, World
from tests.rig.engine import RigEngine
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig

KEPT, TRIED = "cell", "tried"
DOCUMENT = "RUNNER_FAULTS_DOCUMENT"
"""Names the file whose part below `MARK` becomes the table; set by `make faults`."""
MARK = "<!-- what follows is written by make faults -->"

_began = time.monotonic()


@pytest.fixture
def local_world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A `local` worker of one slot, with the job under test."""
    world = World(monkeypatch.setenv)
    try:
        yield world
    finally:
        world.close()


@pytest.fixture(scope="module")
def container_world(
    make_operator: Callable[[], Operator], rig: Rig, jump_host: RigHost, docker: RigEngine
) -> Iterator[ContainerWorld]:
    """A worker in a container on the rig's gpu host, provisioned."""
    with pytest.MonkeyPatch.context() as patch:
        docker.remove_containers()
        world = ContainerWorld(become(make_operator(), patch), rig, patch.setenv)
        try:
            yield world
        finally:
            world.close()


@pytest.fixture(autouse=True)
def _tried(request: pytest.FixtureRequest) -> None:
    """Note that a cell is tried, so that one which fails before it is judged is not forgotten."""
    callspec = getattr(request.node, "callspec", None)
    cell = callspec.params.get("cell") if callspec is not None else None
    if isinstance(cell, Cell):
        request.node.user_properties.append((TRIED, cell.id))


@pytest.fixture
def keep(request: pytest.FixtureRequest) -> Callable[[Cell, Traces], None]:
    """Keep what a cell came to, for the table."""

    def note(cell: Cell, traces: Traces) -> None:
        row = {"id": cell.id, "text": traces.text, "starts": traces.starts}
        row.update(double_starts=traces.double_starts, steps_repeated=traces.steps_repeated)
        row.update(
            lost=traces.outcome == "None",
            false_failure=traces.outcome != cell.outcome,
            wrong_cause=tuple(traces.causes) not in cell.allowed,
        )
        request.node.user_properties.append((KEPT, row))

    return note


@pytest.fixture
def settle(keep: Callable[[Cell, Traces], None]) -> Callable[[World, Held, Cell], Traces]:
    """Judge a held run that a fault has met, and keep what it came to, right or wrong."""

    def see(world: World, held: Held, cell: Cell) -> Traces:
        try:
            return judge(world, held, cell)
        finally:
            keep(cell, held.run.traces())

    return see


@pytest.fixture
def play(
    settle: Callable[[World, Held, Cell], Traces],
) -> Callable[[World, Cell, Held], Traces]:
    """Inflict a cell's fault on a held run and judge what came of it."""

    def hit(world: World, cell: Cell, held: Held) -> Traces:
        try:
            inflict.hit(world, held, cell)
        finally:
            held.release()
        return settle(world, held, cell)

    return hit


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    cut_table.summarize(terminalreporter)
    rows = _rows(terminalreporter)
    if not rows:
        return
    text = table.render(rows, (time.monotonic() - _began) / 60)
    terminalreporter.section("faults")
    terminalreporter.write_line(text)
    named = os.environ.get(DOCUMENT)
    if named:
        path = Path(named)
        head = path.read_text().partition(MARK)[0] if path.exists() else ""
        parts = [table.meanings(), text, "Left out: " + "; ".join(table.left_out()) + "."]
        path.write_text(head + MARK + "\n\n" + "\n\n".join(parts) + "\n")


def _rows(terminalreporter: pytest.TerminalReporter) -> list[table.Row]:
    """A row for every cell that was tried, judged or not; one that fails anywhere is not right."""
    judged: dict[str, dict[str, object]] = {}
    failed: set[str] = set()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if not isinstance(report, pytest.TestReport) or outcome == "skipped":
                continue
            for name, body in report.user_properties:
                if name == TRIED:
                    judged.setdefault(str(body), {"id": str(body), "text": "failed, not judged"})
                    if outcome not in ("passed", ""):
                        failed.add(str(body))
                elif name == KEPT and isinstance(body, dict):
                    judged.setdefault(str(body["id"]), {}).update(body)
    unjudged = {name for name, row in judged.items() if "starts" not in row}
    return [dict(row, right=name not in failed | unjudged) for name, row in judged.items()]
