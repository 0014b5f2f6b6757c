"""What every use case starts from: the project, its hosts, and where to report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from runner import inventory, states
from runner.app.results import Contact, Report, RunOnHost
from runner.endpoint import LinkLost, Request, Worker
from runner.errors import (
    NotFound,
    ProvisionError,
    RunnerError,
    SpecError,
    Unreachable,
    WorkerError,
)
from runner.model import Host, ImagePin, Project
from runner.show.units import moment, plural
from runner.store import KnownWorker, Record, Store
from runner.wire import RunStatus, WireError

UNKNOWN_WORKER = "w-unknown"
"""What a workspace says of itself in which no worker was ever made."""


class Slow(Unreachable):
    """One of several hosts that was not waited for any longer; it may well be there."""


@dataclass(frozen=True)
class Context:
    """One command's surroundings."""

    project: Project
    hosts: Mapping[str, Host]
    report: Report
    broken: Mapping[str, SpecError] = field(default_factory=dict)
    """Hosts whose files are wrong, and how: whoever asks for one of them is told."""
    replaced: set[str] = field(default_factory=set)
    """Hosts that answered as another worker than the last time, this command being the first to
    see it.
    """
    lost: set[str] = field(default_factory=set)
    """Hosts whose link was lost and is being made again: what is shown says so, and stays."""

    @cached_property
    def store(self) -> Store:
        """The project's own records."""
        return Store(self.project)

    @cached_property
    def images(self) -> Mapping[str, ImagePin]:
        """The image pins known here."""
        return inventory.read_images(self.project)

    def host(self, name: str) -> Host:
        """A host by name. Raises NotFound with the nearest one, SpecError for a wrong file."""
        if name in self.broken:
            raise self.broken[name]
        return inventory.find_host(self.hosts, name)

    def connect(
        self,
        host: Host,
        *,
        lane: int = 0,
        many: bool = False,
        image: str | None = None,
        container: str | None = None,
    ) -> Worker:
        """A conversation with a host's worker; lane, many: see `carriers.open_carrier`; image,
        container: see `Worker`.

        Before the first request goes out it is known whether the worker is the one of last time.
        """
        if not many and lane == 0 and host.name not in self.lost:
            self.report.step(f"connecting to {host.name}")
        return _Known(self, host, lane=lane, many=many, image=image, container=container)

    def greet(self, host: str, worker: Any) -> None:
        """Remember which worker a host answers as, and warn, once, when it is another one."""
        if not isinstance(worker, str) or worker == UNKNOWN_WORKER:
            return
        known = self.store.known_worker(host)
        if known is not None and known.worker == worker:
            return
        with contextlib.suppress(SpecError):  # a folder that cannot be written stops no command
            self.store.put_worker(host, worker, time.time())
        if known is not None:
            self.replaced.add(host)
            was = f"it was {known.worker} since {moment(known.since, time.time())}"
            self.report.warn(
                f"{host}: answers as another worker ({worker}; {was}): the machine or its "
                "workspace was replaced; runs of before are not there"
            )

    def since_replaced(self, host: str, at: float | None = None) -> KnownWorker | None:
        """The worker a host has now, if what was there at that time was another one (None: at
        any time).
        """
        known = self.store.known_worker(host)
        if known is None or not known.before or (at is not None and at >= known.since):
            return None
        return known

    def no_run(self, host: str, run: str) -> NotFound:
        """That a host does not know a run; also why, where its worker was replaced."""
        return NotFound(f"{host}: no run {run} there any more", *self.gone_advice(host))

    def gone_advice(self, host: str) -> list[str]:
        """What may explain that a run is not there any more."""
        known = self.since_replaced(host)
        if known is None:
            return ["runner ps --all"]
        now = time.time()
        return [
            f"{host} answers as another worker since {moment(known.since, now)}: "
            f"{known.worker}; before it was {known.before[0]}",
            "runs of before went with that one; the others: runner ps --all",
        ]


class _Known(Worker):
    """A worker that is looked at before the first request, and whose `no such run` is explained."""

    def __init__(self, ctx: Context, host: Host, **options: Any) -> None:
        self._ctx = ctx
        self._greeted = False
        super().__init__(host, **options)

    def open(self, verb: str, *, beside: Request | None = None, **arguments: Any) -> Request:
        if not self._greeted:
            self._ctx.greet(self.host.name, self.hello.get("worker"))
            self._ctx.lost.discard(self.host.name)
            self._greeted = True
        return super().open(verb, beside=beside, **arguments)

    def __exit__(self, *raised: object) -> None:
        _, error, _ = raised
        if isinstance(error, LinkLost):
            self._ctx.lost.add(self.host.name)
        if isinstance(error, NotFound) and error.code == "unknown-run":
            error.advice = (*error.advice, *self._ctx.gone_advice(self.host.name))
        super().__exit__(*raised)


def open_context(report: Report, start: Path | None = None) -> Context:
    """The context of the folder we are in. Raises SpecError when it is in no project."""
    project = inventory.find_project(start or Path.cwd())
    hosts, broken = inventory.read_each_host(project)
    return Context(project, hosts, report, broken)


def read_status(body: Any, host: str) -> RunStatus:
    """A run's status that a worker sent. Raises WorkerError."""
    try:
        return RunStatus.from_json(body if isinstance(body, dict) else {})
    except WireError as error:
        raise WorkerError(f"{host}: the worker's answer cannot be read: {error}") from error


def contact_of(ctx: Context, worker: Worker) -> Contact:
    """That a host answers, and as which worker."""
    name, told = worker.host.name, worker.hello.get("worker")
    return Contact(
        name,
        at=time.time(),
        clock_skew_s=round(worker.clock_skew_s, 3),
        worker=told if isinstance(told, str) and told != UNKNOWN_WORKER else None,
        replaced=name in ctx.replaced,
    )


def seen(
    ctx: Context, worker: Worker, body: Any, among: Collection[str] | None = None
) -> RunOnHost:
    """A run as a worker just told, remembered. among: those asked for. Raises WorkerError."""
    status = read_status(body, worker.host.name)
    if among is not None and status.id not in among:
        raise WorkerError(f"{worker.host.name}: the worker answered for another run")
    contact = contact_of(ctx, worker)
    if is_elsewhere(ctx, status.id, contact):
        return _on_host(ctx, status, contact)
    return remembered(ctx, status, contact)


def remembered(ctx: Context, status: RunStatus, contact: Contact) -> RunOnHost:
    """A run of a host (see `is_elsewhere`) as that just told, kept for when it does not answer."""
    with contextlib.suppress(SpecError):  # a disk that is full stops no command
        ctx.store.put(contact.host, status.to_json(), contact.at or time.time())
    return _on_host(ctx, status, contact)


def is_elsewhere(ctx: Context, run: str, contact: Contact) -> bool:
    """Whether another host of ours is known to have this run, and it leads to another worker.

    What a host tells of such a run counts for nothing: it must not take over a run of another one.
    """
    known = ctx.store.record(run)
    if known is None or known.host == contact.host or known.host not in ctx.hosts:
        return False
    there = ctx.store.known_worker(known.host)
    return there is not None and contact.worker not in (there.worker, *there.before)


def seen_one(ctx: Context, worker: Worker, run: str, rows: list[Any]) -> RunOnHost | None:
    """The one run that was asked for; None when its worker does not know it. Raises WorkerError."""
    if not rows:
        return None
    return seen(ctx, worker, rows[0], [run])


def last_seen(ctx: Context, run: str, error: RunnerError | None = None) -> RunOnHost | None:
    """A run as the records know it, its host being out of reach."""
    record = ctx.store.record(run)
    return None if record is None else as_recorded(ctx, record, error)


def as_recorded(ctx: Context, record: Record, error: RunnerError | None) -> RunOnHost:
    """The run of a record, its host giving no answer."""
    status = read_status(dict(record.run), record.host)
    return _on_host(ctx, status, silent(record.host, error, record.seen_at))


def _on_host(ctx: Context, status: RunStatus, contact: Contact) -> RunOnHost:
    return RunOnHost(status, contact, is_pulled(ctx, status.id, status.state, status.attempt))


def silent(host: str, error: RunnerError | None, at: float | None = None) -> Contact:
    """How a host is shown that gave no answer of its worker's; `at` is when it was last heard."""
    state = "no-worker" if isinstance(error, ProvisionError) else "unreachable"
    return Contact(
        host,
        state,
        at,
        str(error) if error else None,
        advice=error.advice if error is not None else (),
        slow=isinstance(error, Slow),
        refused=error is not None and not isinstance(error, (ProvisionError, Unreachable)),
    )


def unread(ctx: Context) -> list[Contact]:
    """The hosts whose files are wrong, as hosts that gave no answer."""
    return [
        Contact(name, "unreachable", None, error.message, advice=error.advice, refused=True)
        for name, error in ctx.broken.items()
    ]


def check_image(worker: Worker, wanted: Any, run: str | None = None) -> None:
    """Refuse a run that names an image where the worker has another one. Raises SpecError."""
    there = worker.hello.get("image")
    if wanted is not None and there != wanted:
        name = worker.host.name
        raise SpecError(
            f"{run} ran in image {wanted}; {name} has {there} now"
            if run
            else f"{name}: its worker has image {there}, not {wanted}",
            f"runner provision host={name} image={wanted}",
            "nothing was sent",
        )


@contextlib.contextmanager
def worker_of(ctx: Context, worker: Worker, image: Any, run: str | None = None) -> Iterator[Worker]:
    """The worker of an image on the host of `worker`: that one, or a conversation with another.

    image: None for whichever it is. run: what ran in it. Raises ProvisionError when there is none
    of that image.
    """
    if not isinstance(image, str) or worker.hello.get("image") == image:
        yield worker
    elif worker.host.runtime == "local":
        check_image(worker, image, run)
    else:
        with ctx.connect(worker.host, image=image) as other:
            check_image(other, image)
            yield other


def queue_text(status: RunStatus, host: str, gpus: int) -> str:
    """`gpu1, 2 GPUs, next after dqn-c41hd`: where a new run waits, and for what, if for long."""
    parts = [host, *([plural(gpus, "GPU")] if gpus else [])]
    kind = str((status.waits or {}).get("kind"))
    told = (status.position or 0) > 1 or kind in ("drained", "disk", "after", "gpus")
    if status.state == states.QUEUED and status.reason and told:
        parts.append(status.reason)
    return ", ".join(parts)


def is_pulled(ctx: Context, run: str, state: Any, attempt: Any) -> bool:
    """Whether a run has ended and the whole of it was pulled, its last attempt included."""
    return bool(state == states.ENDED and pulled_attempt(ctx, run) == attempt)


def pulled_attempt(ctx: Context, run: str) -> int | None:
    """The attempt after whose end the whole of a run was pulled; None where it was not."""
    book = ctx.store.pulled(run)
    attempt = book.get("attempt")
    return attempt if book.get("complete") and isinstance(attempt, int) else None
