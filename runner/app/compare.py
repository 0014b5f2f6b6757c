"""Runs beside each other: asks their hosts for what they are and what they reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.app import context, retrying, runs
from runner.app.context import Context
from runner.app.many import Connect, on_hosts
from runner.app.reports import CompareReport
from runner.app.results import Contact, Curve, RunOnHost
from runner.app.runs import RunRef
from runner.comparing import comparison
from runner.comparing.groups import gaps
from runner.comparing.scores import Series, series_of
from runner.endpoint import Worker
from runner.errors import NotFound, RunnerError, SpecError, WorkerError
from runner.metrics import KNOWN_METRICS, best_known
from runner.model import Host
from runner.show.units import some
from runner.wire import RunStatus


@dataclass(frozen=True)
class Asked:
    """How it is to be compared."""

    metric: str | None = None
    """None: the jobs' own choice, else the first known one."""
    step: int | None = None
    """None: the last that all can be compared at."""
    lower: bool = False
    """Smaller values are better."""
    pool_code: bool = False
    """Runs that differ in their code alone are of one group."""


@dataclass(frozen=True)
class _Told:
    """One run as its host tells it, or as last seen."""

    run: RunOnHost
    curve: Curve | None
    problem: str | None = None


_Answer = tuple[Contact, list[tuple[RunStatus, Curve]]]


def compare(ctx: Context, words: Sequence[str], asked: Asked | None = None) -> CompareReport:
    """The runs that the words mean, compared.

    Raises NotFound, SpecError, and what a host's silence is where no other one answers.
    """
    asked = asked or Asked()
    refs, gone = _find(ctx, words)
    told, silent, lost = _ask(ctx, refs, asked)
    ctx.report.done()
    metric = asked.metric or _metric(told)
    series = [_series(item, metric) for item in told]
    found = comparison.compare(
        series,
        metric,
        step=asked.step,
        lower=asked.lower,
        pool_code=asked.pool_code,
        gone=[*gone, *(run for run in lost if run not in gone)],
    )
    if found is None:
        raise _nothing(told, metric, asked)
    return CompareReport(found, silent)


def _find(ctx: Context, words: Sequence[str]) -> tuple[list[RunRef], list[str]]:
    """The runs that are meant, each once, and those that whole sweeps lack."""
    refs: dict[str, RunRef] = {}
    gone: list[str] = []
    for word in words:
        found = runs.find(ctx, word)
        if len(found) > 1 and not word.startswith(("name:", "tag:")):
            gone += gaps(ref.id for ref in found)
        for ref in found:
            refs.setdefault(ref.id, ref)
    return list(refs.values()), [run for run in gone if run not in refs]


def _ask(
    ctx: Context, refs: Sequence[RunRef], asked: Asked
) -> tuple[list[_Told], tuple[Contact, ...], list[str]]:
    """What is known of the runs, in the order of these; which hosts were silent; runs that are on
    none any more.
    """
    wanted = {host.name: ids for host, ids in runs.by_host(ctx, refs)}

    def act(host: Host, connect: Connect) -> _Answer:
        return retrying.look(
            ctx.report, connect, lambda worker: _read(ctx, worker, wanted[host.name], asked)
        )

    found: dict[str, _Told] = {}
    silent: list[Contact] = []
    errors: list[RunnerError] = []
    hosts = [ctx.host(name) for name in wanted]
    for host, answer, error in on_hosts(ctx, hosts, act, what="compare"):
        if answer is not None:
            contact, rows = answer
            for status, curve in rows:
                found[status.id] = _Told(context.remembered(ctx, status, contact), curve)
        elif error is not None:
            errors.append(error)
            mute = [context.last_seen(ctx, run, error) for run in wanted[host.name]]
            at = max((run.contact.at or 0.0 for run in mute if run), default=None)
            silent.append(context.silent(host.name, error, at))
            text = f"no answer from {host.name}"
            found.update({run.id: _Told(run, None, text) for run in mute if run})
    if len(errors) == len(hosts):
        raise errors[0]
    lost = [ref.id for ref in refs if ref.id not in found]
    return [found[ref.id] for ref in refs if ref.id in found], tuple(silent), lost


def _read(ctx: Context, worker: Worker, ids: Sequence[str], asked: Asked) -> _Answer:
    """Some runs of one host, and their curves of what may be compared."""
    _, rows = worker.call("runs", ids=list(ids), full=False)
    found = []
    for row in rows:
        status = context.read_status(row, worker.host.name)
        if status.id not in ids:
            raise WorkerError(f"{worker.host.name}: the worker answered for another run")
        chosen = asked.metric or status.metric
        names = [chosen] if chosen else KNOWN_METRICS
        found.append((status, runs.curve_of(worker, status, names)))
    return context.contact_of(ctx, worker), found


def _metric(told: Sequence[_Told]) -> str:
    """The one metric of all runs. Raises SpecError where they have several."""
    found: dict[str, list[str]] = {}
    for item in told:
        points = item.curve.points if item.curve else ()
        name = item.run.status.metric or best_known(metrics for _, metrics in points)
        if name is not None and points:
            found.setdefault(name, []).append(item.run.id)
    if len(found) > 1:
        raise SpecError(
            "these runs have no metric in common that all of them show",
            *[f"{name}: {some(ids)}" for name, ids in found.items()],
            "--metric NAME says which one to compare",
        )
    return next(iter(found), KNOWN_METRICS[0])


def _series(item: _Told, metric: str) -> Series:
    if item.curve is None:
        return Series(item.run.status, item.run.host, problem=item.problem)
    curve = item.curve
    return series_of(item.run.status, item.run.host, metric, curve.points, curve.seconds)


def _nothing(told: Sequence[_Told], metric: str, asked: Asked) -> NotFound:
    """Why there is nothing to compare."""
    names = some([item.run.id for item in told]) or "these runs"
    if asked.step is not None:
        return NotFound(f"{names}: no value of {metric} by step {asked.step:,}")
    there = sorted({name for item in told for name in item.run.status.metrics})
    advice = [f"there are: {some(there, 12)}"] if there else []
    if there or asked.metric is None:
        advice.append("--metric NAME says which one is meant")
    return NotFound(f"{names}: no value of {metric} to compare yet", *advice)
