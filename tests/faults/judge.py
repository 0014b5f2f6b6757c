"""What must be true of every run that a fault has met, whatever it was."""

from __future__ import annotations

from tests.faults import cells
from tests.faults.phases import Held
from tests.helpers.trained import Traces
from tests.helpers.wait import wait_for
from tests.helpers.worlds import World

ENDS_IN_S = 60.0


def judge(world: World, held: Held, cell: cells.Cell) -> Traces:
    """Wait for the end, and check it against the cell; the run's traces."""
    try:
        return _judge(world, held, cell)
    finally:
        held.afterwards()


def _judge(world: World, held: Held, cell: cells.Cell) -> Traces:
    blocker = held.blocker
    if blocker is not None:
        blocker.until_ended(ENDS_IN_S)
        _check(blocker.traces(), cells.cell(cell.fault, cells.RUNNING, cell.runtime, cell.nproc))
    held.run.until_ended(ENDS_IN_S)
    held.afterwards()
    traces = held.run.traces()
    _check(traces, cell)
    if blocker is not None:
        spans = [trained.lines("beats") for trained in (blocker, held.run)]
        assert not _overlap(*spans), "one slot, two runs at once"
    wait_for(lambda: not world.held_leases(), 10, "a free lease")
    wait_for(world.is_one_worker, 25, "one supervisord and one dispatcher")
    if held.phase == cells.STOPPING:
        told = [words[1] for words in held.run.lines("terms")]
        assert sorted(told) == [str(rank) for rank in range(held.run.nproc)], "TERM once a rank"
    if held.asking is not None:
        held.asking.join(ENDS_IN_S)
        assert not held.asking.is_alive(), "cancel has not returned"
        (report,) = held.reports or world.cancel(held.run.run)
        if report.error is not None or report.outcome != "cancelled":
            (report,) = world.cancel(held.run.run)
        assert report.outcome == "cancelled" and not report.left, report
    assert world.status(held.run.run).status.outcome == cell.outcome
    return traces


def _check(traces: Traces, cell: cells.Cell) -> None:
    assert traces.problems == [], traces
    assert traces.outcome == cell.outcome, traces
    assert tuple(traces.causes) in cell.allowed, (traces.causes, cell.allowed)
    unstarted = sum(cause == "not-started" for cause in traces.causes)
    assert traces.starts == len(traces.causes) - unstarted, traces


def _overlap(one: list[list[str]], two: list[list[str]]) -> bool:
    if not one or not two:
        return False
    first, second = ([float(words[-1]) for words in lines] for lines in (one, two))
    return min(second) < max(first) and min(first) < max(second)
