"""What explains a run: what it waits for, how it goes, what ended it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner.app import retrying
from runner.app.context import Context, last_seen, read_status, seen_one
from runner.app.reports import WhyFacts, WhyReport
from runner.app.results import RunOnHost
from runner.app.runs import RunRef
from runner.endpoint import Worker
from runner.errors import ProvisionError, Unreachable
from runner.wire import is_number

MOST_OTHERS = 20
MOST_LINES = 200


def why(ctx: Context, ref: RunRef) -> WhyReport:
    """What the run's host says of it; as last seen and unexplained when it does not answer."""
    host = ctx.host(ref.host)

    def ask(worker: Worker) -> tuple[RunOnHost | None, WhyFacts]:
        reply, _ = worker.call("why", run=ref.id)
        found = seen_one(ctx, worker, ref.id, [reply.get("run")])
        return found, read_facts(reply.get("facts"), ref.host)

    found: RunOnHost | None
    try:
        found, facts = retrying.look(ctx.report, lambda: ctx.connect(host), ask)
    except (Unreachable, ProvisionError) as error:
        found, facts = last_seen(ctx, ref.id, error), WhyFacts()
        if found is None:
            raise
    finally:
        ctx.report.done()
    assert found is not None  # an answer without the run is an error above
    return WhyReport(found, facts)


def read_facts(body: Any, host: str) -> WhyFacts:
    """The facts as a worker sent them, without what is not what it should be."""
    table = body if isinstance(body, Mapping) else {}
    others = table.get("others")
    rows = list(others.values())[:MOST_OTHERS] if isinstance(others, Mapping) else []
    found = [read_status(row, host) for row in rows]
    log = table.get("log")
    log = log if isinstance(log, Mapping) else {}
    rank = log.get("rank")
    return WhyFacts(
        others={status.id: status for status in found},
        log=_lines(log.get("lines")),
        log_rank=rank if isinstance(rank, int) and is_number(rank) else 0,
        stack=_lines(table.get("stack")),
        interval_s=_number(table.get("interval_s")),
        asked_at=_number(table.get("asked_at")),
        grace_s=_number(table.get("grace_s")),
    )


def _lines(value: Any) -> tuple[str, ...]:
    rows = value[-MOST_LINES:] if isinstance(value, list) else []
    return tuple(row for row in rows if isinstance(row, str))


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None
