"""`runner doctor`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from runner.commands.invocation import open_output, open_project, read_keys
from runner.errors import HostError, ProvisionError
from runner.usage import output_options


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
    healths = look(open_project(out), keys.get("host"))
    out.healths(healths, everything=everything)
    if any(health.contact != "ok" for health in healths):
        return HostError.status
    return ProvisionError.status if any(health.faults for health in healths) else 0
