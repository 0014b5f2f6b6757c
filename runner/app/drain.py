"""Drain: a host goes on with what runs there and starts nothing new, until it is undrained."""

from __future__ import annotations

from runner.app import retrying
from runner.app.context import Context
from runner.app.reports import Drained
from runner.errors import OutcomeUnknown, WorkerError


def drain(ctx: Context, name: str, on: bool) -> Drained:
    """Let a host start nothing new, or (`on` False) take runs up again; what is there now.

    Raises OutcomeUnknown when the link broke for good after the request went out.
    """
    host = ctx.host(name)
    verb = "drain" if on else "undrain"
    unsure = OutcomeUnknown(
        f"{name}: the link broke; it may or may not be {verb}ed",
        f"the same again settles it: runner {verb} host={name}",
    )
    reply = retrying.act(
        ctx.report,
        lambda: ctx.connect(host),
        lambda worker: worker.call("drain", on=on)[0],
        unsure,
    )
    ctx.report.done()
    live, waiting = reply.get("live"), reply.get("waiting")
    if reply.get("drained") is not on or not isinstance(live, int) or not isinstance(waiting, int):
        raise WorkerError(f"{name}: the worker did not say whether it is drained")
    return Drained(name, on, live, waiting)
