"""Stopping runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from runner.commands.invocation import open_output, open_project, read_keys
from runner.errors import Conflict, HostError, ProvisionError, SpecError
from runner.usage import output_options

if TYPE_CHECKING:
    from runner.app.results import CancelReport


@click.command()
@click.argument("words", metavar="RUN…", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every run of this project, on all hosts.")
@click.option("--now", is_flag=True, help="Kill at once, without time to save.")
@output_options
def cancel(words: Sequence[str], everything: bool, now: bool, as_json: bool, colour: str) -> int:
    """Stop runs: ask, wait for the grace, then kill.

    Returns when their processes are gone and GPU memory is back. With host=H in place of RUN:
    every run of this project there. Runs of other projects go on.

    \b
    Examples:
      runner cancel dqn-7k3fa
      runner cancel host=gpu1 --now
      runner cancel --all
    """
    refs, host = _read_words(words, everything)
    from runner.app import cancel as use
    from runner.app import runs

    out = open_output(as_json, colour)
    ctx = open_project(out)
    if refs:
        reports = use.cancel(ctx, runs.find_all(ctx, refs), now)
        out.cancelled(reports)
        return _status(reports)
    reports, unseen = use.cancel_all(ctx, host, now)
    out.cancelled(reports)
    for contact in unseen:
        text = contact.error or f"{contact.host}: no answer"
        out.warn(f"{text}; what runs there was NOT stopped")
    if any(contact.state == "unreachable" for contact in unseen):
        return HostError.status
    return _status(reports) or (ProvisionError.status if unseen else 0)


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
    if any(report.error is not None for report in reports):
        no_worker = all(report.contact == "no-worker" for report in reports if report.error)
        return ProvisionError.status if no_worker else HostError.status
    unproved = any(report.left or report.unread for report in reports if not report.ended_before)
    return Conflict.status if unproved else 0
