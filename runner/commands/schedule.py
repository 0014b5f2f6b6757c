"""Runs at times, by the user's crontab."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from runner.commands.invocation import Invocation, open_output, open_project
from runner.errors import HostError, RunnerError, SpecError, Unreachable
from runner.usage import Commands, output_options

if TYPE_CHECKING:
    from runner.output import Output
    from runner.schedule.definition import Schedule

_SHOWN = 5


@click.group(cls=Commands)
def schedule() -> None:
    """Train nightly: submits at times, by your crontab.

    Times are those of a zone: a time that the clocks jump over, or that comes twice, fires once.
    """


@schedule.command("add")
@click.argument("words", metavar="NAME 'CRON' [tz=Z …] [key=value …] [-- CMD ARG…]", nargs=-1)
@output_options
@click.pass_obj
def add(invocation: Invocation, words: Sequence[str], as_json: bool, colour: str) -> None:
    """Add a schedule, once it was tried as cron would start it.

    \b
    CRON is five fields in quotes (minute hour day month weekday) or a word such
    as @daily. Words of its own, all others are those of runner submit:
      tz=Europe/Berlin            the zone of its times; this machine's
      overlap=skip|queue|cancel   when the last one has not ended: no new run
                                  (skip), wait for it, or cancel it
      missed=once|skip            after the machine was off: one run, or none
      code=fixed|tree|git:BRANCH  the code of now (until update), the folder as
                                  it is then, or that branch as it is then

    \b
    Examples:
      runner schedule add nightly "30 2 * * *" host=gpu1 job=dqn seed=1..3
      runner schedule add weekly "0 22 * * fri" tz=Europe/Berlin job=ppo
    """
    from runner.app import schedule as use

    if len(words) < 2:
        raise SpecError("schedule add needs NAME and CRON", "runner schedule add --help")
    name, cron, *rest = words
    if any("=" not in word and not word.startswith("secret.") for word in rest):
        raise SpecError(
            f"CRON is one word, in quotes: runner schedule add {name} '30 2 * * *' …",
            "nothing was scheduled",
        )
    out = open_output(as_json, colour)
    _told(out, use.add(open_project(out), name, cron, rest, invocation.command))


@schedule.command("list")
@output_options
def list_(as_json: bool, colour: str) -> None:
    """List this project's schedules."""
    from runner.app import schedule as use
    from runner.cron import has_daemon
    from runner.show import schedules as show

    out = open_output(as_json, colour)
    found = use.list_all(open_project(out))
    now = time.time()
    if as_json:
        out.made([], **show.list_document(found))
    elif found:
        out.table(show.schedule_rows(found, now))
    else:
        out.report.note("no schedules of this project")
    for text in show.advice(found, now, has_cron=has_daemon()):
        out.warn(text)
    for text in show.lost(use.lost_lines(), use.stranded()):
        out.warn(text)
    for text in show.notes(found, now):
        out.report.note(text)


@schedule.command("next")
@click.argument("name")
@click.option("--from", "start", metavar="TIME", help="After this time; in its zone; else now.")
@click.option("--count", type=click.IntRange(1, 10_000), default=_SHOWN, metavar="N")
@output_options
def next_(name: str, start: str | None, count: int, as_json: bool, colour: str) -> None:
    """Print when it fires next, one instant a line, with its offset.

    \b
    Examples:
      runner schedule next nightly
      runner schedule next nightly --from 2027-03-27 --count 2
    """
    from runner.app import schedule as use
    from runner.show import schedules as show

    out = open_output(as_json, colour)
    found, times = use.next_of(open_project(out), name, start, count)
    out.made(show.firing_lines(found, times), **show.next_document(found, times))
    if found.paused:
        out.warn(
            f"{name} is paused; it fires at none of these before: runner schedule resume {name}"
        )


@schedule.command()
@click.argument("name")
@output_options
def run(name: str, as_json: bool, colour: str) -> None:
    """Submit its runs now, and print their ids."""
    from runner.app import schedule as use

    out = open_output(as_json, colour)
    use.run_now(open_project(out), name, out.submitted)


@schedule.command()
@click.argument("name")
@output_options
def pause(name: str, as_json: bool, colour: str) -> None:
    """Have it fire no more, until resume."""
    from runner.app import schedule as use

    out = open_output(as_json, colour)
    use.pause(open_project(out), name)
    out.made([], name=name, paused=True)


@schedule.command()
@click.argument("name")
@output_options
def resume(name: str, as_json: bool, colour: str) -> None:
    """Have it fire again; what came meanwhile is not made up for."""
    from runner.app import schedule as use

    out = open_output(as_json, colour)
    _told(out, use.resume(open_project(out), name))


@schedule.command()
@click.argument("name")
@click.argument("words", metavar="['CRON'] [tz= overlap= missed= code=]", nargs=-1)
@output_options
def update(name: str, words: Sequence[str], as_json: bool, colour: str) -> None:
    """Take its code anew, and what else is given; it is tried once more.

    \b
    Examples:
      runner schedule update nightly
      runner schedule update nightly "0 3 * * *" overlap=queue
    """
    from runner.app import schedule as use

    cron = words[0] if words and "=" not in words[0] else None
    out = open_output(as_json, colour)
    ctx = open_project(out)
    _told(out, use.update(ctx, name, cron, words if cron is None else words[1:]))


@schedule.command()
@click.argument("name")
@output_options
def remove(name: str, as_json: bool, colour: str) -> None:
    """Have it fire no more, and forget it; its runs stay."""
    from runner.app import schedule as use

    out = open_output(as_json, colour)
    use.remove(open_project(out), name)
    out.made([], name=name)


@schedule.command(hidden=True)
@click.argument("key")
@click.option("--try", "tries", is_flag=True)
def fire(key: str, tries: bool) -> int:
    """What cron calls."""
    from runner.app import looking
    from runner.fields import valid_name
    from runner.schedule_files import Shelf, schedules_folder

    if not valid_name(key):
        raise SpecError(f"{key!a} is no schedule")
    shelf = Shelf(schedules_folder() / key)
    try:
        if tries:
            from runner.app.firing import try_out

            try_out(shelf)
        else:
            looking.come_by(shelf)
    except Unreachable as error:
        from runner.output import error_text

        click.echo(f"unreachable: {error_text(error)}", err=True, nl=False)
        return HostError.status
    except RunnerError as error:
        if not tries and shelf.folder.is_dir():
            shelf.say(error.message)
        raise
    return 0


def _told(out: Output, found: Schedule) -> None:
    """When it fires next, which shows what the expression means."""
    from runner.app import schedule as use
    from runner.show import schedules as show

    times = [] if found.paused else use.upcoming(found, time.time(), _SHOWN)
    out.made(show.firing_lines(found, times), **show.next_document(found, times))
