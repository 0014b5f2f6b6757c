"""Takes the worker of a `venv` host away; with `purge` all that was ever made there for it."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from runner.app.context import Context
from runner.app.reports import DownReport
from runner.carriers import Session
from runner.errors import Conflict, ProvisionError, SpecError
from runner.model import Host, ImagePin
from runner.placement import worker_key
from runner.provisioner import said_lines
from runner.remains import REMAINS, Remains, parse_remains
from runner.show.units import plural
from runner.venv_facts import VenvFacts
from runner.venv_host import VenvHost
from runner.worker_plan import check_workspace

_ASK_S = 60.0


def down_venv(
    ctx: Context,
    session: Session,
    host: Host,
    image: str | None,
    *,
    purge: bool,
    yes: bool,
    ask: Callable[[str], str] | None,
) -> DownReport:
    """The host's worker, taken away with its environments; see `down`."""
    if image is not None:
        raise SpecError(
            f"{host.name} is a venv: one worker has the environments of all its images",
            f"those that nobody needs any more:  runner gc host={host.name}",
        )
    pin = ctx.images.get(host.image) or ImagePin(host.image, "scratch", "", "", "0", ())
    there = VenvHost(session, host, pin, ctx.images)
    ctx.report.step(f"looking at {host.name}")
    facts = there.look()
    remains = _remains(session, host, facts)
    unpulled = [run for run in remains.runs if not ctx.store.pulled(run).get("complete")]
    if purge:
        check_workspace(host, facts.machine)
        if not yes:
            _confirm(ctx, host, remains, unpulled, ask)
    ctx.report.step("taking the worker away")
    done = there.take_away(facts, purge=purge)
    if purge:
        ctx.store.forget_worker(host.name)
    return DownReport(
        host=host.name,
        containers=(),
        purged=purge,
        runs=len(remains.runs),
        unpulled=tuple(unpulled) if purge else (),
        runtime="venv",
        removed=tuple(str(each) for each in done.get("removed") or ()),
    )


def _remains(session: Session, host: Host, facts: VenvFacts) -> Remains:
    cut = f"runner-{secrets.token_hex(8)}"
    words = [cut, worker_key(host), host.workspace]
    done = session.run(["sh", "-c", REMAINS, "runner", *words], timeout_s=_ASK_S)
    try:
        text = "\n" + done.stdout.decode("utf-8", "replace")
        return parse_remains(text, cut, facts.machine.uid)
    except ValueError as error:
        raise ProvisionError(f"{host.name}: {error}", *said_lines(done)) from error


def _confirm(
    ctx: Context,
    host: Host,
    remains: Remains,
    unpulled: list[str],
    ask: Callable[[str], str] | None,
) -> None:
    runs = f"with {plural(len(remains.runs), 'run')}" if remains.runs else "without a run"
    if unpulled:
        runs += f", not pulled here: {', '.join(unpulled[:5])}" + (" …" * (len(unpulled) > 5))
    going = f"the worker, its environments, workspace {host.workspace} {runs}"
    if ask is None:
        raise SpecError(
            f"down --purge takes away for good: {going}",
            "where nobody can be asked it needs --yes; nothing was taken away",
        )
    ctx.report.done()
    what = f", {plural(len(unpulled), 'run')} not pulled among it" if unpulled else ""
    ctx.report.note(going)
    question = f"Type yes to take all this away from {host.name}{what}: "
    if ask(question).strip().lower() != "yes":
        raise Conflict(f"{host.name}: nothing was taken away")
