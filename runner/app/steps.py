"""What provision and down have in common, whatever the runtime: steps that are told and timed, and
the question before all goes for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from runner.app.context import Context
from runner.app.results import Report
from runner.carriers.base import OnLine
from runner.errors import Conflict, SpecError
from runner.model import ImagePin
from runner.remains import Remains
from runner.show.units import plural

T = TypeVar("T")
Ask = Callable[[str], str]
"""Puts a question to a person, and gives what was typed."""
WILL_NOT = "will not: use sudo, open a port, change sshd or your keys there"


class Steps:
    """How long each step took, and what it says meanwhile."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, do: Callable[[], T]) -> T:
        """What `do` gives; its time counts for this step, also where it fails."""
        began = time.monotonic()
        try:
            return do()
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    def rounded(self) -> dict[str, float]:
        """The same in whole milliseconds."""
        return {name: round(seconds, 3) for name, seconds in self.seconds.items()}

    def progress(self, what: str) -> OnLine:
        """Shows the lines of a command that takes long, one at a time."""

        def on_line(line: str) -> None:
            shown = "".join(sign if sign.isprintable() else " " for sign in line).strip()
            if shown:
                self._report.step(f"{what}: {shown[:60]}")

        return on_line


def pin_of(ctx: Context, name: str) -> ImagePin:
    """The pin of that name; of one that is not known any more the name alone."""
    return ctx.images.get(name) or ImagePin(name, "scratch", "", "", "0", ())


def unpulled(ctx: Context, remains: Remains) -> list[str]:
    """Runs there of which something was never pulled here."""
    return [run for run in remains.runs if not ctx.store.pulled(run).get("complete")]


def forget_purged(ctx: Context, host: str) -> None:
    """Forget the worker and the runs of a host whose workspace is gone; what was pulled stays."""
    ctx.store.forget_worker(host)
    for record in ctx.store.records():
        if record.host == host:
            ctx.store.forget(record.id)


def confirm_purge(
    ctx: Context, host: str, going: Sequence[str], lost: Sequence[str], ask: Ask | None
) -> None:
    """Let somebody decide over what would go for good. Raises Conflict unless they said yes,
    SpecError where nobody is there.

    lost: runs among it that were not pulled.
    """
    if ask is None:
        shown = "; ".join(" ".join(line.split()) for line in going)
        raise SpecError(
            f"down --purge takes away for good: {shown}",
            "where nobody can be asked it needs --yes; nothing was taken away",
        )
    ctx.report.done()
    for line in going:
        ctx.report.note(line)
    what = f", {plural(len(lost), 'run')} not pulled among it" if lost else ""
    question = f"Type yes to take all this away from {host}{what}: "
    if ask(question).strip().lower() != "yes":
        raise Conflict(f"{host}: nothing was taken away")
