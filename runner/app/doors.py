"""A session with GPUs is a run: it leases them, shows in `ps`, and ends with its last session."""

from __future__ import annotations

import time

from runner import flow, intents, states
from runner.app import retrying, submit
from runner.app.context import Context, seen_one
from runner.app.logins import Door
from runner.endpoint import Worker
from runner.errors import RunFailed, RunnerError, Unreachable
from runner.model import Host
from runner.placement import suffix_elsewhere
from runner.spec import parse_submit

_LOOK_S = 0.5
_LOOK_SLOWLY_S = 2.0
_SOON = 20
"""Looks that are quick: most GPUs are free."""
_RETRY_S = 2.0


def begin(ctx: Context, host: Host, kind: str, gpus: int, image: str | None) -> str:
    """The id of a new run that is a door (`shell`, `lab`). Raises what `submit` does."""
    words = [f"host={host.name}", f"gpus={gpus}", "nproc=1", "restarts=0"]
    words += [f"image={image}"] if image else []
    request = parse_submit(words, list(intents.door_argv(kind)))
    return submit.submit(ctx, request, lambda ids: None)[0]


def wait_open(ctx: Context, door: Door) -> str | None:
    """Returns when the run's door is open: the container it is in, where that is another one.

    What it waits for is told meanwhile. Raises RunFailed when it ended before, HostError.
    """
    _wait_started(ctx, door)
    assert door.run is not None
    container: str | None = None
    while True:
        try:
            with ctx.connect(door.host, image=door.image, container=container) as worker:
                _touch(worker, door.run)
                ctx.report.done()
                return container
        except RunnerError as error:
            there = suffix_elsewhere(door.host, error.told) if error.code == "elsewhere" else None
            if there is None or there == container:
                raise
            container = there


def stop(ctx: Context, door: Door, container: str | None) -> None:
    """Ask a door to end its run."""
    with ctx.connect(door.host, image=door.image, container=container) as worker:
        request = worker.open("forward", to="stop", run=door.run, window=flow.LEAST_WINDOW)
        request.event()
        request.end()
        request.finish()


def _touch(worker: Worker, run: str) -> None:
    """Somebody comes. Raises RunnerError when the door does not open."""
    request = worker.open("forward", to="hold", run=run, window=flow.LEAST_WINDOW)
    request.event()
    request.end()
    request.finish()


def _wait_started(ctx: Context, door: Door) -> None:
    looks = 0
    while True:
        try:
            found = retrying.look(
                ctx.report,
                lambda: ctx.connect(door.host),
                lambda worker: seen_one(
                    ctx, worker, str(door.run), worker.call("runs", ids=[door.run])[1]
                ),
            )
        except Unreachable as error:
            ctx.report.trouble(f"{error}; {door.run} keeps its place; asking again")
            time.sleep(_RETRY_S)
            continue
        if found is None:
            raise ctx.no_run(door.host.name, str(door.run))
        status = found.status
        if status.state == states.RUNNING:
            return
        if status.state == states.ENDED:
            text = str((status.cause or {}).get("text") or status.outcome)
            raise RunFailed(f"{door.run} ended before it opened: {text}", f"runner why {door.run}")
        if status.reason:
            ctx.report.step(f"{door.run}  waits: {status.reason}; Ctrl-C gives up")
        looks += 1
        time.sleep(_LOOK_S if looks < _SOON else _LOOK_SLOWLY_S)
