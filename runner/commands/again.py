"""Runs from runs: going on with one, making a new one from one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runner.commands.follow import follow_output
from runner.commands.invocation import (
    ending_status,
    open_output,
    open_project,
    report_endings,
    require_runs,
    wait_for,
)
from runner.errors import SpecError
from runner.usage import output_options

if TYPE_CHECKING:
    from runner.app.context import Context
    from runner.app.runs import RunRef
    from runner.grammar.changes import Changes
    from runner.output import Output

Function = TypeVar("Function", bound=Callable[..., Any])


def _options(function: Function) -> Function:
    """What the three commands take as submit does."""
    waits = click.option(
        "--wait", "waits", is_flag=True, help="Return when it has ended: 0 only if done."
    )
    tails = click.option(
        "--tail", "tails", is_flag=True, help="Follow its output; the id goes to stderr."
    )
    words = click.argument("words", metavar="RUN [key=value …]", nargs=-1)
    return words(waits(tails(output_options(function))))


@click.command()
@_options
def resume(words: Sequence[str], waits: bool, tails: bool, as_json: bool, colour: str) -> int:
    """Go on with an ended run, and print its id.

    From its newest checkpoint; it keeps its id, its code and its files. Parameters that its job
    names as resumable may change, and env.NAME; a run that is done goes on only with more
    steps. Its secrets are gone with its end: give secret.NAME again.

    \b
    Examples:
      runner resume dqn-7k3fa
      runner resume dqn-7k3fa steps=100_000 --tail
    """
    out = _open_output(tails, as_json, colour)
    ctx, ref, changes = _read(out, "resume", words)
    from runner.app.again import resume as go_on

    gone_on = go_on(ctx, ref, changes, _announce(out, ref.host, tails))
    if gone_on.checkpoint is None:
        out.warn(f"{ref.id} starts from zero: it has no checkpoint")
    return _follow(out, ctx, ref.id, waits, tails, start=gone_on.log_bytes)


@click.command()
@_options
@click.option("--fresh", is_flag=True, help="From zero, not from its newest checkpoint.")
def fork(
    words: Sequence[str], fresh: bool, waits: bool, tails: bool, as_json: bool, colour: str
) -> int:
    """Make a new run from where another one is.

    It begins with the newest checkpoint of its source. All parameters may change, and env.NAME
    name tags priority gpus grace time_limit restarts. It has the code of its source. The source
    may still be running; nothing of it changes.

    \b
    Examples:
      runner fork dqn-7k3fa lr=1e-4
      runner fork dqn-7k3fa --fresh batch_size=2048 name=large
    """
    out = _open_output(tails, as_json, colour)
    ctx, ref, changes = _read(out, "fork", words)
    from runner.app.again import fork as make

    announce = _announce(out, ref.host, tails)
    made = make(ctx, ref, changes, announce, fresh=fresh)
    return _follow(out, ctx, made.run.id, waits, tails)


@click.command()
@_options
def reproduce(words: Sequence[str], waits: bool, tails: bool, as_json: bool, colour: str) -> int:
    """Run the same once more, from zero.

    The same parameters, seed, code and image; prints the new id.

    \b
    Examples:
      runner reproduce dqn-7k3fa --wait
    """
    out = _open_output(tails, as_json, colour)
    ctx, ref, changes = _read(out, "reproduce", words)
    from runner.app.again import reproduce as make

    made = make(ctx, ref, changes, _announce(out, ref.host, tails))
    return _follow(out, ctx, made.run.id, waits, tails)


def _open_output(tails: bool, as_json: bool, colour: str) -> Output:
    if tails and as_json:
        raise SpecError("--tail and --json both want stdout; give one")
    return open_output(as_json, colour)


def _read(out: Output, command: str, words: Sequence[str]) -> tuple[Context, RunRef, Changes]:
    """The first word is a run, all others change it."""
    require_runs(command, [word for word in words[:1] if "=" not in word])
    from runner.app import runs
    from runner.grammar.changes import parse_changes

    changes = parse_changes(command, words[1:])
    ctx = open_project(out)
    return ctx, runs.find_one(ctx, words[0]), changes


def _announce(out: Output, host: str, tails: bool) -> Callable[[str], None]:
    def announce(run: str) -> None:
        if tails:
            out.warn(f"{run} on {host}; Ctrl-C leaves it running")
        else:
            out.submitted([run], host)

    return announce


def _follow(
    out: Output, ctx: Context, run: str, waits: bool, tails: bool, *, start: int = 0
) -> int:
    if tails:
        ended = [follow_output(out, ctx, run, rank=0, start=start, lines=None)]
        return ending_status(ended) if waits else 0
    return report_endings(out, wait_for(ctx, [run], None)) if waits else 0
