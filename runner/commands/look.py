"""What becomes of runs: in a list, in full, why, at their end, as curves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from runner.commands.invocation import (
    open_output,
    open_project,
    read_duration,
    read_keys,
    read_since,
    read_step,
    require_runs,
    wait_for,
)
from runner.errors import HostError, RunFailed, SpecError, WorkerError
from runner.usage import output_options


@click.command()
@click.argument("words", metavar="[host=H]", nargs=-1)
@click.option("--all", "everyone", is_flag=True, help="Every ended run too, and other projects.")
@click.option("--ended", is_flag=True, help="Only what has ended, and what sweeps reached.")
@click.option("--since", metavar="TIME", help="Not what ended before: yesterday, mon, 02:30, 12h.")
@output_options
def ps(
    words: Sequence[str],
    everyone: bool,
    ended: bool,
    since: str | None,
    as_json: bool,
    colour: str,
) -> int:
    """List runs and their states, over all hosts.

    A host that does not answer is named on stderr, its runs as last seen; then 3 is the status, as
    where runs were last seen alive on a host that has no worker now.
    """
    for word in words:
        if "=" not in word:
            from runner.fields import said

            told = f"ps lists every run of the project; it takes host=H, not {said(word)}"
            raise SpecError(told, "of one: runner status RUN", "of several: runner compare RUN…")
    keys = read_keys(words, "host")
    from runner.app import runs
    from runner.app.results import Chosen

    chosen = Chosen(everyone, ended, None if since is None else read_since(since))
    out = open_output(as_json, colour)
    found = runs.list_runs(open_project(out), keys.get("host"), chosen=chosen)
    out.listing(found, chosen)
    silent = {contact.host for contact in found.hosts if contact.state == "unreachable"}
    alive = any(
        run.contact.state != "ok" and run.status.state != "ended" and run.host not in silent
        for run in found.runs
    )
    return HostError.status if silent or alive else 0


@click.command()
@click.argument("run", required=False)
@output_options
def status(run: str | None, as_json: bool, colour: str) -> int:
    """Show one run in full (default: the latest of this project).

    RUN is an id or the beginning of one, latest, name:TEXT or tag:TEXT.
    """
    from runner.app import runs
    from runner.app.status import status as ask_status

    out = open_output(as_json, colour)
    ctx = open_project(out)
    found = ask_status(ctx, runs.find_one(ctx, run))
    out.status(found, ctx.hosts.get(found.host))
    return 0 if found.contact.state == "ok" else HostError.status


@click.command()
@click.argument("run", required=False)
@output_options
def why(run: str | None, as_json: bool, colour: str) -> int:
    """Say what a run waits for, or what ended it.

    And how one goes that is neither, and what to type next.

    RUN is an id or the beginning of one, latest (the default), name:TEXT or tag:TEXT.
    """
    from runner.app import runs
    from runner.app.why import why as ask_why

    out = open_output(as_json, colour)
    ctx = open_project(out)
    found = ask_why(ctx, runs.find_one(ctx, run))
    out.why(found)
    return 0 if found.run.contact.state == "ok" else HostError.status


@click.command()
@click.argument("run")
@output_options
def stack(run: str, as_json: bool, colour: str) -> int:
    """Print every rank's Python stack; the run goes on undisturbed.

    A run that is not live: 7. What of it could not be read is said on stderr: 5.
    """
    from runner.app import runs
    from runner.app.stack import stack as ask_stack

    out = open_output(as_json, colour)
    ctx = open_project(out)
    found = ask_stack(ctx, runs.find_one(ctx, run))
    out.stack(found)
    return 0 if found.problem is None else WorkerError.status


@click.command()
@click.argument("words", metavar="RUN…", nargs=-1)
@click.option("--timeout", metavar="D", help="Give up after this long (90s, 12h): status 7.")
@output_options
def wait(words: Sequence[str], timeout: str | None, as_json: bool, colour: str) -> int:
    """Return when runs have ended: 0 all done, 1 any not.

    A host that does not answer is waited through.
    """
    from runner.app.results import Listing

    require_runs("wait", words)
    timeout_s = None if timeout is None else read_duration("--timeout", timeout)
    out = open_output(as_json, colour)
    ended = wait_for(open_project(out), words, timeout_s)
    contacts = {run.host: run.contact for run in ended}
    if as_json:
        out.listing(Listing(tuple(ended), tuple(contacts.values())))
    else:
        out.lines([out.ending(run) for run in ended])
    return 0 if all(run.status.outcome == "done" for run in ended) else RunFailed.status


@click.command()
@click.argument("words", metavar="[RUN…]", nargs=-1)
@click.option("--out", "target", metavar="F.png", help="Write a PNG (needs matplotlib).")
@output_options
def plot(words: Sequence[str], target: str | None, as_json: bool, colour: str) -> None:
    """Draw learning curves in the terminal, or as PNG.

    The metric is the job's own choice, else the first there is of eval/return, reward,
    charts/episodic_return (CleanRL) and rollout/ep_rew_mean (SB3).

    \b
    Examples:
      runner plot
      runner plot dqn-7k3fa dqn-b2x7m --out curves.png
    """
    from runner.show import plot as plots

    if target is not None:
        plots.check_target(Path(target))
    from runner.app import runs

    out = open_output(as_json, colour)
    ctx = open_project(out)
    curves = runs.curves(ctx, runs.find_all(ctx, words or ["latest"]))
    if target is not None:
        plots.write_png(curves, Path(target))
        out.made([target], file=target)
    else:
        out.curves(curves)


@click.command()
@click.argument("words", metavar="RUN…", nargs=-1)
@click.option("--metric", metavar="NAME", help="What to compare, if not the jobs' own metric.")
@click.option("--at", "step", metavar="STEP", help="Compare at this step, not the last common one.")
@click.option("--lower", is_flag=True, help="Smaller values are better.")
@click.option("--pool-code", is_flag=True, help="Runs that differ in code alone are one group.")
@click.option("--out", "target", metavar="F", help="Write a page (F.html) or a picture (F.png).")
@output_options
def compare(
    words: Sequence[str],
    metric: str | None,
    step: str | None,
    lower: bool,
    pool_code: bool,
    target: str | None,
    as_json: bool,
    colour: str,
) -> int:
    """Compare runs: seeds grouped by configuration, with intervals.

    Each group has its IQM and mean over seeds, and the best one the probability that it is better
    than each other; seeds without a score are named. A host that does not answer: 3 is the status.

    \b
    Examples:
      runner compare dqn-9x2mp dqn-b7n2r
      runner compare name:baseline name:double --out compare.html
    """
    require_runs("compare", words)
    from runner.show import plot as plots

    if target is not None:
        plots.check_target(Path(target), (".html", ".png"))
    from runner.app import compare as use

    at = None if step is None else read_step(step)
    asked = use.Asked(metric or None, at, lower, pool_code)
    out = open_output(as_json, colour)
    found = use.compare(open_project(out), words, asked)
    out.compared(found)
    if target is not None:
        out.comparison_file(found, Path(target))
    return HostError.status if found.silent else 0
