"""Finding runs: which one a word means, on which host it is, what the hosts say."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.app.context import Context, last_seen, on_hosts, read_status, seen, silent, unread
from runner.app.results import Contact, Curve, Listing, RunOnHost
from runner.errors import (
    HostError,
    NotFound,
    ProvisionError,
    RunnerError,
    SpecError,
    Unreachable,
)
from runner.model import Host
from runner.wire import is_metric, is_number

LATEST = "latest"
_TOLD = (Unreachable, ProvisionError)
"""What a listing can say in a line. A changed key, asked for by the host's name, is raised."""
CURVE_POINTS = 2000


@dataclass(frozen=True)
class RunRef:
    """A run and the host it is on."""

    id: str
    host: str


def list_runs(ctx: Context, host: str | None = None, everyone: bool = False) -> Listing:
    """Runs of this project (or of all, with `everyone`) as their hosts tell them now.

    A host that does not answer is named, and its runs come as last seen.
    """
    asked = [ctx.host(host)] if host else list(ctx.hosts.values())
    answers = on_hosts(asked, lambda each: _ask(ctx, each, everyone))
    ctx.report.done()
    runs: list[RunOnHost] = []
    contacts: list[Contact] = [] if host else unread(ctx)
    hidden = 0
    for each, found, error in answers:
        if found is not None:
            runs += found[0]
            contacts.append(found[1])
            hidden += found[2]
            continue
        if host is not None and error is not None and not isinstance(error, _TOLD):
            raise error
        if each.runtime == "local" and isinstance(error, SpecError):
            raise error  # a word or file of ours, whoever was asked for
        contacts.append(_silent(ctx, each, error))
        runs += _remembered(ctx, each, error, everyone)
    runs.sort(key=lambda run: (run.status.submitted_at or 0, run.id))
    return Listing(tuple(runs), tuple(contacts), hidden)


def find(ctx: Context, text: str | None) -> list[RunRef]:
    """The runs that a word means: an id (of a run, or of a sweep: all its runs), a unique prefix,
    `latest`, `name:TEXT` or `tag:TEXT`.

    None is `latest`. Records answer first; hosts are asked for what is not there. Raises NotFound,
    SpecError for a prefix that several runs share, and for an empty word: an unset variable of a
    script must not mean a run.
    """
    if text == "":
        raise SpecError("an empty word means no run", "runner ps")
    word = text or LATEST
    exact = ctx.store.record(word)
    if exact is not None and word != LATEST:
        return [RunRef(exact.id, exact.host)]
    known = [
        (record.id, record.host, record.run)
        for record in ctx.store.records()
        if (record.run.get("project") or {}).get("id") == ctx.project.id
        and record.host in ctx.hosts
    ]
    found = _match(word, known)
    if found:
        return _whole_sweep(ctx, word, found)
    # another client may have made it, or the records were deleted
    listing = list_runs(ctx, everyone=False)
    rows = [(run.id, run.host, run.status.to_json()) for run in listing.runs]
    found = _match(word, rows)
    if found:
        return _whole_sweep(ctx, word, found)
    silent = [contact.host for contact in listing.hosts if contact.state == "unreachable"]
    if silent:
        raise HostError(
            f"no run {word} where somebody answered; no answer from {', '.join(silent)}",
            *[str(contact.error) for contact in listing.hosts if contact.error],
        )
    if word == LATEST:
        raise NotFound("no run of this project yet", "runner submit job=dqn")
    raise _no_run(ctx, word)


def _no_run(ctx: Context, word: str) -> NotFound:
    """There is none of this project; perhaps of another one."""
    for run in list_runs(ctx, everyone=True).runs:
        if word in (run.id, run.status.sweep) and run.status.project.get("id") != ctx.project.id:
            name = run.status.project.get("name") or run.status.project.get("id")
            return NotFound(f"{word} is a run of another project, {name}", "cd to its folder")
    return NotFound(f"no run {word}", "runner ps --all")


def find_one(ctx: Context, text: str | None) -> RunRef:
    """The one run that a word means. Raises SpecError when it means several."""
    found = find(ctx, text)
    if len(found) > 1:
        raise SpecError(f"{text} means {len(found)} runs", *_first([ref.id for ref in found]))
    return found[0]


def find_all(ctx: Context, words: Sequence[str]) -> list[RunRef]:
    """The runs that several words mean, each once."""
    out: dict[str, RunRef] = {}
    for word in words:
        for ref in find(ctx, word):
            out.setdefault(ref.id, ref)
    return list(out.values())


def by_host(ctx: Context, refs: Sequence[RunRef]) -> list[tuple[Host, list[str]]]:
    """The same runs, host by host."""
    grouped: dict[str, list[str]] = {}
    for ref in refs:
        grouped.setdefault(ref.host, []).append(ref.id)
    return [(ctx.host(name), ids) for name, ids in grouped.items()]


def curves(ctx: Context, refs: Sequence[RunRef]) -> list[Curve]:
    """The progress lines of runs."""
    out = []
    for host, ids in by_host(ctx, refs):
        with ctx.connect(host) as worker:
            _, rows = worker.call("runs", ids=ids, full=False)
            for row in rows:
                run = seen(ctx, worker, row)
                _, points = worker.call("progress", run=run.id, most=CURVE_POINTS)
                label = f"{run.id} {run.status.name}" if run.status.name else run.id
                out.append(
                    Curve(run.id, host.name, label, run.status.metric, tuple(_points(points)))
                )
    ctx.report.done()
    return out


def _points(rows: list[object]) -> list[tuple[int, dict[str, float]]]:
    points = []
    for row in rows:
        if not (isinstance(row, list) and len(row) == 2):
            continue
        step, metrics = row
        if isinstance(step, int) and is_number(step) and isinstance(metrics, dict):
            numbers = {str(k): float(v) for k, v in metrics.items() if is_metric(v)}
            points.append((step, numbers))
    return points


def _ask(ctx: Context, host: Host, everyone: bool) -> tuple[list[RunOnHost], Contact, int]:
    with ctx.connect(host) as worker:
        project = None if everyone else ctx.project.id
        reply, rows = worker.call("runs", project=project, all=everyone)
        runs = [seen(ctx, worker, row) for row in rows]
        skew = round(worker.clock_skew_s, 3)
    hidden: Any = reply.get("hidden")
    contact = Contact(host.name, "ok", time.time(), None, skew)
    return runs, contact, int(hidden) if is_number(hidden) else 0


def _silent(ctx: Context, host: Host, error: RunnerError | None) -> Contact:
    at = max(
        (record.seen_at for record in ctx.store.records() if record.host == host.name), default=None
    )
    return silent(host, error, at)


def _remembered(
    ctx: Context, host: Host, error: RunnerError | None, everyone: bool
) -> list[RunOnHost]:
    found = []
    for record in ctx.store.records():
        mine = (record.run.get("project") or {}).get("id") == ctx.project.id
        if record.host == host.name and (mine or everyone):
            run = last_seen(ctx, record.id, str(error) if error else None)
            found += [run] if run else []
    return found


def _whole_sweep(ctx: Context, word: str, found: list[RunRef]) -> list[RunRef]:
    """The same, but for a sweep all its runs: records here, or a short listing, may lack some."""
    known = ctx.store.record(found[0].id)
    sweep = str(known.run.get("sweep")) if known and _is_of_sweep(word, known.run) else ""
    if not sweep or word == LATEST or len({ref.host for ref in found}) > 1:
        return found
    host = ctx.host(found[0].host)
    try:
        with ctx.connect(host) as worker:
            _, rows = worker.call("runs", project=ctx.project.id, all=True, sweep=sweep)
            runs = [read_status(row, host.name) for row in rows]
    except _TOLD:
        return found  # whoever needs the host says that it does not answer
    ids = {run.id for run in runs if run.sweep == sweep} | {ref.id for ref in found}
    return [RunRef(run, host.name) for run in sorted(ids, key=_by_number)]


def _is_of_sweep(word: str, run: Mapping[str, Any]) -> bool:
    """Whether `word` is the id of the run's sweep, or begins it."""
    return str(run.get("sweep") or "").startswith(word)


def _by_number(run: str) -> tuple[int, str]:
    """Members of a sweep differ at the end alone: `.2` before `.10`."""
    return len(run), run


def _match(word: str, rows: Sequence[tuple[str, str, Mapping[str, Any]]]) -> list[RunRef]:
    if word == LATEST:
        chosen = sorted(rows, key=lambda row: (row[2].get("submitted_at") or 0, row[0]))[-1:]
    elif word.startswith("name:"):
        chosen = [row for row in rows if row[2].get("name") == word[5:]]
    elif word.startswith("tag:"):
        chosen = [row for row in rows if word[4:] in (row[2].get("tags") or [])]
    else:
        chosen = [row for row in rows if row[0] == word]
        chosen = chosen or [row for row in rows if row[2].get("sweep") == word]
        if not chosen:
            chosen = [row for row in rows if row[0].startswith(word)]
            sweeps = {
                row[2].get("sweep") if _is_of_sweep(word, row[2]) else row[0] for row in chosen
            }
            if len(sweeps) > 1:
                names = sorted(map(str, sweeps))
                raise SpecError(f"{word} means {len(names)} runs", *_first(names))
        chosen.sort(key=lambda row: _by_number(row[0]))
    return [RunRef(run, host) for run, host, _ in chosen]


def _first(names: Sequence[str]) -> list[str]:
    """The first ten of several, and whether there are more."""
    return [*names[:10], *(["…"] if len(names) > 10 else [])]
