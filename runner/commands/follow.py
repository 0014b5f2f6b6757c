"""A run's output as it is written."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from runner.commands.invocation import open_output, open_project
from runner.errors import RunnerError, SpecError
from runner.usage import colour_option

if TYPE_CHECKING:
    from runner.app.context import Context
    from runner.app.results import RunOnHost
    from runner.app.tail import OnFirst
    from runner.output import Output

TAIL_LINES = 50
"""Lines a terminal begins with; all of them would scroll past anyway."""


@click.command()
@click.argument("run", required=False)
@click.option(
    "--rank", type=click.IntRange(min=0), metavar="N", help="Which rank's output; 0 unless told."
)
@click.option("--merged", is_flag=True, help="Every rank's, in whole lines: RANK| LINE.")
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
    rank: int | None,
    merged: bool,
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
      runner tail ppo-c41hd --merged
    """
    if start is not None and lines is not None:
        raise SpecError("--from and -n are two ways to say where to begin; give one")
    if merged and rank is not None:
        raise SpecError("--merged shows every rank; leave --rank out")
    if merged and start:
        raise SpecError("--from is a place in one rank's log; --merged takes -n, or --from 0")
    out = open_output(False, colour)
    if start is None and lines is None:
        start, lines = (None, TAIL_LINES) if out.on_terminal else (0, None)
    chosen = None if merged else rank or 0
    follow_output(
        out, open_project(out), run, rank=chosen, start=start, lines=lines, follow=not no_follow
    )


def follow_output(
    out: Output,
    ctx: Context,
    run: str | None,
    *,
    rank: int | None,
    start: int | None,
    lines: int | None,
    follow: bool = True,
    on_first: OnFirst | None = None,
) -> RunOnHost:
    """Writes a run's output to stdout until its end; rank: None for all of them, merged."""
    from runner.app import runs
    from runner.app import tail as logs
    from runner.show.rows import ending_line

    ref = runs.find_one(ctx, run)
    if rank is None:
        write_rank, finish = out.ranks_writer()
    else:
        write, finish = out.job_writer()
    try:
        if rank is None:
            last = logs.tail_all(ctx, ref, lines, follow, write_rank, out.warn)
        else:
            last = logs.tail(ctx, ref, rank, start, lines, follow, write, out.warn, on_first)
    except KeyboardInterrupt:
        finish()
        out.warn(f"{ref.id} goes on; back to it: runner tail {ref.id}")
        raise
    except RunnerError:
        with contextlib.suppress(OSError, RunnerError):
            finish()  # no colour is left on, no piece of a line kept back
        raise
    finish()
    outcome = last.status.outcome
    if outcome == "done":
        out.report.note(ending_line(last))
    elif outcome is not None:
        out.warn(ending_line(last))
    return last


def first_line_note(out: Output, began: float) -> OnFirst:
    """Says, at a new run's first line, what it waited for; began: when it was asked for, and it was
    queued by now (monotonic).
    """
    sent_s = time.monotonic() - began

    def note(queued_s: float | None) -> None:
        after_s = time.monotonic() - began
        queue_s = min(queued_s or 0.0, after_s - sent_s)
        parts = [("submit", sent_s), ("queue", queue_s), ("start", after_s - sent_s - queue_s)]
        told = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts)
        out.report.note(f"first line after {after_s:.1f}s: {told}")

    return note
