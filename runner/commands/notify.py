"""Notifications: what is set, and whether it works."""

from __future__ import annotations

from collections.abc import Sequence

import click

from runner.commands.invocation import open_output, open_project, read_keys
from runner.errors import HostError, SpecError, WorkerError
from runner.usage import Commands, output_options


class _ShownAlone(Commands):
    """A group that alone does what `show` does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        alone = not args or args[0] == "--json" or args[0].startswith("--color")
        return super().parse_args(ctx, ["show", *args] if alone else args)


@click.group(cls=_ShownAlone)
def notify() -> None:
    """Show how you hear of runs, or try it.

    It is set in ~/.config/runner/notify.toml (docs/notifications.md): a webhook, a command, a
    heartbeat. Workers get it with the next submit, or with `notify test`.
    """


@notify.command()
@output_options
def show(as_json: bool, colour: str) -> None:
    """Show what is set, secrets masked, and what did not arrive."""
    from runner.app import notify as use
    from runner.show import notify as tables

    out = open_output(as_json, colour)
    found = use.show()
    if as_json:
        out.document(tables.document(found))
    else:
        out.lines(tables.lines(found))


@notify.command()
@click.argument("words", metavar="[host=H]", nargs=-1)
@output_options
def test(words: Sequence[str], as_json: bool, colour: str) -> int:
    """Send a test: from the worker of a host, or from here and every host of the project.

    The settings are brought there first. 0 when all arrived, 5 when something did not, 3 when a
    host could not be asked.

    \b
    Examples:
      runner notify test
      runner notify test host=gpu1
    """
    keys = read_keys(words, "host")
    from runner.app import notify as use
    from runner.show import notify as tables

    out = open_output(as_json, colour)
    try:
        ctx = open_project(out)
    except SpecError:
        if "host" in keys:
            raise
        ctx = None  # in no project: from here alone
    found = use.test(ctx, keys.get("host"))
    if as_json:
        out.document(tables.document(found))
    else:
        out.table(tables.rows(found))
    bad = [row for row in found.rows if not row.ok]
    if any(row.status is not None for row in bad):
        return HostError.status
    return WorkerError.status if bad else 0
