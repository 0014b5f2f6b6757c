"""`runner doctor`."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from runner.commands.invocation import open_output, open_project, read_keys
from runner.errors import HostError, ProvisionError
from runner.model import SCHEDULES
from runner.usage import output_options

if TYPE_CHECKING:
    from runner.app.context import Context
    from runner.output import Output


@click.command()
@click.argument("words", metavar="[host=H]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Show each check, also what is well.")
@output_options
def doctor(words: Sequence[str], everything: bool, as_json: bool, colour: str) -> int:
    """Find what keeps a run from starting on a host, and the way out.

    Without host= it looks at every host of the project, this machine among them. Nothing is changed
    there. A worker that is up also tries torch, on the GPUs that nobody has. It ends within 30 s
    whatever a host does: 0 with notes at most, 4 when a run would not start, 3 when a host cannot
    be reached.

    \b
    Examples:
      runner doctor host=gpu1
      runner doctor --all
    """
    keys = read_keys(words, "host")
    from runner.app.doctor import doctor as look

    out = open_output(as_json, colour)
    ctx = open_project(out)
    healths = look(ctx, keys.get("host"))
    out.healths(healths, everything=everything)
    if os.path.isdir(os.path.expanduser(SCHEDULES)):
        _look_at_schedules(out, ctx)
    if any(health.contact != "ok" for health in healths):
        return HostError.status
    return ProvisionError.status if any(health.faults for health in healths) else 0


def _look_at_schedules(out: Output, ctx: Context) -> None:
    """Says what keeps schedules from firing; without hosts that is no fault."""
    from runner.app.schedule import list_all
    from runner.cron import has_daemon
    from runner.show import schedules as show

    try:
        texts = show.advice(list_all(ctx), time.time(), has_cron=has_daemon())
    except ProvisionError as error:
        texts = [error.message]
    for text in texts:
        out.warn(text)
