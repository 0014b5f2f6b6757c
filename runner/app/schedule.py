"""Schedules: adding, changing, removing them, and what is to be seen of them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from runner import cron
from runner.app.asked import resolve_request
from runner.app.context import Context
from runner.app.firing import Log, context_of, request_of
from runner.app.schedule_code import changed_files, code_context, code_kept, put_back, take_code
from runner.app.submit import read_code, submit
from runner.errors import NotFound, ProvisionError, RunnerError, SpecError
from runner.fields import said
from runner.manifest import Snapshot
from runner.schedule import crontab
from runner.schedule.definition import (
    FIXED,
    OWN_KEYS,
    PASSED_ON,
    SUBMITTED,
    Fired,
    Progress,
    Schedule,
    again,
    check_name,
    find_zone,
    parse_own,
)
from runner.schedule.expression import parse_expression
from runner.schedule.instants import Firing, firings
from runner.schedule_files import Shelf, find_shelf, new_shelf, read_all, schedules_folder

_UNREACHED = 3
"""Exit status of a try that found everything right but the host silent."""
_NO_RUNNER = "No module named"


@dataclass(frozen=True)
class Seen:
    """A schedule as `list` shows it."""

    schedule: Schedule
    progress: Progress | None
    """None: its record is damaged."""
    next: Firing | None
    fires: bool
    """Its line is in the crontab."""
    looked: float | None
    states: tuple[str, ...] = ()
    """Of the runs of its last firing, as last seen."""
    changed: int = 0
    """Files of the project that differ from its code."""
    said_last: str = ""
    """The last line of its log."""


def add(
    ctx: Context, name: str, cron_text: str, words: Sequence[str], command: Sequence[str] | None
) -> Schedule:
    """Have it fire by the user's crontab, once it was tried as cron would start it.

    Raises SpecError, NotFound, Conflict and what a firing would meet; then nothing is left of it.
    """
    check_name(name)
    expression = parse_expression(cron_text)
    typed = parse_own(words)
    zone = typed.own.get("tz") or local_zone()
    find_zone(zone)
    schedule = Schedule(
        name=name,
        key="",
        root=str(ctx.project.root),
        project=ctx.project.id,
        cron=" ".join(cron_text.split()),
        zone=zone,
        overlap=typed.own.get("overlap", Schedule.overlap),
        missed=typed.own.get("missed", Schedule.missed),
        code=typed.own.get("code", Schedule.code),
        words=typed.rest,
        command=None if command is None else tuple(command),
        cwd=os.getcwd(),
        env={key: os.environ[key] for key in PASSED_ON if key in os.environ},
        python=sys.executable,
    )
    resolve_request(ctx, request_of(schedule, "add"), many=True)
    cron.read_crontab()
    next(firings(expression, schedule.tz, time.time()))
    with new_shelf(ctx.project.root, name) as shelf:
        schedule = replace(schedule, key=shelf.key)
        try:
            shelf.put_progress(Progress(handled=time.time()))
            return _put(ctx, shelf, schedule)
        except BaseException:
            with contextlib.suppress(RunnerError, OSError):
                _drop_line(shelf.key)  # it may stand there by now
            shelf.remove()
            raise


def update(ctx: Context, name: str, cron_text: str | None, words: Sequence[str]) -> Schedule:
    """Take its code anew, and what else is given; tried as with `add`, and as it was if not."""
    typed = parse_own(words)
    shelf = find_shelf(ctx.project.root, name)
    with shelf.locked():
        before = shelf.read()
        if typed.rest:
            raise SpecError(
                f"{said(typed.rest[0])} is a word of the submit; update changes CRON,"
                f" {', '.join(OWN_KEYS)}, and takes the code anew; for another submit:",
                *(f"  {line}" for line in again(before, typed.rest)),
                "nothing was changed",
            )
        text = before.cron if cron_text is None else " ".join(cron_text.split())
        parse_expression(text)
        schedule = replace(
            before,
            cron=text,
            zone=typed.own.get("tz", before.zone),
            overlap=typed.own.get("overlap", before.overlap),
            missed=typed.own.get("missed", before.missed),
            code=typed.own.get("code", before.code),
            python=sys.executable,
        )
        line = crontab.line_of(_crontab_of(before), shelf.key)
        with code_kept(shelf):
            try:
                schedule = _put(ctx, shelf, schedule)
                if (schedule.cron, schedule.zone) != (before.cron, before.zone):
                    # what another expression would have fired before now was not missed
                    shelf.change(lambda old: replace(old, handled=time.time()))
                return schedule
            except BaseException:
                shelf.write(before)
                with contextlib.suppress(RunnerError, OSError):
                    _put_back_line(line, shelf.key)
                raise


def _crontab_of(schedule: Schedule) -> bytes:
    """The crontab, as far as this schedule has to do with it. Raises ProvisionError."""
    return b"" if schedule.paused else cron.read_crontab() or b""


def _put_back_line(line: bytes | None, key: str) -> None:
    """The line as it was; None: there was none."""
    if line is None:
        _drop_line(key)
    else:
        cron.change_crontab(lambda text: crontab.added(text, line, key), _crontab_lock())


def _put(ctx: Context, shelf: Shelf, schedule: Schedule) -> Schedule:
    """Its code, its file, the try, its line: in this order."""
    ctx.report.step("taking the code")
    take_code(ctx, schedule, shelf)
    schedule = replace(schedule, code_at=time.time())
    if schedule.paused:
        shelf.write(schedule)
        return schedule
    ctx.report.step("trying it as cron would start it")
    schedule = _tried(ctx, shelf, schedule)
    shelf.write(schedule)
    _put_line(schedule)
    ctx.report.done()
    if not cron.has_daemon():
        ctx.report.warn("no cron runs here now: nothing fires until one does")
    return schedule


def _put_line(schedule: Schedule) -> None:
    key = schedule.key
    minutes = crontab.minutes_field(schedule.expression.minutes, often=schedule.overlap == "queue")
    ours = crontab.line(minutes, crontab.command(schedule.python, schedule.flags, key), key)
    cron.change_crontab(lambda text: crontab.added(text, ours, key), _crontab_lock())


def _drop_line(key: str) -> None:
    cron.change_crontab(lambda text: crontab.removed(text, key), _crontab_lock())


def _crontab_lock() -> Path:
    return schedules_folder() / ".crontab.lock"


def _tried(ctx: Context, shelf: Shelf, schedule: Schedule) -> Schedule:
    """It with what its Python must be started with. Raises what a firing would meet under cron.

    -I keeps what lies in the home folder from being imported; where the runner is installed for
    this user alone it cannot be found so.
    """
    env = cron.bare_environment(cron.read_crontab() or b"", schedule.key)
    shelf.write(schedule)
    home = os.path.expanduser("~")
    if schedules_folder(env["HOME"]) != schedules_folder(home):
        raise ProvisionError(
            f"cron's HOME is {env['HOME']}, yours {home}: it would not find this",
            f"put HOME={home} above all else in your crontab: crontab -e",
            "nothing was scheduled",
        )
    for flags in (("-I",), ()):
        command = crontab.command(schedule.python, flags, schedule.key) + " --try"
        done = cron.try_bare(command, env)
        said_there = done.stderr.decode("utf-8", "replace").strip()
        if done.returncode == 0:
            return replace(schedule, flags=flags)
        if _NO_RUNNER not in said_there:
            break
    lines = said_there.splitlines() or [f"it ended with {done.returncode}"]
    if done.returncode == _UNREACHED and "\n".join(lines).startswith("unreachable: "):
        lines[0] = lines[0].removeprefix("unreachable: ")
        ctx.report.warn("\n".join([f"{schedule.name}: added, though now {lines[0]}", *lines[1:]]))
        return replace(schedule, flags=flags)
    if _NO_RUNNER in said_there:
        lines = [
            f"{schedule.python} has no runner in it without your environment",
            "install it there: pip install runner",
        ]
    raise _refused(done.returncode, lines, env)


def _refused(status: int, lines: Sequence[str], env: dict[str, str]) -> RunnerError:
    """What the try said, as the error it was there."""
    kinds = {kind.status: kind for kind in RunnerError.__subclasses__()}
    kind = kinds.get(status, ProvisionError)
    from runner.carriers.ssh_failures import LOCKED

    first, *rest = lines
    advice = [line.strip() for line in rest]
    if LOCKED in first:
        advice = [
            "cron has no agent: make a key without a passphrase, let it in there, and name it in",
            "the ssh config (IdentityFile):",
            "  ssh-keygen -t ed25519 -N '' -f ~/.ssh/id_schedules",
        ]
    bare = f"tried as cron starts it: HOME={env['HOME']} PATH={env['PATH']}, no agent, no terminal"
    return kind(first, *advice, bare, "nothing was scheduled")


def remove(ctx: Context, name: str) -> None:
    """Have it fire no more, and forget it; its runs stay. Raises NotFound, Conflict.

    name: also the key of one whose project is gone, or of which only the crontab's line is left.
    """
    try:
        shelf = find_shelf(ctx.project.root, name)
    except NotFound:
        if name in lost_lines():
            _drop_line(name)
            return
        found = [each for each, schedule in stranded() if each.key == name]
        if not found:
            raise
        shelf = found[0]
    with shelf.locked():
        _drop_line(shelf.key)
        shelf.remove()


def stranded() -> list[tuple[Shelf, Schedule]]:
    """Schedules of projects that are not where they were: none of their firings makes a run."""
    return [found for found in read_all() if not os.path.isdir(found[1].root)]


def lost_lines() -> list[str]:
    """Keys of lines of ours in the crontab that lead to no schedule."""
    try:
        keys = crontab.keys(cron.read_crontab() or b"")
    except ProvisionError:
        return []
    return [key for key in keys if not Shelf(schedules_folder() / key).exists()]


def pause(ctx: Context, name: str) -> None:
    """Have it fire no more until `resume`."""
    shelf = find_shelf(ctx.project.root, name)
    with shelf.locked():
        schedule = shelf.read()
        shelf.write(replace(schedule, paused=True))
        _drop_line(shelf.key)


def resume(ctx: Context, name: str) -> Schedule:
    """Have it fire again; what came while it was paused was not missed."""
    shelf = find_shelf(ctx.project.root, name)
    with shelf.locked():
        schedule = replace(shelf.read(), paused=False)
        shelf.change(lambda old: replace(old, handled=max(old.handled, time.time())))
        schedule = _tried(ctx, shelf, schedule)
        _put_line(schedule)
        shelf.write(schedule)
        return schedule


def run_now(ctx: Context, name: str, announce: Callable[[list[str], str], None]) -> None:
    """Submit its runs now, whatever else of it runs; ids are drawn as for any submit.

    announce: is given the ids and the host.
    """
    shelf = find_shelf(ctx.project.root, name)
    with shelf.locked():
        schedule = shelf.read()
        at = time.time()
        local = f"{datetime.fromtimestamp(at, schedule.tz):%Y-%m-%dT%H:%M:%S} by hand"
        request = request_of(schedule, "by hand")
        asked = replace(context_of(schedule, Log(shelf)), report=ctx.report)
        put_back(shelf)
        code, frozen = code_context(asked, schedule, shelf)

        def made(ids: list[str]) -> None:
            announce(ids, request.host)
            fired = Fired(local, at, SUBMITTED, ids=tuple(ids), told_at=at)
            try:
                shelf.change(lambda old: old.with_fired(fired))
            except RunnerError as error:  # the runs are made all the same
                ctx.report.warn(f"{name}: these runs are not remembered as its own: {error}")

        submit(code, request, made, many=True, frozen=frozen)


def next_of(
    ctx: Context, name: str, start: str | None, count: int
) -> tuple[Schedule, list[Firing]]:
    """The next instants at which it fires. Raises NotFound, SpecError."""
    schedule = find_shelf(ctx.project.root, name).read()
    after = time.time() if start is None else parse_time(start, schedule)
    return schedule, upcoming(schedule, after, count)


def upcoming(schedule: Schedule, after: float, count: int) -> list[Firing]:
    """The next instants of a schedule."""
    return list(itertools.islice(firings(schedule.expression, schedule.tz, after), count))


def parse_time(text: str, schedule: Schedule) -> float:
    """`2027-03-27`, `2027-03-27 02:30` in the schedule's zone, or with an offset of its own."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        raise SpecError(
            f"--from is {said(text)}; it must be as '2027-03-27', '2027-03-27 02:30' or with +01:00"
        ) from None
    if not 1970 < moment.year < 2200:
        raise SpecError(f"--from is {said(text)}; it must lie after 1970 and before 2200")
    at = moment if moment.tzinfo is not None else moment.replace(tzinfo=schedule.tz)
    return at.timestamp()


def list_all(ctx: Context) -> list[Seen]:
    """The schedules of this project."""
    found = read_all(ctx.project.root)
    text = cron.read_crontab() or b"" if found else b""
    current = functools.cache(lambda: read_code(ctx))  # once for all that have a copy of it
    return [_seen(ctx, shelf, schedule, text, current) for shelf, schedule in found]


def _seen(
    ctx: Context, shelf: Shelf, schedule: Schedule, text: bytes, current: Callable[[], Snapshot]
) -> Seen:
    try:
        progress: Progress | None = shelf.progress()
    except RunnerError:
        progress = None
    paused = schedule.paused
    fired = progress.fired if progress is not None else ()
    last = next((each for each in reversed(fired) if each.state == SUBMITTED), None)
    records = [ctx.store.record(run) for run in (last.ids if last else ())]
    return Seen(
        schedule,
        progress,
        next=None if paused else next(iter(upcoming(schedule, time.time(), 1)), None),
        fires=crontab.line_of(text, schedule.key) is not None,
        looked=shelf.looked(),
        states=tuple(
            str(record.run.get("outcome") or record.run.get("state"))
            for record in records
            if record
        ),
        changed=_changed(shelf, current) if schedule.code == FIXED else 0,
        said_last=shelf.said_last(),
    )


def _changed(shelf: Shelf, current: Callable[[], Snapshot]) -> int:
    try:
        return changed_files(shelf, current())
    except RunnerError:
        return 0


def local_zone() -> str:
    """The zone of this machine by its name. Raises SpecError where it has none."""
    text = cron.machine_zone()
    if not text:
        return "UTC"
    try:
        find_zone(text)
    except SpecError as error:
        told = f"the zone of this machine is {said(text)}, which is none that is known here"
        raise SpecError(told, "say in which zone it is meant: tz=Europe/Berlin") from error
    return text


def shown_words(schedule: Schedule) -> str:
    """What it submits, as typed."""
    command = [] if schedule.command is None else ["--", *schedule.command]
    return shlex.join([*schedule.words, *command])
