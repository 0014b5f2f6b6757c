"""The command line: argv in, one command called, exit status out.

The argv is cut at the first `--` before Click sees it. What a command needs is imported by it, so
that `runner --help` stays quick.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from runner import __version__
from runner.commands import (
    again,
    completion,
    doctor,
    files,
    follow,
    hosts,
    look,
    notify,
    schedule,
    stop,
    submit,
    top,
    ways,
)
from runner.commands.invocation import Invocation
from runner.errors import (
    INTERRUPTED_STATUS,
    PIPE_STATUS,
    OutputError,
    RunnerError,
    SpecError,
)
from runner.usage import Commands, split_argv, usage_error

if TYPE_CHECKING:
    from runner.output import Output


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


for _command in (
    *(hosts.init, hosts.host, hosts.provision),
    *(submit.submit, submit.jobs, submit.job),
    *(again.resume, again.fork, again.reproduce),
    *(look.ps, top.top, look.status, look.why, look.wait),
    *(follow.tail, files.pull, look.plot, look.compare, look.stack),
    *(schedule.schedule, notify.notify),
    *(stop.cancel, files.du, files.rm, files.gc),
    *(ways.shell, ways.lab, ways.tensorboard, ways.ssh_config, ways.ssh_stream),
    *(doctor.doctor, hosts.drain, hosts.undrain, hosts.down, hosts.version),
    completion.completion,
):
    commands.add_command(_command)  # in the order of a day's work


def _run(argv: Sequence[str], invocation: Invocation) -> int:
    """One call, errors not yet turned."""
    before, invocation.command = split_argv(argv)
    takes_one = before[:1] in (["submit"], ["shell"]) or before[:2] == ["schedule", "add"]
    if invocation.command is not None and not takes_one:
        raise SpecError(
            "only submit, shell and schedule add take a command after --", "runner submit --help"
        )
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
        if isinstance(error, FileNotFoundError) and not _is_somewhere():
            gone = SpecError("the current folder is gone", "cd to the project's")
            return _complain(gone, invocation.out)
        if isinstance(error, OSError) and invocation.out is None and error.filename is None:
            return _unwritten(error)  # the help
        return report_bug(error)


def _is_somewhere() -> bool:
    """Whether the current folder still exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


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
