"""Drain: a host goes on with what runs there and starts nothing new, until it is undrained."""

from __future__ import annotations

from runner.app.context import Context
from runner.app.results import Drained
from runner.errors import WorkerError


def drain(ctx: Context, name: str, on: bool) -> Drained:
    """Let a host start nothing new, or (`on` False) take runs up again; what is there now."""
    with ctx.connect(ctx.host(name)) as worker:
        reply, _ = worker.call("drain", on=on)
    ctx.report.done()
    live, waiting = reply.get("live"), reply.get("waiting")
    if reply.get("drained") is not on or not isinstance(live, int) or not isinstance(waiting, int):
        raise WorkerError(f"{name}: the worker did not say whether it is drained")
    return Drained(name, on, live, waiting)
