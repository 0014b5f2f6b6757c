"""What every use case starts from: the project, its hosts, and where to report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from runner import inventory, states
from runner.app.results import Contact, Report, RunOnHost
from runner.endpoint import Worker
from runner.errors import ProvisionError, RunnerError, SpecError, WorkerError
from runner.model import Host, ImagePin, Project
from runner.show.units import plural
from runner.store import Store
from runner.wire import RunStatus, WireError

MOST_HOSTS_AT_ONCE = 50
T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """One command's surroundings."""

    project: Project
    hosts: Mapping[str, Host]
    report: Report
    broken: Mapping[str, SpecError] = field(default_factory=dict)
    """Hosts whose files are wrong, and how: whoever asks for one of them is told."""

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

    def connect(self, host: Host, *, lane: int = 0, many: bool = False) -> Worker:
        """A conversation with a host's worker; lane, many: see `carriers.open_carrier`."""
        self.report.step(f"connecting to {host.name}")
        return Worker(host, lane=lane, many=many)


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


def seen(ctx: Context, worker: Worker, body: Any) -> RunOnHost:
    """A run as a worker just told, remembered."""
    status = read_status(body, worker.host.name)
    now = time.time()
    ctx.store.put(worker.host.name, status.to_json(), now)
    contact = Contact(worker.host.name, "ok", now, None, round(worker.clock_skew_s, 3))
    return RunOnHost(status, contact, is_pulled(ctx, status.id, status.state, status.attempt))


def seen_one(ctx: Context, worker: Worker, run: str, rows: list[Any]) -> RunOnHost | None:
    """The one run that was asked for; None when its worker does not know it. Raises WorkerError."""
    if not rows:
        return None
    found = seen(ctx, worker, rows[0])
    if found.id != run:
        raise WorkerError(f"{worker.host.name}: the worker answered for another run")
    return found


def last_seen(ctx: Context, run: str, error: str | None = None) -> RunOnHost | None:
    """A run as the records know it, its host being out of reach."""
    record = ctx.store.record(run)
    if record is None:
        return None
    status = read_status(dict(record.run), record.host)
    contact = Contact(record.host, "unreachable", record.seen_at, error)
    return RunOnHost(status, contact, is_pulled(ctx, run, status.state, status.attempt))


def silent(host: Host, error: RunnerError | None, at: float | None = None) -> Contact:
    """How a host is shown that gave no answer of its worker's; `at` is when it was last heard."""
    state = "no-worker" if isinstance(error, ProvisionError) else "unreachable"
    advice = error.advice if error is not None else ()
    return Contact(host.name, state, at, str(error) if error else None, None, advice)


def unread(ctx: Context) -> list[Contact]:
    """The hosts whose files are wrong, as hosts that gave no answer."""
    return [
        Contact(name, "unreachable", None, "; ".join([error.message, *error.advice]))
        for name, error in ctx.broken.items()
    ]


def check_image(worker: Worker, wanted: Any) -> None:
    """Refuse a run that names an image where the worker has another one. Raises SpecError."""
    there = worker.hello.get("image")
    if wanted is not None and there != wanted:
        name = worker.host.name
        raise SpecError(
            f"{name}: its worker has image {there}, not {wanted}",
            f"runner provision host={name} image={wanted}",
            "nothing was sent",
        )


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


def on_hosts(
    hosts: Iterable[Host], act: Callable[[Host], T]
) -> list[tuple[Host, T | None, RunnerError | None]]:
    """`act` on each host at the same time: (host, what came, what went wrong), in their order."""
    listed = list(hosts)

    def attempt(host: Host) -> tuple[Host, T | None, RunnerError | None]:
        try:
            return host, act(host), None
        except RunnerError as error:
            return host, None, error

    if len(listed) == 1:
        return [attempt(listed[0])]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=min(MOST_HOSTS_AT_ONCE, max(1, len(listed)))) as pool:
        return list(pool.map(attempt, listed))
