"""Finding runs: which one a word means, on which host it is, what the hosts say."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner import states
from runner.app import retrying
from runner.app.context import (
    Context,
    as_recorded,
    contact_of,
    is_elsewhere,
    read_status,
    remembered,
    seen,
    silent,
    unread,
)
from runner.app.many import on_hosts
from runner.app.results import Chosen, Contact, Curve, Listing, RunOnHost, SweepScore
from runner.endpoint import Worker
from runner.errors import (
    HostError,
    NotFound,
    ProvisionError,
    RunnerError,
    SpecError,
    Unreachable,
)
from runner.model import SCHEDULES, Host
from runner.store import Record
from runner.wire import RunStatus, is_metric, is_number

LATEST = "latest"
_TOLD = (Unreachable, ProvisionError)
"""What a listing can say in a line. A changed key, asked for by the host's name, is raised."""
CURVE_POINTS = 2000
MOST_LABEL = 60
RECENT = 20
RECENT_SINCE = 2000
"""Ended runs of a host that are listed, also where a time was named; it tells as many itself."""


@dataclass(frozen=True)
class RunRef:
    """A run and the host it is on."""

    id: str
    host: str


@dataclass(frozen=True)
class _Told:
    """What one host said."""

    statuses: list[RunStatus]
    contact: Contact
    hidden: int


def list_runs(
    ctx: Context,
    host: str | None = None,
    everyone: bool = False,
    *,
    chosen: Chosen | None = None,
    what: str = "ps",
    patient: bool = False,
) -> Listing:
    """Runs of this project (or of all, with `everyone`) as their hosts tell them now.

    chosen: which of them, in place of `everyone`. A host that does not answer is named, and its
    runs come as last seen. A run that two host files lead to comes once, with the first of them.
    what, patient: as of `on_hosts`.
    """
    chosen = chosen or Chosen(everyone)
    everyone = chosen.everyone
    asked = [ctx.host(host)] if host else list(ctx.hosts.values())
    answers = on_hosts(
        ctx,
        asked,
        lambda each, connect: retrying.look(
            ctx.report, connect, lambda worker: _ask(ctx, worker, chosen)
        ),
        what=what,
        patient=patient,
    )
    ctx.report.done()
    runs: dict[str, RunOnHost] = {}
    contacts: list[Contact] = [] if host else unread(ctx)
    by_worker: dict[str, str] = {}
    quiet: list[tuple[Host, RunnerError | None]] = []
    hidden = 0
    for each, found, error in answers:
        if found is None:
            check_listed(each, error, host is not None)
            quiet.append((each, error))
            continue
        contacts.append(found.contact)
        first = by_worker.setdefault(found.contact.worker or each.name, each.name)
        if first != each.name and all(status.id in runs for status in found.statuses):
            ctx.report.note(f"{each.name} leads to the same worker as {first}: listed once")
        else:
            hidden += found.hidden
        for status in found.statuses:
            if is_elsewhere(ctx, status.id, found.contact):
                ctx.report.note(f"{each.name} tells of {status.id}, which is on another host")
            elif status.id not in runs:
                runs[status.id] = remembered(ctx, status, found.contact)
    records = ctx.store.records() if quiet or chosen.ended else []
    for each, error in quiet:
        contacts.append(contact_last_seen(each, error, records))
        told = last_seen_on(ctx, each, error, records, everyone=everyone)
        taken = {status.id for status in chosen.of(run.status for run in told)}
        mute = [run for run in told if run.id in taken]
        most = RECENT if chosen.since is None else RECENT_SINCE
        shown = mute if everyone else _recent(mute, most)
        hidden += len(mute) - len(shown)
        for run in shown:
            runs.setdefault(run.id, run)
    for run in _unsubmitted(ctx, host, everyone):
        if chosen.takes(run.status):
            runs.setdefault(run.id, run)
    listed = sorted(runs.values(), key=lambda run: (run.status.submitted_at or 0, run.id))
    return Listing(
        tuple(listed), tuple(contacts), hidden, _scores(listed, records) if chosen.ended else {}
    )


def _scores(listed: Sequence[RunOnHost], records: Sequence[Record]) -> Mapping[str, SweepScore]:
    """Of the sweeps listed; few commands need what computes them."""
    from runner.app.earlier import scores

    return scores(listed, records)


def _unsubmitted(ctx: Context, host: str | None, everyone: bool) -> list[RunOnHost]:
    """Firings of schedules that made no run."""
    if not os.path.isdir(os.path.expanduser(SCHEDULES)):
        return []  # as for most, who need not load what reads them
    from runner.app.unsubmitted import unsubmitted

    return unsubmitted(ctx, host, time.time(), everyone=everyone)


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
        for record in ctx.store.records("" if word == LATEST or _is_tagged(word) else word)
        if _is_ours(ctx, record) and record.host in ctx.hosts
    ]
    found = _match(word, known)
    if found:
        return _whole_sweep(ctx, word, found)
    # another client may have made it, or the records were deleted
    listing = list_runs(ctx, everyone=False)
    rows = [
        (run.id, run.host, run.status.to_json())
        for run in listing.runs
        if (run.status.cause or {}).get("kind") not in states.NEVER_SUBMITTED
    ]
    found = _match(word, rows)
    if found:
        return _whole_sweep(ctx, word, found)
    mute = [contact.host for contact in listing.hosts if contact.state == "unreachable"]
    if mute:
        raise HostError(
            f"no run {word} where somebody answered; no answer from {', '.join(mute)}",
            *[str(contact.error) for contact in listing.hosts if contact.error],
        )
    if word == LATEST:
        raise NotFound("no run of this project yet", "runner submit job=dqn")
    raise _no_run(ctx, word)


def _no_run(ctx: Context, word: str) -> NotFound:
    """There is none of this project; perhaps of another one, or it was never submitted."""
    if os.path.isdir(os.path.expanduser(SCHEDULES)):
        from runner.app.unsubmitted import never_submitted

        told = never_submitted(ctx, word)
        if told is not None:
            return told
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


def find_each(
    ctx: Context, words: Sequence[str]
) -> tuple[list[RunRef], list[tuple[str, RunnerError]]]:
    """The runs that several words mean, each once, and the words that mean none, and why."""
    out: dict[str, RunRef] = {}
    lost: list[tuple[str, RunnerError]] = []
    for word in words:
        try:
            found = find(ctx, word)
        except (NotFound, HostError) as error:
            lost.append((word, error))
            continue
        for ref in found:
            out.setdefault(ref.id, ref)
    return list(out.values()), lost


def by_host(ctx: Context, refs: Sequence[RunRef]) -> list[tuple[Host, list[str]]]:
    """The same runs, host by host."""
    grouped: dict[str, list[str]] = {}
    for ref in refs:
        grouped.setdefault(ref.host, []).append(ref.id)
    return [(ctx.host(name), ids) for name, ids in grouped.items()]


def curves(ctx: Context, refs: Sequence[RunRef]) -> list[Curve]:
    """The progress lines of runs; those of one job are labelled by what differs, too."""
    out: list[tuple[RunStatus, Curve]] = []
    for host, ids in by_host(ctx, refs):
        out += retrying.look(
            ctx.report,
            functools.partial(ctx.connect, host),
            functools.partial(_curves, ctx, ids),
        )
    ctx.report.done()
    told = told_apart([status for status, _ in out])
    return [replace(curve, label=f"{curve.label} {told[curve.run]}".rstrip()) for _, curve in out]


def _curves(ctx: Context, ids: Sequence[str], worker: Worker) -> list[tuple[RunStatus, Curve]]:
    _, rows = worker.call("runs", ids=list(ids), full=False)
    statuses = [seen(ctx, worker, row, ids).status for row in rows]
    return [(status, curve_of(worker, status)) for status in statuses]


def told_apart(statuses: Sequence[RunStatus]) -> dict[str, str]:
    """`lr=0.001 seed=1` of each run: the parameters that are not the same in all of its job."""
    found = dict.fromkeys((status.id for status in statuses), "")
    for job in {status.job for status in statuses if status.job}:
        alike = [status for status in statuses if status.job == job]
        names = dict.fromkeys(name for status in alike for name in status.params)
        differ = [n for n in names if len({repr(each.params.get(n)) for each in alike}) > 1]
        for status in alike:
            words = [f"{name}={status.params[name]}" for name in differ if name in status.params]
            found[status.id] = " ".join(words)[:MOST_LABEL]
    return found


def curve_of(worker: Worker, status: RunStatus, names: Sequence[str] | None = None) -> Curve:
    """A run's curve as its worker tells it; names: the metrics that are wanted."""
    wanted: dict[str, Any] = {} if names is None else {"names": list(names)}
    _, rows = worker.call("progress", run=status.id, most=CURVE_POINTS, **wanted)
    label = f"{status.id} {status.name}" if status.name else status.id
    points, seconds = _points(rows)
    return Curve(
        status.id,
        worker.host.name,
        label,
        status.metric,
        points,
        ended=status.state == states.ENDED,
        seconds=seconds,
    )


def _points(
    rows: list[object],
) -> tuple[tuple[tuple[int, dict[str, float]], ...], tuple[float | None, ...]]:
    """Points that can be drawn, by step, and how long the run had run at each."""
    points: dict[int, tuple[dict[str, float], float | None]] = {}
    for row in rows:
        if not (isinstance(row, list) and len(row) == 3):
            continue
        step, metrics, ran = row
        if isinstance(step, int) and is_number(step) and isinstance(metrics, dict):
            numbers = {str(k): float(v) for k, v in metrics.items() if is_metric(v)}
            points[step] = numbers, float(ran) if is_number(ran) and ran >= 0 else None
    ordered = sorted(points)
    return (
        tuple((step, points[step][0]) for step in ordered),
        tuple(points[step][1] for step in ordered),
    )


def _ask(ctx: Context, worker: Worker, chosen: Chosen) -> _Told:
    project = None if chosen.everyone else ctx.project.id
    wanted: dict[str, Any] = {"ended": True} if chosen.ended else {}
    if chosen.since is not None:
        wanted["since"] = chosen.since + worker.clock_skew_s
    reply, rows = worker.call("runs", project=project, all=chosen.everyone, **wanted)
    hidden: Any = reply.get("hidden")
    statuses = [read_status(row, worker.host.name) for row in rows]
    # an older worker tells of all
    statuses = chosen.of(statuses, worker.clock_skew_s)
    return _Told(statuses, contact_of(ctx, worker), int(hidden) if is_number(hidden) else 0)


def check_listed(host: Host, error: RunnerError | None, named: bool) -> None:
    """Raise what a listing cannot tell in a line: what is wrong with a host asked for by its name,
    and a word or file of ours, whoever was asked for.
    """
    ours = host.runtime == "local" and isinstance(error, SpecError)
    if error is not None and (ours or (named and not isinstance(error, _TOLD))):
        raise error


def contact_last_seen(host: Host, error: RunnerError | None, records: Sequence[Record]) -> Contact:
    """How a host is shown that gave no answer, with when it was last heard."""
    at = max((record.seen_at for record in records if record.host == host.name), default=None)
    return silent(host.name, error, at)


def last_seen_on(
    ctx: Context,
    host: Host,
    error: RunnerError | None,
    records: Sequence[Record],
    *,
    everyone: bool = False,
) -> list[RunOnHost]:
    """This project's runs (or all) that were last seen on a host that gave no answer."""
    return [
        as_recorded(ctx, record, error)
        for record in records
        if record.host == host.name and (everyone or _is_ours(ctx, record))
    ]


def _recent(found: Sequence[RunOnHost], most: int) -> list[RunOnHost]:
    """Those that have not ended and the last ended ones, as a host that answers tells of."""
    ended = [run.id for run in found if run.status.state == states.ENDED]
    old = set(ended[:-most])
    return [run for run in found if run.id not in old]


def _is_ours(ctx: Context, record: Record) -> bool:
    return bool((record.run.get("project") or {}).get("id") == ctx.project.id)


def _whole_sweep(ctx: Context, word: str, found: list[RunRef]) -> list[RunRef]:
    """The same, but for a sweep all its runs: records here, or a short listing, may lack some."""
    known = ctx.store.record(found[0].id)
    sweep = str(known.run.get("sweep")) if known and _is_of_sweep(word, known.run) else ""
    if not sweep or word == LATEST or len({ref.host for ref in found}) > 1:
        return found
    host = ctx.host(found[0].host)

    def ask(worker: Worker) -> list[RunStatus]:
        _, rows = worker.call("runs", project=ctx.project.id, all=True, sweep=sweep)
        return [read_status(row, host.name) for row in rows]

    try:
        runs = retrying.look(ctx.report, lambda: ctx.connect(host), ask)
    except _TOLD:
        return found  # whoever needs the host says that it does not answer
    ids = {run.id for run in runs if run.sweep == sweep} | {ref.id for ref in found}
    return [RunRef(run, host.name) for run in sorted(ids, key=_by_number)]


def _is_of_sweep(word: str, run: Mapping[str, Any]) -> bool:
    """Whether `word` is the id of the run's sweep, or begins it."""
    return str(run.get("sweep") or "").startswith(word)


def _is_tagged(word: str) -> bool:
    """Whether a word means runs by what they are called, and not by their ids."""
    return word.startswith(("name:", "tag:"))


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
