"""What `top` shows: the runs that have not ended, and how their hosts are, as they say it now."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from runner import states
from runner.app import retrying
from runner.app.context import (
    Context,
    contact_of,
    is_elsewhere,
    is_pulled,
    read_status,
    remembered,
    silent,
    unread,
)
from runner.app.many import on_hosts
from runner.app.reports import Card, HostFacts, HostNow, RunNow, Top
from runner.app.results import Contact, RunOnHost
from runner.app.runs import check_listed, contact_last_seen, last_seen_on
from runner.endpoint import Worker
from runner.errors import RunnerError
from runner.model import Host
from runner.wire import RunStatus, is_number

WINDOW_S = 60.0
"""How far back it is looked for how fast a run goes."""
REMEMBER_S = 30.0
"""A run that goes on is written down so often, for when its host says nothing."""
MOST_CARDS = 256
_MOST_TEXT = 200


@dataclass(frozen=True)
class Told:
    """What one host said."""

    statuses: tuple[RunStatus, ...]
    contact: Contact
    facts: HostFacts


@dataclass(frozen=True)
class Answer:
    """What is known of a host: the last it said, and what is wrong since."""

    host: Host
    told: Told | None = None
    error: RunnerError | None = None
    connecting: bool = False


def once(ctx: Context, host: str | None, everyone: bool) -> Top:
    """One look at all hosts, or at one. Errors as of `runs.list_runs`."""
    asked = [ctx.host(host)] if host else list(ctx.hosts.values())
    found = on_hosts(
        ctx,
        asked,
        lambda each, connect: retrying.look(
            ctx.report, connect, lambda worker: ask(ctx, worker, everyone)
        ),
        what="top",
    )
    ctx.report.done()
    for each, _, error in found:
        check_listed(each, error, host is not None)
    answers = [Answer(each, told, error) for each, told, error in found]
    return Pages(ctx, everyone, named=host is not None).page(answers)


def ask(ctx: Context, worker: Worker, everyone: bool) -> Told:
    """What a host says now. Raises as `Worker.call`."""
    reply, rows = worker.call("top", project=None if everyone else ctx.project.id)
    statuses = tuple(read_status(row, worker.host.name) for row in rows)
    return Told(statuses, contact_of(ctx, worker), read_facts(reply))


# -- how a host is ---------------------------------------------------------------------------------


def read_facts(reply: Mapping[str, Any]) -> HostFacts:
    """The facts of a worker's answer; whatever is not as it should be is unknown."""
    slots, disk, cards = (reply.get(key) for key in ("slots", "disk", "gpus"))
    slots = slots if isinstance(slots, Mapping) else {}
    disk = disk if isinstance(disk, Mapping) else {}
    rows = cards if isinstance(cards, list) else []
    return HostFacts(
        cards=tuple(_card(row) for row in rows[:MOST_CARDS] if isinstance(row, Mapping)),
        cards_age_s=_number(reply.get("gpus_age_s")),
        cards_problem=_text(reply.get("gpus_problem")),
        slots=_count(slots.get("total")),
        slots_used=_count(slots.get("used")),
        disk_total=_number(disk.get("total")),
        disk_free=_number(disk.get("free")),
        disk_reserve=_number(disk.get("reserve")),
        live=_count(reply.get("live")),
        queued=_count(reply.get("queued")),
        drained=reply.get("drained") is True,
    )


def _card(row: Mapping[str, Any]) -> Card:
    worker, stranger = row.get("worker"), row.get("stranger")
    other = None
    if isinstance(worker, Mapping):
        other = _text(worker.get("image")) or _text(worker.get("runtime")) or "another worker"
    return Card(
        index=_count(row.get("index")),
        uuid=_text(row.get("uuid")),
        name=_text(row.get("name")),
        total_mib=_number(row.get("total_mib")),
        used_mib=_number(row.get("used_mib")),
        load_percent=_number(row.get("load_percent")),
        run=_text(row.get("run")),
        worker=other,
        stranger=_stranger(stranger) if isinstance(stranger, Mapping) else None,
    )


def _stranger(row: Mapping[str, Any]) -> str:
    user, program = _text(row.get("user")), _text(row.get("program"))
    return f"{user}'s {program}" if user and program else user or program or "others"


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) and 0 <= value < 2**63 else None


def _count(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _text(value: Any) -> str | None:
    return value[:_MOST_TEXT] if isinstance(value, str) and value else None


# -- how fast runs go ------------------------------------------------------------------------------


class Rates:
    """Steps a second of runs, from what they said in the last minute."""

    def __init__(self) -> None:
        self._points: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        self._attempts: dict[tuple[str, str], int] = {}

    def rate(self, host: str, status: RunStatus) -> float | None:
        """How fast a run goes, its newest word included; None while that cannot be known.

        Of a first attempt that spoke but once: on the average since it started.
        """
        key = (host, status.id)
        if status.state not in states.LIVE or status.step is None or status.progress_at is None:
            return None
        points = self._points.setdefault(key, deque())
        step, at = status.step, status.progress_at
        back = points and (step < points[-1][1] or at < points[-1][0])
        if self._attempts.get(key) != status.attempt or back:
            points.clear()
            self._attempts[key] = status.attempt
        if not points or at > points[-1][0]:
            points.append((at, step))
        while len(points) > 2 and points[0][0] < at - WINDOW_S:
            points.popleft()
        (first_at, first), (last_at, last) = points[0], points[-1]
        if last_at > first_at:
            return (last - first) / (last_at - first_at)
        if status.attempt == 1 and status.started_at is not None and at > status.started_at:
            return step / (at - status.started_at)
        return None

    def keep(self, keys: Iterable[tuple[str, str]]) -> None:
        """Forget all other runs."""
        for gone in set(self._points).difference(keys):
            del self._points[gone]
            self._attempts.pop(gone, None)


# -- all of it -------------------------------------------------------------------------------------


class Pages:
    """Makes pages of what the hosts said; remembers what that takes between two of them."""

    def __init__(self, ctx: Context, everyone: bool, *, named: bool) -> None:
        """named: one host was asked for by its name."""
        self._ctx = ctx
        self._everyone = everyone
        self._named = named
        self._rates = Rates()
        self._elsewhere: dict[tuple[str, str, str | None], bool] = {}
        self._written: dict[str, tuple[Any, ...]] = {}
        self._recorded: dict[str, tuple[Contact, list[RunOnHost]]] = {}

    def page(self, answers: Iterable[Answer]) -> Top:
        """A run that two host files lead to comes once, as in `runs.list_runs`."""
        hosts = [] if self._named else [HostNow(contact) for contact in unread(self._ctx)]
        runs: dict[str, RunOnHost] = {}
        silent_ones = []
        for answer in answers:
            if answer.told is None:
                silent_ones.append(answer)
                continue
            told, host = answer.told, answer.host.name
            contact = told.contact
            if answer.error is not None:
                contact = silent(host, answer.error, told.contact.at)
            hosts.append(HostNow(contact, told.facts if answer.error is None else None))
            for status in told.statuses:
                if status.id not in runs and not self._is_elsewhere(status.id, told.contact):
                    runs[status.id] = self._on_host(status, contact)
        for answer in silent_ones:
            contact, recorded = self._last_seen(answer)
            hosts.append(HostNow(contact, connecting=answer.connecting))
            for run in recorded:
                runs.setdefault(run.id, run)
        self._rates.keep([(run.host, run.id) for run in runs.values()])
        rows = [RunNow(run, self._rates.rate(run.host, run.status)) for run in runs.values()]
        order = {each: number for number, each in enumerate(self._ctx.hosts)}
        hosts.sort(key=lambda each: order.get(each.contact.host, -1))
        return Top(tuple(hosts), tuple(sorted(rows, key=_place)))

    def _is_elsewhere(self, run: str, contact: Contact) -> bool:
        key = (run, contact.host, contact.worker)
        if key not in self._elsewhere:
            self._elsewhere[key] = is_elsewhere(self._ctx, run, contact)
        return self._elsewhere[key]

    def _on_host(self, status: RunStatus, contact: Contact) -> RunOnHost:
        if contact.state == "ok":
            at = contact.at or time.time()
            mark = (contact.host, status.state, status.outcome, status.attempt, at // REMEMBER_S)
            if self._written.get(status.id) != mark:
                self._written[status.id] = mark
                return remembered(self._ctx, status, contact)
        pulled = is_pulled(self._ctx, status.id, status.state, status.attempt)
        return RunOnHost(status, contact, pulled)

    def _last_seen(self, answer: Answer) -> tuple[Contact, list[RunOnHost]]:
        """Of a host that was not heard since we look, what was known before."""
        name, error = answer.host.name, answer.error
        if name not in self._recorded:
            records = self._ctx.store.records()
            found = last_seen_on(self._ctx, answer.host, error, records, everyone=self._everyone)
            alive = [run for run in found if run.status.state != states.ENDED]
            self._recorded[name] = contact_last_seen(answer.host, error, records), alive
        contact, alive = self._recorded[name]
        return silent(name, error, contact.at), alive


def _place(row: RunNow) -> tuple[Any, ...]:
    """Those that live first, then what ended just now, then the queue in its order."""
    status = row.run.status
    if status.state == states.QUEUED:
        place = status.position if status.position is not None else 2**63
        return 2, row.run.host, place, status.submitted_at or 0, status.id
    return int(status.state == states.ENDED), "", 0, status.submitted_at or 0, status.id
