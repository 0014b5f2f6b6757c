"""One run in full."""

from __future__ import annotations

from runner.app import retrying
from runner.app.context import Context, last_seen, seen_one
from runner.app.results import RunOnHost
from runner.app.runs import RunRef
from runner.endpoint import Worker
from runner.errors import ProvisionError, Unreachable
from runner.show.undelivered import left_text


def status(ctx: Context, ref: RunRef) -> RunOnHost:
    """What the run's host says of it; as last seen when it does not answer.

    Raises NotFound when neither knows it.
    """
    host = ctx.host(ref.host)

    def ask(worker: Worker) -> RunOnHost | None:
        reply, rows = worker.call("runs", ids=[ref.id], full=True)
        left = left_text(reply.get("messages"))
        if left is not None:
            ctx.report.warn(f"{host.name}: {left}")
        return seen_one(ctx, worker, ref.id, rows)

    try:
        found = retrying.look(ctx.report, lambda: ctx.connect(host), ask)
    except (Unreachable, ProvisionError) as error:
        found = last_seen(ctx, ref.id, error)
        if found is None:
            raise
    finally:
        ctx.report.done()
    if found is None:
        raise ctx.no_run(ref.host, ref.id)
    return found
