"""Making runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from runner.commands.follow import first_line_note, follow_output
from runner.commands.invocation import (
    Invocation,
    ending_status,
    open_output,
    open_project,
    read_keys,
    report_endings,
    wait_for,
)
from runner.errors import SpecError
from runner.usage import Commands, output_options


@click.command()
@click.argument("words", metavar="[key=value …] [-- CMD ARG…]", nargs=-1)
@click.option("--wait", "waits", is_flag=True, help="Return when it has ended: 0 only if done.")
@click.option("--tail", "tails", is_flag=True, help="Follow its output; the id goes to stderr.")
@click.option("--dry-run", "dry", is_flag=True, help="Say what would travel; send nothing.")
@click.option("--yes", is_flag=True, help="Over 1,000 runs in one sweep are meant.")
@output_options
@click.pass_obj
def submit(
    invocation: Invocation,
    words: Sequence[str],
    waits: bool,
    tails: bool,
    dry: bool,
    yes: bool,
    as_json: bool,
    colour: str,
) -> int:
    """Queue a run, or a sweep of them, and print the ids.

    \b
    Keys: host job image gpus nproc launcher grace name tags env.NAME
          time_limit restarts priority after stuck_after on_stuck log_limit
          secret.NAME (your variable NAME) or secret.NAME=@FILE
    param.NAME is a parameter that is named like one of these. All others are
    parameters of the job (runner jobs JOB shows them), typed by
    their defaults; key:=JSON gives lists and odd texts.
    Sweeps: seed=1..5 lr=1e-3,3e-4 makes ten runs; with -- CMD each.NAME=1..5
    fills in {NAME}. --dry-run prints what of the folder would be left out, and
    by which rule; with --json every file, and what the runs would be.

    \b
    Examples:
      runner submit job=dqn seed=3 lr=3e-4 steps=50_000
      runner submit host=gpu1 job=dqn nproc=2 name=baseline --tail
      runner submit host=gpu1 job=dqn seed=1..5 time_limit=2h secret.WANDB_API_KEY
      runner submit host=gpu1 gpus=1 -- python train.py --lr 3e-4
    """
    from runner.spec import parse_submit

    began = time.monotonic()
    if tails and as_json:
        raise SpecError("--tail and --json both want stdout; give one")
    request = parse_submit(words, invocation.command, is_program=_is_project_file)
    out = open_output(as_json, colour)
    ctx = open_project(out)
    if dry:
        from runner.app.dry_run import dry_run

        out.dry_run(dry_run(ctx, request, many=yes, alone=tails))
        return 0
    from runner.app.submit import submit as queue

    def announce(ids: list[str]) -> None:
        if tails:
            out.warn(f"{ids[0]} on {request.host}; Ctrl-C leaves it running")
        else:
            out.submitted(ids, request.host)

    ids = queue(ctx, request, announce, many=yes, alone=tails)
    if tails:
        note = first_line_note(out, began)
        ended = follow_output(out, ctx, ids[0], rank=0, start=0, lines=None, on_first=note)
        return ending_status([ended]) if waits else 0
    return report_endings(out, wait_for(ctx, ids, None)) if waits else 0


def _is_project_file(word: str) -> bool:
    """Whether the snapshot's root will have a file of that name."""
    from runner.inventory import find_project

    try:
        return (find_project(Path.cwd()).root / word).is_file()
    except OSError:  # too long for a name
        return False


@click.group(cls=Commands)
def job() -> None:
    """Make jobs of scripts of your own."""


@job.command("add")
@click.argument("script")
@click.argument("words", metavar="[name=N]", nargs=-1)
@click.option("--replace", is_flag=True, help="Write agents/NAME.toml anew where it is there.")
@output_options
def job_add(script: str, words: Sequence[str], replace: bool, as_json: bool, colour: str) -> None:
    """Make a job of a training script, which is read and not run.

    Options of argparse, tyro and dataclasses become parameters with their defaults, imports become
    [setup] requirements; what could not be read is said. Writes agents/NAME.toml.

    \b
    Examples:
      runner job add train.py
      runner job add scripts/dqn.py name=dqn-mine
    """
    from runner.app.job_add import add_job

    out = open_output(as_json, colour)
    name = read_keys(words, "name").get("name")
    added = add_job(Path.cwd(), script, name, replace=replace)
    for text in added.warnings:
        out.warn(text)
    for text in added.notes:
        out.report.note(text)
    out.made([added.file], job=added.job.name, file=added.file, submit=added.line)
    out.report.note(f"run it:\n  {added.line}")


@click.command()
@click.argument("job", required=False)
@output_options
def jobs(job: str | None, as_json: bool, colour: str) -> None:
    """List jobs, or one's parameters with types and defaults."""
    from runner.app import jobs as project_jobs

    out = open_output(as_json, colour)
    if job is None:
        out.jobs(project_jobs.list_jobs(Path.cwd()))
    else:
        out.job(project_jobs.one_job(Path.cwd(), job))
