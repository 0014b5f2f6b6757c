"""The files of runs: brought here, what they take there, deleted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from runner.commands.invocation import (
    asker,
    open_output,
    open_project,
    read_duration,
    read_keys,
    require_runs,
)
from runner.errors import HostError, SpecError, WrongState
from runner.usage import output_options


@click.command()
@click.argument("words", metavar="[RUN…]", nargs=-1)
@click.option("--to", "folder", metavar="DIR", help="Into this folder, not results/RUN/.")
@click.option("--what", metavar="W,…", help="Only checkpoints, logs, work, best, last or events.")
@click.option("--watch", "watches", is_flag=True, help="Again and again until the run has ended.")
@click.option("--every", metavar="D", help="With --watch: this long between two looks (adapts).")
@click.option("--mirror", is_flag=True, help="Remove here what `keep` rules removed there.")
@output_options
def pull(
    words: Sequence[str],
    folder: str | None,
    what: str | None,
    watches: bool,
    every: str | None,
    mirror: bool,
    as_json: bool,
    colour: str,
) -> int:
    """Bring runs' new and changed files here, verified.

    Into results/RUN/{checkpoints,logs,work}/; --json prints a document for each run. A file is
    whole and verified, or not there; logs grow where they lie. best and last are checkpoints,
    events the files TensorBoard reads.

    \b
    Examples:
      runner pull
      runner pull dqn-9x2mp              # of a sweep all its runs
      runner pull dqn-7k3fa --to /data/dqn
      runner pull --what last,logs
      runner pull --watch                # while it trains; TensorBoard can follow
    """
    from runner.app import runs
    from runner.app.pull import Wish
    from runner.app.pull import pull as fetch
    from runner.manifest import parse_what

    out = open_output(as_json, colour)
    wish = Wish(parse_what(what) if what is not None else (), mirror)
    every_s = None if every is None else read_duration("--every", every)
    if every_s is not None and not watches:
        raise SpecError("--every needs --watch", "runner pull --help")
    ctx = open_project(out)
    refs = runs.find_all(ctx, words or [runs.LATEST])
    if folder is not None and len(refs) > 1:
        raise SpecError(f"--to takes one run, and these are {len(refs)}", "runner pull --help")
    to = Path(folder) if folder else None
    if watches:
        from runner.app import repull

        reports = repull.watch(ctx, refs, to, wish, every_s, out.pulled_round)
    else:
        reports = []
        for ref in refs:
            reports.append(fetch(ctx, ref, to, wish))
            out.pulled(reports[-1])
        return WrongState.status if all(each.nothing_yet for each in reports) else 0
    for report in reports:
        out.pulled(report)
    return 0


@click.command()
@click.argument("words", metavar="[host=H]", nargs=-1)
@click.option("--all", "everyone", is_flag=True, help="Runs of every project.")
@output_options
def du(words: Sequence[str], everyone: bool, as_json: bool, colour: str) -> int:
    """Show what takes space on hosts.

    Run by run, and what all of them share. A file with several names counts once. Images and
    containers are not counted.

    \b
    Examples:
      runner du
      runner du host=gpu1 --all
    """
    keys = read_keys(words, "host")
    from runner.app import space
    from runner.show import tables

    out = open_output(as_json, colour)
    found = space.usage(open_project(out), keys.get("host"), everyone)
    if as_json:
        out.document(tables.space_document(found))
    else:
        if found.runs:
            out.table(*tables.run_space_rows(found, everyone=everyone))
            out.lines([""])
        rows, right = tables.host_space_rows(found)
        if len(rows) > 1:
            out.table(rows, right)
        out.report.note("images and containers are not counted")
    silent = [host.contact for host in found.hosts if host.contact.state != "ok"]
    for contact in silent:
        text = contact.error or f"{contact.host}: no answer"
        out.warn("\n".join([text, *(f"  {line.strip()}" for line in contact.advice)]))
    return HostError.status if any(each.state == "unreachable" for each in silent) else 0


@click.command()
@click.argument("words", metavar="RUN…", nargs=-1)
@click.option("--unpulled", is_flag=True, help="Also what was never pulled, unasked.")
@click.option("--dry-run", "dry", is_flag=True, help="Only show what would be deleted.")
@output_options
def rm(words: Sequence[str], unpulled: bool, dry: bool, as_json: bool, colour: str) -> int:
    """Delete ended runs on their hosts.

    Code, checkpoints, logs and records; what was pulled into results/ stays. A run that has not
    ended is refused, and so is one that was not fully pulled, unless you say so.

    \b
    Examples:
      runner rm dqn-7k3fa
      runner rm name:baseline --dry-run
    """
    require_runs("rm", words)
    from runner.app import runs, space
    from runner.show import tables

    out = open_output(as_json, colour)
    ctx = open_project(out)
    refs = runs.find_all(ctx, words)
    ask = None if as_json else asker()
    found = space.remove(ctx, refs, unpulled=unpulled, dry=dry, ask=ask)
    if as_json:
        out.document(tables.removal_document(found, dry=dry))
    else:
        out.table(tables.removal_rows(found, dry=dry), right=(2,))
    missed = [row for row in found if row.error is not None]
    for row in missed:
        out.warn(str(row.error))
    if not missed:
        return 0
    statuses = {row.status for row in missed}
    return HostError.status if HostError.status in statuses else max(statuses)


@click.command()
@click.argument("words", metavar="host=H", nargs=-1)
@click.option("--dry-run", "dry", is_flag=True, help="Only show what would be removed.")
@output_options
def gc(words: Sequence[str], dry: bool, as_json: bool, colour: str) -> None:
    """Remove what nobody needs on a host.

    Leftovers of what was cut, contents and worker programs without a user, and the code of ended
    runs: all of it once they were pulled, else what can be laid out again. Never a checkpoint or
    a log.

    \b
    Example:
      runner gc host=gpu1 --dry-run
    """
    keys = read_keys(words, "host")
    if "host" not in keys:
        raise SpecError("gc needs host=H", "runner host list")
    from runner.app import space
    from runner.show import tables

    out = open_output(as_json, colour)
    found = space.collect(open_project(out), keys["host"], dry)
    if as_json:
        out.document(tables.garbage_document(found))
    elif found.items:
        out.table(*tables.garbage_rows(found))
    else:
        out.report.note(f"{found.host}: nothing that nobody needs")
    for text in found.kept:
        out.report.note(f"{found.host}: {text}")
