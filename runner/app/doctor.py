"""What keeps a run from starting: each host is asked once, and the worker that is up tries torch.

Whatever a host does, an answer is there within `LIMIT_S`: what has come by then is judged.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Mapping
from typing import Any

from runner import content, inventory
from runner.app.context import Context
from runner.carriers import is_here, open_session
from runner.carriers.ssh_config import read_route
from runner.children import end_new_at_exit
from runner.doctor import questions, worker
from runner.doctor.answers import Here, Seen, parse_answer
from runner.doctor.findings import HostHealth, fault
from runner.doctor.judge import judge
from runner.doctor.own_side import read_here
from runner.errors import Conflict, ProvisionError, RunnerError, SpecError, TimedOut, Unreachable
from runner.model import Host, ImagePin
from runner.worker_plan import IMAGES, plan_worker

LIMIT_S = 27.0
"""For all of it; 30 with the start of Python and the printing."""
_PROBE_S = 20.0
_LEAST_PROBE_S = 4.0
"""With less time left torch is not tried: its import alone takes as long."""
_AFTER_S = 3.0
"""For the answer's way back, and for the end of what was tried."""
_MOST_LINES = 200_000
_LOCAL = "~/.local/share/runner/workspace"


def doctor(ctx: Context, host: str | None) -> list[HostHealth]:
    """What was found on a host, or on every one of the project.

    Raises NotFound, SpecError for a host that was named.
    """
    chosen = [ctx.host(host)] if host else list(ctx.hosts.values())
    if host:
        _pin(ctx, chosen[0])
    healths = [] if host else [_unread(name, error) for name, error in ctx.broken.items()]
    end_new_at_exit()
    looks = [_Look(ctx, each, many=len(chosen) > 1) for each in chosen]
    until = time.monotonic() + LIMIT_S
    for look in looks:
        look.start(until)
    names = ", ".join(look.host.name for look in looks)
    ctx.report.step(f"looking at {names}")
    for look in looks:
        look.wait(until)
    ctx.report.done()
    return [look.health() for look in looks] + healths


def _pin(ctx: Context, host: Host) -> ImagePin:
    """The host's image; its own runtime has none. Raises SpecError."""
    if host.runtime == "local":
        return _no_pin(host)
    return inventory.find_image(ctx.images, host.image)


def _no_pin(host: Host) -> ImagePin:
    return ImagePin(host.image, "", "", "", "0", ())


def _unread(name: str, error: SpecError) -> HostHealth:
    check = fault("file", "ssh", error.message, *error.advice)
    return HostHealth(name, "unreachable", f"hosts/{name}.toml", 0.0, (check,))


class _Look:
    """One host, looked at by a thread of its own; what it has so far may be taken at any time."""

    def __init__(self, ctx: Context, host: Host, *, many: bool) -> None:
        self.host = host
        self._ctx = ctx
        self._many = many
        self._cut = f"runner-{secrets.token_hex(8)}"
        self._lines: list[str] = []
        self._text: str | None = None
        self._here = Here()
        self._error: RunnerError | None = None
        try:
            self._pin = _pin(ctx, host)
        except SpecError as error:
            self._pin, self._error = _no_pin(host), error
        self._bug: BaseException | None = None
        self._skew_s: float | None = None
        self._worker: Mapping[str, Any] | None = None
        self._worker_error: RunnerError | None = None
        self._stale = False
        self._asks_worker = False
        self._began = self._ended = time.monotonic()
        # a daemon: a host that hangs keeps no process alive
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, until: float) -> None:
        """Begin; nothing is begun any more after `until`."""
        self._until = until
        self._thread.start()

    def wait(self, until: float) -> None:
        """Until all is there, or the time is over. Raises what is a bug of ours."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._ended = time.monotonic()
            limit = f"{LIMIT_S:.0f} s"
            if self._asks_worker:
                self._worker_error = TimedOut(f"{self.host.name}: no end within {limit}")
            elif not self._lines:
                self._error = Unreachable(f"{self.host.name}: no answer within {limit}")
        if self._bug is not None:
            raise self._bug

    def health(self) -> HostHealth:
        """What was found."""
        seen = self._seen()
        jump = f" through {self.host.jump}" if self.host.jump else ""
        way = "this machine" if is_here(self.host) else f"{self.host.ssh}{jump}"
        contact = "ok" if seen.error is None else "unreachable"
        took_s = self._ended - self._began
        return HostHealth(self.host.name, contact, way, took_s, judge(seen))

    def _run(self) -> None:
        try:
            if self._error is None:
                self._look()
        except RunnerError as error:
            self._error = error
        except BaseException as bug:  # the edge of a thread: whoever waits must hear of it
            self._bug = bug
        if time.monotonic() < self._until:
            self._ended = time.monotonic()

    def _look(self) -> None:
        try:
            route = None if is_here(self.host) else read_route(self.host)
        except RunnerError:
            self._here = read_here(self.host, None)
            raise
        self._here = read_here(self.host, route)
        with open_session(self.host) as session:
            argv = questions.argv(
                self.host, self._pin, self._cut, workspace=self._workspace(), images=IMAGES
            )
            limit_s = max(0.5, self._until - time.monotonic() - 0.5)
            try:
                done = session.run(argv, timeout_s=limit_s, on_line=self._take)
                self._text = done.stdout.decode("utf-8", "replace")
            except TimedOut:
                return  # what has come is judged
        seen = self._seen()
        if seen.facts is None:
            if seen.stopped_in is not None:
                said = (done.error_text or done.text).splitlines()[-1:]
                raise ProvisionError(f"{self.host.name}: its answer breaks off", *said)
            return
        self._stale = _is_stale(seen)
        if worker.is_made(seen) and self._until - time.monotonic() > _LEAST_PROBE_S:
            self._ask_worker()

    def _workspace(self) -> str:
        if self.host.runtime == "local":
            return os.environ.get("RUNNER_WORKSPACE") or _LOCAL
        return self.host.workspace

    def _take(self, line: str) -> None:
        """A line that the host has just said; the one after `clock` is its time."""
        if self._skew_s is None and self._lines[-1:] == [f"{self._cut} clock"]:
            try:
                self._skew_s = float(line) - time.time()
            except ValueError:
                pass
        if len(self._lines) < _MOST_LINES:
            self._lines.append(line)

    def _ask_worker(self) -> None:
        self._asks_worker = True
        image = self.host.image if self.host.runtime == "docker" else None
        try:
            with self._ctx.connect(self.host, many=self._many, image=image) as there:
                there.hello  # noqa: B018 - waits for it
                limit_s = min(_PROBE_S, self._until - time.monotonic() - _AFTER_S)
                self._worker, _ = there.call("probe", limit_s=max(0.1, round(limit_s, 1)))
        except RunnerError as error:
            self._worker_error = error
        self._asks_worker = False

    def _seen(self) -> Seen:
        text = self._text if self._text is not None else "\n".join(list(self._lines))
        answer = parse_answer(text, self._cut, self.host)
        return Seen(
            host=self.host,
            pin=self._pin,
            pins=self._ctx.images,
            here=self._here,
            error=self._error,
            parts=answer.parts,
            facts=answer.facts,
            venv=answer.venv,
            stopped_in=answer.stopped_in,
            skew_s=self._skew_s,
            worker=self._worker,
            worker_error=self._worker_error,
            stale=self._stale,
        )


def _is_stale(seen: Seen) -> bool:
    """Whether a provision would make another worker than the one that is up."""
    facts = seen.facts
    if seen.host.runtime != "docker" or facts is None or facts.base_id is None:
        return False
    if not worker.is_made(seen):
        return False
    digest = hashlib.sha256(content.image_context()).hexdigest()
    try:
        plan = plan_worker(
            seen.host, seen.pin, facts, context_digest=digest, rebuild=False, new_worker="w-none"
        )
    except (ProvisionError, Conflict, KeyError):
        return False
    return not plan.is_done
