"""What takes space on hosts, and making room: runs that are deleted, and what nobody needs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.app import retrying
from runner.app.context import (
    Context,
    contact_of,
    is_pulled,
    pulled_attempt,
    seen,
    silent,
    unread,
)
from runner.app.many import Connect, on_hosts
from runner.app.reports import Garbage, HostSpace, Removal, RunSpace, SpaceListing
from runner.app.runs import RunRef, by_host
from runner.endpoint import Worker
from runner.errors import (
    Conflict,
    HostError,
    OutcomeUnknown,
    ProvisionError,
    RunnerError,
    SpecError,
    Unreachable,
    WorkerError,
    WrongState,
)
from runner.model import Host
from runner.show.units import plural, size
from runner.wire import is_number

SHARED = ("contents", "bundles", "packages", "home", "leftovers")
Ask = Callable[[str], str]


def usage(ctx: Context, host: str | None = None, everyone: bool = False) -> SpaceListing:
    """What runs of this project (or of all, with `everyone`) take, host by host.

    A host that does not answer is named; asked for by its name, what is wrong with it is raised.
    """
    asked = [ctx.host(host)] if host else list(ctx.hosts.values())
    answers = on_hosts(
        ctx,
        asked,
        lambda each, connect: retrying.look(
            ctx.report, connect, lambda worker: _usage(ctx, worker, everyone)
        ),
        what="du",
        answer_s=None,  # a large workspace takes long to count
    )
    ctx.report.done()
    runs: dict[str, RunSpace] = {}
    hosts = [] if host else [HostSpace(contact) for contact in unread(ctx)]
    by_worker: dict[str, str] = {}
    for each, found, error in answers:
        if found is not None:
            first = by_worker.setdefault(found[1].contact.worker or each.name, each.name)
            if first != each.name and all(run.run in runs for run in found[0]):
                ctx.report.note(f"{each.name} leads to the same worker as {first}: counted once")
                continue
            for run in found[0]:
                runs.setdefault(run.run, run)
            hosts.append(found[1])
            continue
        if error is not None and host and not isinstance(error, Unreachable):
            raise error
        if each.runtime == "local" and isinstance(error, SpecError):
            raise error  # a word or file of ours, whoever was asked for
        hosts.append(HostSpace(silent(each.name, error)))
    return SpaceListing(tuple(runs.values()), tuple(hosts))


def _usage(ctx: Context, worker: Worker, everyone: bool) -> tuple[list[RunSpace], HostSpace]:
    name = worker.host.name
    ctx.report.step(f"{name}: counting")
    reply, rows = worker.call("usage", project=None if everyone else ctx.project.id)
    runs = [_run_space(ctx, name, row) for row in rows]
    shared, others, disk = (_table(reply, key) for key in ("shared", "others", "disk"))
    return runs, HostSpace(
        contact=contact_of(ctx, worker),
        shared={name: _count(shared, name) for name in SHARED},
        others_runs=_count(others, "runs"),
        others_bytes=_count(others, "bytes"),
        disk_total=_count(disk, "total"),
        disk_free=_count(disk, "free"),
        files_free=_count(disk, "files") if is_number(disk.get("files")) else None,
    )


def _run_space(ctx: Context, host: str, row: Any) -> RunSpace:
    if not isinstance(row, dict) or not isinstance(row.get("run"), str):
        raise WorkerError(f"{host}: what its runs take cannot be read")
    outcome = row.get("outcome")
    return RunSpace(
        run=row["run"],
        host=host,
        project=_table(row, "project"),
        state=str(row.get("state")),
        outcome=outcome if isinstance(outcome, str) else None,
        pulled=is_pulled(ctx, row["run"], row.get("state"), row.get("attempt")),
        code=_count(row, "code"),
        checkpoints=_count(row, "checkpoints"),
        logs=_count(row, "logs"),
        records=_count(row, "records"),
        begun=row.get("attempt") != 0,
    )


def remove(
    ctx: Context,
    refs: Sequence[RunRef],
    *,
    unpulled: bool = False,
    dry: bool = False,
    ask: Ask | None = None,
) -> list[Removal]:
    """Delete ended runs on their hosts, and the records of them here; one report each.

    unpulled: also those of which something was never pulled; without it somebody is asked, or,
    where `ask` is None, Conflict is raised. Raises WrongState for a run that has not ended. Then
    nothing was deleted. A host that does not answer is reported with `error`.
    """
    groups = by_host(ctx, refs)
    wanted = {host.name: ids for host, ids in groups}
    found: dict[str, Removal] = {}
    looked = on_hosts(
        ctx,
        [host for host, _ in groups],
        lambda host, connect: retrying.look(
            ctx.report, connect, lambda worker: _look(ctx, worker, wanted[host.name])
        ),
        what="rm",
        patient=True,
    )
    for host, rows, error in looked:
        for run in wanted[host.name]:
            found[run] = rows[run] if rows is not None else _missed(host, run, error)
    ctx.report.done()
    going = [row for row in found.values() if row.error is None]
    left = [row for row in going if not row.pulled and not row.gone]
    if left and not unpulled and not dry:
        _ask_for(ctx, left, [ref.id for ref in refs], ask)
    if not dry:
        found.update(_remove_all(ctx, groups, going))
    return [found[ref.id] for ref in refs]


def _look(ctx: Context, worker: Worker, ids: list[str]) -> dict[str, Removal]:
    """What would go. Raises WrongState."""
    host = worker.host
    _, statuses = worker.call("runs", ids=ids)
    pulled = {run.id for run in (seen(ctx, worker, body, ids) for body in statuses) if run.pulled}
    reply, _ = worker.call("remove", runs=ids, dry=True)
    rows = _rows(host.name, reply, ids)
    for run, row in rows.items():
        if row.get("why"):
            advice = "cancel first, or let it end:"
            raise WrongState(f"{host.name}: {row['why']}", advice, f"  runner cancel {run}")
    return {
        run: Removal(
            run,
            host.name,
            _count(row, "bytes"),
            # of one whose removal was cut somebody has decided before
            run in pulled or bool(row.get("begun")),
            bool(row.get("gone")),
        )
        for run, row in rows.items()
    }


def _ask_for(ctx: Context, left: Sequence[Removal], words: Sequence[str], ask: Ask | None) -> None:
    """Let somebody decide over what was not pulled. Raises Conflict unless they typed yes."""
    names = [f"{row.run}  {size(row.bytes)} on {row.host}" for row in left]
    what = f"{left[0].run} is" if len(left) == 1 else f"{len(left)} runs are"
    them = "it" if len(left) == 1 else "them"
    if ask is not None:
        for name in names:
            ctx.report.note(name)
        question = f"{what} not fully pulled. Type yes to delete {them} all the same: "
        if ask(question).strip().lower() == "yes":
            return
    raise Conflict(
        f"{what} not fully pulled; nothing was deleted",
        *names,
        f"pull {them} first, or delete all the same:",
        "  " + shlex.join(["runner", "rm", *words, "--unpulled"]),
    )


def _remove_all(
    ctx: Context, groups: Sequence[tuple[Host, list[str]]], going: Sequence[Removal]
) -> dict[str, Removal]:
    before = {row.run: row for row in going}
    wanted = {host.name: [run for run in ids if run in before] for host, ids in groups}
    hosts = [host for host, _ in groups if wanted[host.name]]
    out: dict[str, Removal] = {}
    broken: RunnerError | None = None
    removed = on_hosts(
        ctx,
        hosts,
        lambda host, connect: _remove(ctx, host, connect, wanted[host.name]),
        what="rm",
        patient=True,
    )
    for host, rows, error in removed:
        if error is not None and not isinstance(error, (HostError, ProvisionError, OutcomeUnknown)):
            broken = broken or error
            continue
        for run in wanted[host.name]:
            if rows is None:
                out[run] = _missed(host, run, error)
                continue
            ctx.store.forget(run)
            known, row = before[run], rows[run]
            out[run] = Removal(run, host.name, _count(row, "bytes"), known.pulled, known.gone)
    ctx.report.done()
    if broken is not None:
        raise broken
    return out


def _remove(
    ctx: Context, host: Host, connect: Connect, ids: list[str]
) -> Mapping[str, Mapping[str, Any]]:
    def on_event(event: Mapping[str, Any]) -> None:
        ctx.report.step(f"{host.name}: {event.get('run')} deleted")

    def ask(worker: Worker) -> dict[str, Any]:
        ctx.report.step(f"{host.name}: deleting {plural(len(ids), 'run')}")
        return worker.call("remove", runs=ids, dry=False, on_event=on_event)[0]

    unsure = OutcomeUnknown(f"{host.name}: the link broke")
    reply = retrying.act(ctx.report, connect, ask, unsure)
    return _rows(host.name, reply, ids)


def _rows(host: str, reply: Mapping[str, Any], ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    rows = reply.get("removed")
    found: dict[str, Mapping[str, Any]] = {
        str(row.get("run")): row
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict)
    }
    if set(found) != set(ids):
        raise WorkerError(f"{host}: the worker did not say what became of the runs")
    return found


def _missed(host: Host, run: str, error: RunnerError | None) -> Removal:
    """A run that could not be deleted; after a link that was lost on the way nobody knows."""
    if error is not None and not isinstance(error, (HostError, ProvisionError, OutcomeUnknown)):
        raise error  # a refusal: nothing of this command is to be done
    unsure = isinstance(error, OutcomeUnknown)
    text = f"{error}; {run} " + (
        "may be gone: type the same again" if unsure else "was NOT deleted"
    )
    status = error.status if error is not None else HostError.status
    return Removal(
        run, host.name, error=text, contact=silent(host.name, error).state, status=status
    )


def collect(ctx: Context, name: str, dry: bool = False) -> Garbage:
    """Remove what nobody needs on a host (`dry`: only say what that is): leftovers, contents and
    worker programs without a user, the code of ended runs as far as it can be laid out again.
    """
    host = ctx.host(name)
    pulled = {
        record.id: attempt
        for record in ctx.store.records()
        if record.host == name and (attempt := pulled_attempt(ctx, record.id)) is not None
    }

    def ask(worker: Worker) -> tuple[dict[str, Any], list[Any]]:
        ctx.report.step(f"{name}: looking for what nobody needs")
        return worker.call("gc", dry=dry, pulled=pulled)

    if dry:
        reply, rows = retrying.look(ctx.report, lambda: ctx.connect(host), ask)
    else:
        unsure = OutcomeUnknown(
            f"{name}: the link broke; what nobody needs may or may not be gone",
            f"the same again removes what is left: runner gc host={name}",
        )
        reply, rows = retrying.act(ctx.report, lambda: ctx.connect(host), ask, unsure)
    ctx.report.done()
    items = [row for row in rows if isinstance(row, dict)]
    kept = reply.get("kept")
    return Garbage(
        host=name,
        items=tuple(
            (str(row.get("what")), _count(row, "bytes"), str(row.get("why"))) for row in items
        ),
        bytes=_count(reply, "bytes"),
        kept=tuple(map(str, kept)) if isinstance(kept, list) else (),
        disk_free=_count(_table(reply, "disk"), "free"),
        dry=dry,
    )


def _table(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key)
    return value if isinstance(value, dict) else {}


def _count(body: Mapping[str, Any], key: str) -> int:
    """A count or size that a worker told; 0 for what is none."""
    value: Any = body.get(key)
    return max(0, int(value)) if is_number(value) else 0
