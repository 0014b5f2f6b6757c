"""Which version runs where."""

from __future__ import annotations

import platform
import time

from runner import __version__, wire
from runner.app import retrying
from runner.app.context import Context, contact_of, silent, unread
from runner.app.many import on_hosts
from runner.app.reports import WorkerVersion
from runner.app.results import Contact
from runner.endpoint import Worker
from runner.errors import ProvisionError, Unreachable

HERE = "here"


def version(ctx: Context, host: str | None, everyone: bool = False) -> list[WorkerVersion]:
    """This client's versions; with a host also its worker's, with `everyone` those of all hosts.

    Raises NotFound, and for a host that was named what is wrong with it.
    """
    own = {"runner": __version__, "wire": wire.WIRE, "python": platform.python_version()}
    rows = [WorkerVersion(HERE, Contact(HERE, "ok", time.time()), own)]
    asked = [ctx.host(host)] if host else list(ctx.hosts.values()) if everyone else []
    if everyone and not host:
        rows += [WorkerVersion(contact.host, contact) for contact in unread(ctx)]
    answers = on_hosts(
        ctx,
        asked,
        lambda each, connect: retrying.look(ctx.report, connect, lambda worker: _ask(ctx, worker)),
        what="version",
    )
    for each, found, error in answers:
        if host and error is not None and not isinstance(error, (Unreachable, ProvisionError)):
            raise error
        rows.append(found or WorkerVersion(each.name, silent(each.name, error)))
    ctx.report.done()
    return rows


def _ask(ctx: Context, worker: Worker) -> WorkerVersion:
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
        "at_boot": reply.get("at_boot"),
    }
    return WorkerVersion(worker.host.name, contact_of(ctx, worker), facts)
