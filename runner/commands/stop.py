"""Stopping runs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from runner.commands.invocation import open_output, open_project, require_runs
from runner.errors import Conflict, HostError, ProvisionError
from runner.usage import output_options


@click.command()
@click.argument("words", metavar="RUN…", nargs=-1)
@click.option("--now", is_flag=True, help="Kill at once, without time to save.")
@output_options
def cancel(words: Sequence[str], now: bool, as_json: bool, colour: str) -> int:
    """Stop runs: ask, wait for the grace, then kill.

    Returns when their processes are gone and GPU memory is back.
    """
    require_runs("cancel", words)
    from runner.app import runs
    from runner.app.cancel import cancel as stop

    out = open_output(as_json, colour)
    ctx = open_project(out)
    reports = stop(ctx, runs.find_all(ctx, words), now)
    out.cancelled(reports)
    if any(report.error is not None for report in reports):
        no_worker = all(report.contact == "no-worker" for report in reports if report.error)
        return ProvisionError.status if no_worker else HostError.status
    return Conflict.status if any(report.left for report in reports) else 0
