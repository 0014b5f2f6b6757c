"""What a live run's ranks are doing."""

from __future__ import annotations

from typing import Any

from runner.app import retrying
from runner.app.context import Context
from runner.app.reports import RankStack, StackReport
from runner.app.runs import RunRef
from runner.endpoint import Worker
from runner.errors import WorkerError
from runner.wire import is_number


def stack(ctx: Context, ref: RunRef) -> StackReport:
    """Every rank's stack, taken now; the ranks go on.

    Raises WrongState when the run is not live, WorkerError when no stack could be read.
    """
    host = ctx.host(ref.host)

    def ask(worker: Worker) -> dict[str, Any]:
        ctx.report.step(f"reading the stacks of {ref.id}")
        return worker.call("stack", run=ref.id)[0]

    try:
        reply = retrying.look_inside(ctx, host, ask)
    finally:
        ctx.report.done()
    rows = reply.get("ranks")
    ranks = [_rank(row) for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    said = reply.get("problem")
    problem = str(said) if said else None
    if not ranks:
        text = problem or "it has no rank that runs Python"
        raise WorkerError(
            f"{ref.host}: no stack of {ref.id} could be read: {text}",
            f"runner why {ref.id}",
            f"runner tail {ref.id}",
        )
    return StackReport(ref.id, ref.host, tuple(sorted(ranks, key=lambda row: row.rank)), problem)


def _rank(row: dict[str, Any]) -> RankStack:
    rank, pid, text = row.get("rank"), row.get("pid"), row.get("text")
    return RankStack(
        rank=rank if isinstance(rank, int) and is_number(rank) else 0,
        pid=pid if isinstance(pid, int) and is_number(pid) else None,
        text=text if isinstance(text, str) else "",
    )
