"""What goes on everywhere, looked at while it does."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from runner.commands.invocation import open_output, open_project, read_duration, read_keys
from runner.errors import HostError, SpecError
from runner.usage import output_options

if TYPE_CHECKING:
    from runner.app.top import Answer
    from runner.output import Output

EVERY_S = 2.0
LEAST_DRAW_S = 0.2
"""Between two drawings, however much comes; a key is answered at once."""
CLOCK_S = 1.0
"""Times go on by themselves."""


@click.command()
@click.argument("words", metavar="[host=H]", nargs=-1)
@click.option("--all", "everyone", is_flag=True, help="Runs of other projects, too.")
@click.option("--every", metavar="D", help="Ask each host so often (default: 2s).")
@click.option("--once", is_flag=True, help="Print it once and end.")
@output_options
def top(
    words: Sequence[str],
    everyone: bool,
    every: str | None,
    once: bool,
    as_json: bool,
    colour: str,
) -> int:
    """Watch hosts, their GPUs, and the runs that live or wait.

    On a terminal it goes on until q; h lists the keys. In a pipe, with --once, --json or TERM=dumb
    it looks once; a host that does not answer is shown as that, and 3 is the status.
    """
    keys = read_keys(words, "host")
    every_s = EVERY_S if every is None else read_duration("--every", every)
    if every_s < 1:
        raise SpecError("--every is less than a second", "runner top --help")
    out = open_output(as_json, colour)
    if not (once or as_json) and out.on_terminal:
        from runner.show.progress import is_dumb

        if not is_dumb():
            return _watch(out, keys.get("host"), everyone, every_s)
    from runner.app.top import once as look

    found = look(open_project(out), keys.get("host"), everyone)
    out.top(found, everyone=everyone)
    silent = any(host.contact.state == "unreachable" for host in found.hosts)
    return HostError.status if silent else 0


class _Kept:
    """A report for while the screen is ours: the last warning is shown there, all at the end."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        pass

    def step(self, text: str) -> None:
        pass

    def trouble(self, text: str) -> None:
        pass

    def done(self) -> None:
        pass

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def _watch(out: Output, host: str | None, everyone: bool, every_s: float) -> int:
    """Until somebody ends it; 0, or 128 and the number of the signal that did."""
    from runner.app.context import open_context
    from runner.app.top import Pages
    from runner.app.watching import Watch
    from runner.show.console import Console, Ended
    from runner.show.live import Place

    kept = _Kept()
    ctx = open_context(kept)
    hosts = [ctx.host(host)] if host else list(ctx.hosts.values())
    pages, place = Pages(ctx, everyone, named=host is not None), Place()
    try:
        with (
            Console(sys.stdin.fileno(), sys.stdout.fileno()) as console,
            Watch(ctx, hosts, everyone=everyone, every_s=every_s, on_news=console.wake) as watch,
        ):
            while True:
                answers = watch.answers()
                if host is not None:
                    _check_named(answers[0])
                page = pages.page(answers)
                said = kept.warnings[-1] if kept.warnings else ""
                drawn_at = time.monotonic()
                console.draw(out.screen(page, place, console.size(), everyone=everyone, said=said))
                pressed = console.wait(CLOCK_S)
                while not pressed and time.monotonic() - drawn_at < LEAST_DRAW_S:
                    pressed = console.wait(LEAST_DRAW_S - (time.monotonic() - drawn_at))
                for key in pressed:
                    if key == "quit":
                        return 0
                    if key == "r":
                        watch.again()
                    place.press(key)
    except Ended as end:
        return 128 + end.number
    finally:
        for text in kept.warnings:
            out.warn(text)


def _check_named(answer: Answer) -> None:
    """Raise what keeps us from the one host asked for, where asking again would not help."""
    from runner.app.runs import check_listed

    if answer.error is not None:
        check_listed(answer.host, answer.error, True)
