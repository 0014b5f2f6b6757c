"""A run's output as it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runner.commands.invocation import open_output, open_project
from runner.errors import SpecError
from runner.usage import colour_option

if TYPE_CHECKING:
    from runner.app.context import Context
    from runner.app.results import RunOnHost
    from runner.output import Output

TAIL_LINES = 50
"""Lines a terminal begins with; all of them would scroll past anyway."""


@click.command()
@click.argument("run", required=False)
@click.option(
    "--rank", type=click.IntRange(min=0), default=0, metavar="N", help="Which rank's output."
)
@click.option(
    "--from",
    "start",
    type=click.IntRange(min=0, max=2**63 - 1),
    metavar="BYTE",
    help="Begin at this byte.",
)
@click.option(
    "-n",
    "lines",
    type=click.IntRange(min=0, max=2**63 - 1),
    metavar="LINES",
    help="Begin this many lines back.",
)
@click.option("-f", "--follow", is_flag=True, hidden=True)
@click.option("--no-follow", is_flag=True, help="Stop at the end of what is there.")
@colour_option
def tail(
    run: str | None,
    rank: int,
    start: int | None,
    lines: int | None,
    follow: bool,
    no_follow: bool,
    colour: str,
) -> None:
    """Follow a run's output: its own bytes, nothing added.

    In a pipe from the first byte, on a terminal the last 50 lines. It goes on through cuts and
    ends with the run. Ctrl-C ends the tail, never the run.

    \b
    Examples:
      runner tail dqn-7k3fa
      runner tail -n 200 --no-follow | less
      runner tail --from 0 --rank 1 > rank-1.log
    """
    if start is not None and lines is not None:
        raise SpecError("--from and -n are two ways to say where to begin; give one")
    out = open_output(False, colour)
    if start is None and lines is None:
        start, lines = (None, TAIL_LINES) if out.on_terminal else (0, None)
    follow_output(
        out, open_project(out), run, rank=rank, start=start, lines=lines, follow=not no_follow
    )


def follow_output(
    out: Output,
    ctx: Context,
    run: str | None,
    *,
    rank: int,
    start: int | None,
    lines: int | None,
    follow: bool = True,
) -> RunOnHost:
    """Writes a run's output to stdout until its end."""
    from runner.app import runs
    from runner.app.tail import tail as read_log
    from runner.show.rows import ending_line

    ref = runs.find_one(ctx, run)
    write, finish = out.job_writer()
    try:
        last = read_log(ctx, ref, rank, start, lines, follow, write, out.warn)
    except KeyboardInterrupt:
        finish()
        out.warn(f"{ref.id} goes on; back to it: runner tail {ref.id}")
        raise
    finish()
    outcome = last.status.outcome
    if outcome == "done":
        out.report.note(ending_line(last))
    elif outcome is not None:
        out.warn(ending_line(last))
    return last
