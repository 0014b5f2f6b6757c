"""One run in full."""

from __future__ import annotations

from runner.app.context import Context, last_seen, seen_one
from runner.app.results import RunOnHost
from runner.app.runs import RunRef
from runner.errors import NotFound, ProvisionError, Unreachable


def status(ctx: Context, ref: RunRef) -> RunOnHost:
    """What the run's host says of it; as last seen when it does not answer.

    Raises NotFound when neither knows it.
    """
    try:
        with ctx.connect(ctx.host(ref.host)) as worker:
            _, rows = worker.call("runs", ids=[ref.id], full=True)
            found = seen_one(ctx, worker, ref.id, rows)
    except (Unreachable, ProvisionError) as error:
        found = last_seen(ctx, ref.id, str(error))
        if found is None:
            raise
    finally:
        ctx.report.done()
    if found is None:
        raise NotFound(f"{ref.host}: no run {ref.id} there any more", "runner ps --all")
    return found
