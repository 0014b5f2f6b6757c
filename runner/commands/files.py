"""The files of runs."""

from __future__ import annotations

from pathlib import Path

import click

from runner.commands.invocation import open_output, open_project
from runner.usage import output_options


@click.command()
@click.argument("run", required=False)
@click.option("--to", "folder", metavar="DIR", help="Into this folder, not results/RUN/.")
@output_options
def pull(run: str | None, folder: str | None, as_json: bool, colour: str) -> None:
    """Bring a run's new and changed files here, verified.

    Into results/RUN/{checkpoints,logs,work}/. A file is whole and verified, or not there.

    \b
    Examples:
      runner pull
      runner pull dqn-7k3fa --to /data/dqn
    """
    from runner.app import runs
    from runner.app.pull import pull as fetch

    out = open_output(as_json, colour)
    ctx = open_project(out)
    out.pulled(fetch(ctx, runs.find_one(ctx, run), Path(folder) if folder else None))
