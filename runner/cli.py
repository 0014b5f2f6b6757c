"""The commands: options in, one use case called, exit status out.

The argv is cut at the first `--` before Click sees it. What a command needs is imported by it, so
that `runner --help` stays quick.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner import __version__
from runner.errors import (
    INTERRUPTED_STATUS,
    PIPE_STATUS,
    Conflict,
    HostError,
    OutputError,
    ProvisionError,
    RunFailed,
    RunnerError,
    SpecError,
)
from runner.usage import Commands, colour_option, output_options, split_argv, usage_error

if TYPE_CHECKING:
    from runner.app.context import Context
    from runner.app.results import RunOnHost, WorkerVersion
    from runner.output import Output

TAIL_LINES = 50
"""Lines a terminal begins with; all of them would scroll past anyway."""


@dataclass
class Invocation:
    """What the commands of one call share."""

    command: list[str] | None = None
    """The words after `--`."""
    out: Output | None = None
    """Set once a command has begun to speak."""


def _output(as_json: bool, colour: str) -> Output:
    from runner.output import Output

    out = Output(as_json=as_json, colour=colour)
    invocation = click.get_current_context().find_object(Invocation)
    if invocation is not None:
        invocation.out = out
    return out


def _context(out: Output) -> Context:
    from runner.app.context import open_context

    return open_context(out.report)


def _keys(words: Sequence[str], *allowed: str) -> dict[str, str]:
    if not words:
        return {}
    from runner.spec import parse_keys

    return parse_keys(words, allowed)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nStart with:\n  runner init\n  runner jobs\n  runner submit job=dqn --tail",
)
@click.version_option(__version__, "--version", message="runner %(version)s")
def commands() -> None:
    """Run training jobs on this machine and on GPU hosts over SSH.

    Words are key=value; what stands after -- is the job's own command line.
    """


@commands.command()
@click.argument("folder", metavar="[DIR]", default=".")
@output_options
def init(folder: str, as_json: bool, colour: str) -> None:
    """Write a project: runner.toml, hosts/, agents/.

    Nothing that is there already is changed; repeating it is safe.

    \b
    Examples:
      runner init
      runner init ~/cartpole
    """
    from runner.app.init import init as write_project

    out = _output(as_json, colour)
    report = write_project(Path(folder))
    out.made(report.made, folder=str(report.folder), made=report.made, left=report.left)
    for name in report.left:
        out.report.note(f"{name}: there already, left as it is")


@commands.group(cls=Commands)
def host() -> None:
    """Add, list and remove hosts."""


@host.command("add")
@click.argument("name")
@click.argument("target")
@click.option("--jump", metavar="J", help="Reach it through this machine.")
@click.option(
    "--fingerprint", metavar="F", help="SHA256:… its key must have; nothing is asked then."
)
@output_options
def host_add(
    name: str, target: str, jump: str | None, fingerprint: str | None, as_json: bool, colour: str
) -> None:
    """Add a host: shows its key, asks, writes hosts/NAME.toml.

    TARGET is whatever ssh takes: an alias, user@name, ssh://user@name:port. Your known_hosts is
    read and never written. Whoever may use Docker on a host is root there.

    \b
    Examples:
      runner host add gpu1 drl@10.20.0.7 --jump login.lab
      runner host add gpu1 gpu1 --fingerprint SHA256:6Zb9Qm2V0eJk1hTnq5o0c3mWZr7yXgkq0hI2f0f9kPs
    """
    from runner.app import hosts

    out = _output(as_json, colour)
    ask = _ask if sys.stdin.isatty() and sys.stderr.isatty() else None
    path = hosts.add(_context(out), name, target, jump, fingerprint, ask)
    out.made([], host=name, file=str(path))


def _ask(question: str) -> str:
    """The answer typed on the terminal; nothing at its end."""
    from runner.screen import escaped

    sys.stderr.write(escaped(question))
    sys.stderr.flush()
    return sys.stdin.readline().strip()


@host.command("list")
@output_options
def host_list(as_json: bool, colour: str) -> None:
    """List the hosts of this project."""
    out = _output(as_json, colour)
    out.hosts(list(_context(out).hosts.values()))


@host.command("remove")
@click.argument("name")
@output_options
def host_remove(name: str, as_json: bool, colour: str) -> None:
    """Remove a host from this project; the host itself is left as it is."""
    from runner.app import hosts

    out = _output(as_json, colour)
    hosts.remove(_context(out), name)
    out.made([], host=name)


@commands.command()
@click.argument("words", metavar="host=H [image=I]", nargs=-1)
@click.option("--rebuild", is_flag=True, help="Build the image anew, from its base.")
@output_options
def provision(words: Sequence[str], rebuild: bool, as_json: bool, colour: str) -> None:
    """Make the worker on a host: image, container, workspace.

    It says what it will make, makes it and tries it. Repeating it is safe; while runs live there
    it refuses.

    \b
    Example:
      runner provision host=gpu1
    """
    keys = _keys(words, "host", "image")
    if "host" not in keys:
        raise SpecError("provision needs host=H", "runner host list")
    from runner.app.provision import provision as make_worker

    out = _output(as_json, colour)
    out.provisioned(make_worker(_context(out), keys["host"], keys.get("image"), rebuild))


@commands.command()
@click.argument("words", metavar="[key=value …] [-- CMD ARG…]", nargs=-1)
@click.option("--wait", "waits", is_flag=True, help="Return when it has ended: 0 only if done.")
@click.option("--tail", "tails", is_flag=True, help="Follow its output; the id goes to stderr.")
@output_options
@click.pass_obj
def submit(
    invocation: Invocation,
    words: Sequence[str],
    waits: bool,
    tails: bool,
    as_json: bool,
    colour: str,
) -> int:
    """Queue a run and print its id.

    \b
    Keys: host job image gpus nproc launcher grace name tags env.NAME
    All others are parameters of the job (runner jobs JOB shows them), typed by
    their defaults; key:=JSON gives lists and odd texts.

    \b
    Examples:
      runner submit job=dqn seed=3 lr=3e-4 steps=50_000
      runner submit host=gpu1 job=ppo nproc=2 name=baseline --tail
      runner submit host=gpu1 gpus=1 -- python train.py --lr 3e-4
    """
    from runner.spec import parse_submit

    if tails and as_json:
        raise SpecError("--tail and --json both want stdout; give one")
    request = parse_submit(words, invocation.command, is_program=_is_project_file)
    out = _output(as_json, colour)
    ctx = _context(out)
    from runner.app.submit import submit as queue

    def announce(run_id: str) -> None:
        if tails:
            out.warn(f"{run_id} on {request.host}; Ctrl-C leaves it running")
        else:
            out.submitted([run_id], request.host)

    ids = queue(ctx, request, announce)
    if tails:
        ended = [_follow(out, ctx, run_id, rank=0, start=0, lines=None) for run_id in ids]
        return _ending_status(ended) if waits else 0
    return _outcome(out, _wait_for(ctx, ids, None)) if waits else 0


def _is_project_file(word: str) -> bool:
    """Whether the snapshot's root will have a file of that name."""
    from runner.inventory import find_project

    try:
        return (find_project(Path.cwd()).root / word).is_file()
    except OSError:  # too long for a name
        return False


def _wait_for(ctx: Context, words: Sequence[str], timeout_s: float | None) -> list[RunOnHost]:
    from runner.app import runs, wait

    return wait.wait(ctx, runs.find_all(ctx, words), timeout_s)


def _outcome(out: Output, ended: Sequence[RunOnHost]) -> int:
    """0 when all are done, else 1 and a line for each that is not."""
    for run in ended:
        if run.status.outcome != "done":
            out.error(out.failed(run))
    return _ending_status(ended)


def _ending_status(ended: Sequence[RunOnHost]) -> int:
    return 0 if all(run.status.outcome == "done" for run in ended) else RunFailed.status


@commands.command()
@click.argument("job", required=False)
@output_options
def jobs(job: str | None, as_json: bool, colour: str) -> None:
    """List jobs, or one's parameters with types and defaults."""
    from runner.app import jobs as project_jobs

    out = _output(as_json, colour)
    if job is None:
        out.jobs(project_jobs.list_jobs(Path.cwd()))
    else:
        out.job(project_jobs.one_job(Path.cwd(), job))


@commands.command()
@click.argument("words", metavar="[host=H]", nargs=-1)
@click.option("--all", "everyone", is_flag=True, help="Every ended run too, and other projects.")
@output_options
def ps(words: Sequence[str], everyone: bool, as_json: bool, colour: str) -> int:
    """List runs and their states, over all hosts.

    A host that does not answer is named on stderr, its runs as last seen; then 3 is the status, as
    where runs were last seen alive on a host that has no worker now.
    """
    keys = _keys(words, "host")
    from runner.app import runs

    out = _output(as_json, colour)
    found = runs.list_runs(_context(out), keys.get("host"), everyone)
    out.listing(found, everyone=everyone)
    silent = {contact.host for contact in found.hosts if contact.state == "unreachable"}
    alive = any(
        run.contact.state != "ok" and run.status.state != "ended" and run.host not in silent
        for run in found.runs
    )
    return HostError.status if silent or alive else 0


@commands.command()
@click.argument("run", required=False)
@output_options
def status(run: str | None, as_json: bool, colour: str) -> int:
    """Show one run in full (default: the latest of this project).

    RUN is an id or the beginning of one, latest, name:TEXT or tag:TEXT.
    """
    from runner.app import runs
    from runner.app.status import status as ask_status

    out = _output(as_json, colour)
    ctx = _context(out)
    found = ask_status(ctx, runs.find_one(ctx, run))
    out.status(found, ctx.hosts.get(found.host))
    return 0 if found.contact.state == "ok" else HostError.status


@commands.command()
@click.argument("words", metavar="RUN…", nargs=-1)
@click.option("--timeout", metavar="D", help="Give up after this long (90s, 12h): status 7.")
@output_options
def wait(words: Sequence[str], timeout: str | None, as_json: bool, colour: str) -> int:
    """Return when runs have ended: 0 all done, 1 any not.

    A host that does not answer is waited through.
    """
    from runner.app.results import Listing

    _require_runs("wait", words)
    timeout_s = None if timeout is None else _duration("--timeout", timeout)
    out = _output(as_json, colour)
    ended = _wait_for(_context(out), words, timeout_s)
    contacts = {run.host: run.contact for run in ended}
    if as_json:
        out.listing(Listing(tuple(ended), tuple(contacts.values())))
    else:
        out.lines([out.ending(run) for run in ended])
    return 0 if all(run.status.outcome == "done" for run in ended) else RunFailed.status


def _require_runs(command: str, words: Sequence[str]) -> None:
    if not words:
        raise SpecError(f"{command} needs RUN: an id, name:TEXT or tag:TEXT", "runner ps")


def _duration(option: str, text: str) -> float:
    from runner.fields import parse_duration, said

    try:
        return parse_duration(text)
    except ValueError as error:
        raise SpecError(f"{option} is {said(text)}; {error}") from error


@commands.command()
@click.argument("run", required=False)
@click.option(
    "--rank", type=click.IntRange(min=0), default=0, metavar="N", help="Which rank's output."
)
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
    rank: int,
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
    """
    if start is not None and lines is not None:
        raise SpecError("--from and -n are two ways to say where to begin; give one")
    out = _output(False, colour)
    if start is None and lines is None:
        start, lines = (None, TAIL_LINES) if out.on_terminal else (0, None)
    _follow(out, _context(out), run, rank=rank, start=start, lines=lines, follow=not no_follow)


def _follow(
    out: Output,
    ctx: Context,
    run: str | None,
    *,
    rank: int,
    start: int | None,
    lines: int | None,
    follow: bool = True,
) -> RunOnHost:
    """Writes a run's output to stdout until its end."""
    from runner.app import runs
    from runner.app.tail import tail as read_log
    from runner.rows import ending_line

    ref = runs.find_one(ctx, run)
    write, finish = out.job_writer()
    try:
        last = read_log(ctx, ref, rank, start, lines, follow, write)
    except KeyboardInterrupt:
        finish()
        out.warn(f"{ref.id} goes on; back to it: runner tail {ref.id}")
        raise
    finish()
    outcome = last.status.outcome
    if outcome == "done":
        out.report.note(ending_line(last))
    elif outcome is not None:
        out.warn(ending_line(last))
    return last


@commands.command()
@click.argument("run", required=False)
@click.option("--to", "folder", metavar="DIR", help="Into this folder, not results/RUN/.")
@output_options
def pull(run: str | None, folder: str | None, as_json: bool, colour: str) -> None:
    """Bring a run's new and changed files here, verified.

    Into results/RUN/{checkpoints,logs,work}/. A file is whole and verified, or not there.

    \b
    Examples:
      runner pull
      runner pull dqn-7k3fa --to /data/dqn
    """
    from runner.app import runs
    from runner.app.pull import pull as fetch

    out = _output(as_json, colour)
    ctx = _context(out)
    out.pulled(fetch(ctx, runs.find_one(ctx, run), Path(folder) if folder else None))


@commands.command()
@click.argument("words", metavar="[RUN…]", nargs=-1)
@click.option("--out", "target", metavar="F.png", help="Write a PNG (needs matplotlib).")
@output_options
def plot(words: Sequence[str], target: str | None, as_json: bool, colour: str) -> None:
    """Draw learning curves in the terminal, or as PNG.

    The metric is the job's own choice, else eval/return or reward.

    \b
    Examples:
      runner plot
      runner plot dqn-7k3fa dqn-b2x7m --out curves.png
    """
    from runner import plot as plots

    if target is not None:
        plots.check_target(Path(target))
    from runner.app import runs

    out = _output(as_json, colour)
    ctx = _context(out)
    curves = runs.curves(ctx, runs.find_all(ctx, words or ["latest"]))
    if target is not None:
        plots.write_png(curves, Path(target))
        out.made([target], file=target)
    else:
        out.curves(curves)


@commands.command()
@click.argument("words", metavar="RUN…", nargs=-1)
@click.option("--now", is_flag=True, help="Kill at once, without time to save.")
@output_options
def cancel(words: Sequence[str], now: bool, as_json: bool, colour: str) -> int:
    """Stop runs: ask, wait for the grace, then kill.

    Returns when their processes are gone and GPU memory is back.
    """
    _require_runs("cancel", words)
    from runner.app import runs
    from runner.app.cancel import cancel as stop

    out = _output(as_json, colour)
    ctx = _context(out)
    reports = stop(ctx, runs.find_all(ctx, words), now)
    out.cancelled(reports)
    if any(report.error is not None for report in reports):
        no_worker = all(report.contact == "no-worker" for report in reports if report.error)
        return ProvisionError.status if no_worker else HostError.status
    return Conflict.status if any(report.left for report in reports) else 0


@commands.command()
@click.argument("words", metavar="[host=H]", nargs=-1)
@output_options
def version(words: Sequence[str], as_json: bool, colour: str) -> int:
    """Show versions: here, and on a host its worker and image."""
    import platform

    keys = _keys(words, "host")
    out = _output(as_json, colour)
    client: Mapping[str, object] = {"runner": __version__, "python": platform.python_version()}
    workers: list[WorkerVersion] = []
    if "host" in keys:
        from runner.app.version import version as ask_version

        here, *workers = ask_version(_context(out), keys["host"])
        client = here.facts
    out.versions(client, workers)
    states = {worker.contact.state for worker in workers}
    if "unreachable" in states:
        return HostError.status
    return ProvisionError.status if "no-worker" in states else 0


def _run(argv: Sequence[str], invocation: Invocation) -> int:
    """One call, errors not yet turned."""
    before, invocation.command = split_argv(argv)
    if invocation.command is not None and before[:1] != ["submit"]:
        raise SpecError("only submit takes a command after --", "runner submit --help")
    # not commands.main(): it has its own idea of Ctrl-C and of a reader that went away
    try:
        with commands.make_context("runner", before, obj=invocation) as context:
            result = commands.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    return result if isinstance(result, int) else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of one call; `runner` and `python -m runner` end with it."""
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        from runner.exits import open_standard_streams

        open_standard_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    status = _status_of(sys.argv[1:] if argv is None else argv)
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        status = PIPE_STATUS
    except OSError as error:
        status = _unwritten(error)
    if status == PIPE_STATUS:
        from runner.exits import hush

        hush()
    return status


def _status_of(argv: Sequence[str]) -> int:
    """Runs one call and maps every way it can end to its status."""
    invocation = Invocation()
    try:
        return _run(argv, invocation)
    except RunnerError as error:
        return _complain(error, invocation.out)
    except click.UsageError as error:
        return _complain(usage_error(error), invocation.out)
    except KeyboardInterrupt:
        if invocation.out is not None:
            invocation.out.report.done()
        return INTERRUPTED_STATUS
    except Exception as error:  # the edge of the process
        from runner.exits import reader_gone, report_bug

        if isinstance(error, BrokenPipeError) and reader_gone():
            return PIPE_STATUS
        if isinstance(error, OSError) and invocation.out is None and error.filename is None:
            return _unwritten(error)  # the help
        return report_bug(error)


def _unwritten(error: OSError) -> int:
    from runner.output import unwritten

    return _complain(unwritten(error), None)


def _complain(error: RunnerError, out: Output | None) -> int:
    from runner.output import Output

    if isinstance(error, OutputError):
        from runner.exits import hush

        hush()
    with contextlib.suppress(OSError):  # nobody can be told
        (out or Output()).error(error)
    return error.status
