"""Takes the worker of a `venv` host away; with `purge` all that was ever made there for it."""

from __future__ import annotations

from runner.app.context import Context
from runner.app.reports import DownReport
from runner.app.steps import Ask, confirm_purge, forget_purged, pin_of, unpulled
from runner.carriers import Session
from runner.errors import SpecError
from runner.host_answers import read_remains
from runner.model import Host
from runner.show.units import plural
from runner.venv_host import VenvHost
from runner.worker_plan import check_workspace


def down_venv(
    ctx: Context,
    session: Session,
    host: Host,
    image: str | None,
    *,
    purge: bool,
    yes: bool,
    ask: Ask | None,
) -> DownReport:
    """The host's worker, taken away with its environments; see `down`."""
    if image is not None:
        raise SpecError(
            f"{host.name} is a venv: one worker has the environments of all its images",
            f"those that nobody needs any more:  runner gc host={host.name}",
        )
    there = VenvHost(session, host, pin_of(ctx, host.image), ctx.images)
    ctx.report.step(f"looking at {host.name}")
    facts = there.look()
    remains = read_remains(session, host, facts.machine.uid)
    lost = unpulled(ctx, remains) if purge else []
    if purge:
        check_workspace(host, facts.machine)
        if not yes:
            runs = f"with {plural(len(remains.runs), 'run')}" if remains.runs else "without a run"
            if lost:
                runs += f", not pulled here: {', '.join(lost[:5])}" + (" …" * (len(lost) > 5))
            going = f"the worker, its environments, workspace {host.workspace} {runs}"
            confirm_purge(ctx, host.name, [going], lost, ask)
    ctx.report.step("taking the worker away")
    done = there.take_away(facts, purge=purge)
    if purge:
        forget_purged(ctx, host.name)
    return DownReport(
        host=host.name,
        containers=(),
        purged=purge,
        runs=len(remains.runs),
        unpulled=tuple(lost),
        runtime="venv",
        removed=tuple(str(each) for each in done.get("removed") or ()),
    )
