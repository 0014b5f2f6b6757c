"""Notifications: their test, from here and from workers, and what did not arrive."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from runner import messages, notify_file
from runner.app import many
from runner.app.context import Context
from runner.app.reports import Delivery, NotifyReport
from runner.app.telling import command_env, left_here
from runner.app.wishes import NO_NETWORK, Wishes, read_wishes
from runner.endpoint import Worker
from runner.errors import SpecError
from runner.model import Host
from runner.show.undelivered import left_text

HERE = "here"


def test(ctx: Context | None, name: str | None) -> NotifyReport:
    """Send a test from a host's worker, or from here and from every one of the project.

    Raises SpecError when nothing is set or the file is wrong, NotFound.
    """
    wishes = read_wishes()
    if wishes.body is None:
        raise SpecError(f"there is no {notify_file.path_of()}", "what goes into it: runner notify")
    rows: list[Delivery] = []
    if name is None:
        rows += _test_here(wishes.body)
    hosts: list[Host] = []
    if ctx is not None:
        hosts = [ctx.host(name)] if name is not None else _hosts_of(ctx)
    if ctx is not None and hosts:
        rows += _test_there(ctx, wishes, hosts)
    return NotifyReport(str(notify_file.path_of()), wishes.body, tuple(rows))


def _hosts_of(ctx: Context) -> list[Host]:
    """Every host with a file; without any this machine's own."""
    named = [host for host in ctx.hosts.values() if host.source is not None]
    return named or list(ctx.hosts.values())


def _test_here(body: Mapping[str, Any]) -> list[Delivery]:
    """From this machine, as messages about schedules go out."""
    from runner import sending
    from runner.outbox import deliverers

    message = messages.test_message(
        messages.message_id("test", os.urandom(8).hex()), HERE, time.time()
    )
    rows = []
    for channel, way in deliverers(dict(body), env=command_env(), folder=_home()).items():
        result = way(message)
        rows.append(Delivery(HERE, channel, result.ok, result.text, result.took_s))
    if body.get("heartbeat"):
        result = sending.ping(dict(body), HERE)
        rows.append(Delivery(HERE, "heartbeat", result.ok, result.text, result.took_s))
    return rows


def _home() -> str:
    home = os.path.expanduser("~")
    return home if os.path.isdir(home) else "/"


def _test_there(ctx: Context, wishes: Wishes, hosts: Sequence[Host]) -> list[Delivery]:
    def ask(host: Host, connect: many.Connect) -> list[Delivery]:
        if host.network == "none":
            return [Delivery(host.name, "network", False, NO_NETWORK, 0.0)]
        with connect() as worker:
            return _read(host, _call(worker, wishes, test=True))

    rows: list[Delivery] = []
    found = many.on_hosts(ctx, hosts, ask, what="notify", patient=True, answer_s=None)
    ctx.report.done()
    for host, answer, error in found:
        if error is not None:
            text = error.message.removeprefix(f"{host.name}: ")
            rows.append(Delivery(host.name, "contact", False, text, 0.0, status=error.status))
        rows += answer or ()
    return rows


def _call(worker: Worker, wishes: Wishes, *, test: bool) -> dict[str, Any]:
    reply, _ = worker.call("notify", notify=wishes.request(worker.host), test=test)
    return reply


def _read(host: Host, reply: Mapping[str, Any]) -> list[Delivery]:
    """A worker's answer, whatever is in it."""
    rows = []
    tried = reply.get("tried")
    for row in tried if isinstance(tried, list) else ():
        if isinstance(row, dict):
            took: Any = row.get("took_s")
            seconds = float(took) if isinstance(took, (int, float)) else 0.0
            channel, text = str(row.get("channel")), str(row.get("text"))
            rows.append(Delivery(host.name, channel, row.get("ok") is True, text, seconds))
    if not rows:
        rows.append(Delivery(host.name, "worker", False, "it did not try anything", 0.0))
    left = left_text(reply.get("account"))
    if left is not None:
        rows.append(Delivery(host.name, "left", True, left, 0.0))
    return rows


def show() -> NotifyReport:
    """What is set, and what did not arrive of the messages that go out from here.

    Raises SpecError when the file is wrong.
    """
    wishes = read_wishes()
    rows = [Delivery(f"schedule {name}", "left", True, text, 0.0) for name, text in left_here()]
    return NotifyReport(str(notify_file.path_of()), wishes.body, tuple(rows))
