"""Which version runs where."""

from __future__ import annotations

import platform
import time

from runner import __version__, wire
from runner.app.context import Context, on_hosts, silent
from runner.app.results import Contact, WorkerVersion
from runner.errors import ProvisionError, Unreachable
from runner.model import Host

HERE = "here"


def version(ctx: Context, host: str | None) -> list[WorkerVersion]:
    """This client's versions; with a host also its worker's. Raises NotFound."""
    own = {"runner": __version__, "wire": wire.WIRE, "python": platform.python_version()}
    rows = [WorkerVersion(HERE, Contact(HERE, "ok", time.time()), own)]
    if host is None:
        return rows
    for each, found, error in on_hosts([ctx.host(host)], lambda one: _ask(ctx, one)):
        if error is not None and not isinstance(error, (Unreachable, ProvisionError)):
            raise error
        rows.append(found or WorkerVersion(each.name, silent(each, error)))
    ctx.report.done()
    return rows


def _ask(ctx: Context, host: Host) -> WorkerVersion:
    with ctx.connect(host) as worker:
        reply, _ = worker.call("info")
        hello = worker.hello
        facts = {
            "runner": hello.get("version"),
            "wire": hello.get("wire"),
            "python": hello.get("python"),
            "worker": hello.get("worker"),
            "runtime": hello.get("runtime"),
            "image": hello.get("image"),
            "launchers": reply.get("live"),
            "gpus": reply.get("gpus"),
            "workspace": reply.get("workspace"),
        }
        return WorkerVersion(
            host.name, Contact(host.name, "ok", time.time(), None, worker.clock_skew_s), facts
        )
