"""Stopping runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from runner.commands.invocation import open_output, open_project, read_duration, read_keys
from runner.errors import Conflict, HostError, ProvisionError, SpecError
from runner.usage import output_options

if TYPE_CHECKING:
    from runner.app.reports import CancelReport
    from runner.app.results import Contact


@click.command()
@click.argument("words", metavar="RUN…", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every run of this project, on all hosts.")
@click.option("--now", is_flag=True, help="Kill at once, without time to save.")
@click.option("--until", metavar="D", help="Keep asking a host that is silent, so long (1h, 10m).")
@output_options
def cancel(
    words: Sequence[str], everything: bool, now: bool, until: str | None, as_json: bool, colour: str
) -> int:
    """Stop runs: ask, wait for the grace, then kill.

    Returns when their processes are gone and GPU memory is back. With host=H in place of RUN:
    every run of this project there. Runs of other projects go on. What could not be stopped is
    named on stderr; of several hosts the rest is done.

    \b
    Examples:
      runner cancel dqn-7k3fa
      runner cancel host=gpu1 --now
      runner cancel --all --until 1h
    """
    refs, host = _read_words(words, everything)
    until_s = None if until is None else read_duration("--until", until)
    from runner.app import cancel as use
    from runner.app import runs

    out = open_output(as_json, colour)
    ctx = open_project(out)
    order = use.Order(now, until_s)
    try:
        if refs:
            found, lost = runs.find_each(ctx, refs)
            if not found:
                raise lost[0][1]
            reports = use.cancel(ctx, found, order)
            out.cancelled(reports)
            for _, error in lost:
                out.warn("\n".join([error.message, *(f"  {line}" for line in error.advice)]))
            return _status(reports) or (lost[0][1].status if lost else 0)
        reports, unseen = use.cancel_all(ctx, host, order)
    except KeyboardInterrupt:
        out.cancelled([*order.reports.values(), *order.unended()], whole=not refs)
        for name in order.unknown():
            out.warn(f"{name}: interrupted; what runs there was NOT stopped")
        raise
    out.cancelled(reports, whole=True)
    for contact in unseen:
        text = (contact.error or f"{contact.host}: no answer").removesuffix(":")
        out.warn("\n".join([f"{text}; what runs there was NOT stopped", *_keep(contact, until_s)]))
    if any(contact.state == "unreachable" for contact in unseen):
        return HostError.status
    return _status(reports) or (ProvisionError.status if unseen else 0)


def _keep(contact: Contact, until_s: float | None) -> list[str]:
    """How to keep trying, where a host was silent and that was not asked for."""
    if contact.refused:
        return [f"  {line.strip()}" for line in contact.advice]
    if contact.state != "unreachable" or until_s is not None:
        return []
    return [f"  to keep trying: runner cancel host={contact.host} --until 1h"]


def _read_words(words: Sequence[str], everything: bool) -> tuple[Sequence[str], str | None]:
    """(the runs that were named, the host whose runs are meant); neither: those of all hosts."""
    keys = [word for word in words if "=" in word and not word.startswith(("name:", "tag:"))]
    host = read_keys(keys, "host").get("host")
    refs = [word for word in words if word not in keys]
    if refs and (everything or host is not None):
        other = "--all" if everything else f"host={host}"
        raise SpecError(f"cancel takes RUN or {other}, not both", "runner cancel --help")
    if not refs and not everything and host is None:
        advice = ("runner ps", "or all of them: runner cancel --all")
        raise SpecError("cancel needs RUN: an id, name:TEXT or tag:TEXT", *advice)
    return refs, host


def _status(reports: Sequence[CancelReport]) -> int:
    """Where some could not be stopped, the status of that; 3 where there are several."""
    missed = {report.status for report in reports if report.error is not None}
    if missed:
        return HostError.status if HostError.status in missed else max(missed)
    unproved = any(report.left or report.unread for report in reports if not report.ended_before)
    return Conflict.status if unproved else 0
