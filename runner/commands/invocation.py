"""What every command begins with: its output, its project, its words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from runner.errors import RunFailed, SpecError

if TYPE_CHECKING:
    from runner.app.context import Context
    from runner.app.results import RunOnHost
    from runner.output import Output


_SCALES = {"k": 1000, "M": 1_000_000, "G": 1_000_000_000}


@dataclass
class Invocation:
    """What the commands of one call share."""

    command: list[str] | None = None
    """The words after `--`."""
    out: Output | None = None
    """Set once a command has begun to speak."""


def open_output(as_json: bool, colour: str) -> Output:
    from runner.output import Output

    out = Output(as_json=as_json, colour=colour)
    invocation = click.get_current_context().find_object(Invocation)
    if invocation is not None:
        invocation.out = out
    return out


def open_project(out: Output) -> Context:
    from runner.app.context import open_context

    return open_context(out.report)


def asker() -> Callable[[str], str] | None:
    """Puts a question to whoever sits at the terminal; None where nobody does, as under cron."""
    return _ask if sys.stdin.isatty() and sys.stderr.isatty() else None


def _ask(question: str) -> str:
    """The answer typed on the terminal; nothing at its end."""
    from runner.show.screen import escaped

    sys.stderr.write(escaped(question))
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def read_keys(words: Sequence[str], *allowed: str) -> dict[str, str]:
    if not words:
        return {}
    from runner.spec import parse_keys

    return parse_keys(words, allowed)


def require_runs(command: str, words: Sequence[str]) -> None:
    if not words:
        raise SpecError(f"{command} needs RUN: an id, name:TEXT or tag:TEXT", "runner ps")


def read_duration(option: str, text: str) -> float:
    from runner.fields import parse_duration, said

    try:
        return parse_duration(text)
    except ValueError as error:
        raise SpecError(f"{option} is {said(text)}; {error}") from error


def read_since(text: str) -> float:
    """Seconds since the epoch. Raises SpecError."""
    import time

    from runner.fields import said
    from runner.moments import parse_since

    try:
        return parse_since(text, time.time())
    except ValueError as error:
        raise SpecError(f"--since is {said(text)}; {error}") from error


def read_step(text: str) -> int:
    """A step as people type it: 50_000, 50k, 2e6, 1.5M."""
    from runner.fields import said

    number, scale = text, 1
    if text[-1:] in _SCALES:
        number, scale = text[:-1], _SCALES[text[-1]]
    try:
        step = float(number) * scale
        if not (0 <= step < 2**63 and step.is_integer()):
            raise ValueError
    except ValueError:
        raise SpecError(f"--at is {said(text)}; it is a step, as 50000, 50k or 2e6") from None
    return int(step)


def wait_for(ctx: Context, words: Sequence[str], timeout_s: float | None) -> list[RunOnHost]:
    from runner.app import runs, wait

    return wait.wait(ctx, runs.find_all(ctx, words), timeout_s)


def report_endings(out: Output, ended: Sequence[RunOnHost]) -> int:
    """0 when all are done, else 1 and a line for each that is not."""
    for run in ended:
        if run.status.outcome != "done":
            out.error(out.failed(run))
        else:
            out.report.note(out.ending(run))
    return ending_status(ended)


def ending_status(ended: Sequence[RunOnHost]) -> int:
    return 0 if all(run.status.outcome == "done" for run in ended) else RunFailed.status
