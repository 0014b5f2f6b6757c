"""Getting into a worker: a shell, ssh's own configuration, and the stream that carries ssh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runner.app import forwarding
from runner.app.context import Context
from runner.carriers import worker_login
from runner.carriers.worker_login import Login
from runner.endpoint import Worker
from runner.errors import RunnerError, WorkerError
from runner.model import Host
from runner.placement import suffix_elsewhere

_SHELL = 'cd "$1" && shift && if [ $# = 0 ]; then exec "${SHELL:-/bin/sh}" -l; fi && exec "$@"'


@dataclass(frozen=True)
class Door:
    """Where a session goes: a worker, or a run in it."""

    host: Host
    image: str | None = None
    """Of which of the host's workers; None: the host's own."""
    run: str | None = None
    """The run that serves the session; None: the worker itself."""


def log_in(ctx: Context, door: Door) -> tuple[Login, str]:
    """(how ssh gets in, the workspace's path there), all of it prepared. Raises RunnerError."""
    host = door.host
    folder = ctx.store.ssh_folder()
    key, public = worker_login.own_key(folder)
    with ctx.connect(host, image=door.image) as worker:
        told, _ = worker.call("login", key=public)
    login = _prepare(ctx, door, told, public)
    ctx.report.done()
    workspace = told.get("workspace")
    if not isinstance(workspace, str) or not workspace.startswith("/"):
        raise WorkerError(f"{host.name}: the worker's workspace cannot be read")
    return login, workspace


def _prepare(ctx: Context, door: Door, told: Mapping[str, object], public: str) -> Login:
    host = door.host
    folder = ctx.store.ssh_folder()
    host_key = worker_login.known_key(host, told.get("host_key"))
    user = worker_login.user_name(host, told.get("user"))
    if not told.get("authorized"):
        worker_login.authorize(host, ctx.project, public)
    alias = worker_login.alias_of(host)
    why = told.get("no_terminal")
    words = [f"host={host.name}"]
    words += [f"image={door.image}"] if door.image else []
    words += [f"run={door.run}"] if door.run else []
    return Login(
        host=host.name,
        user=user,
        alias=alias,
        key=folder / "id_ed25519",
        known_hosts=worker_login.know(folder, alias, host_key),
        stream=worker_login.stream_argv(ctx.project, words),
        no_terminal=why if isinstance(why, str) else None,
    )


def has_terminal(login: Login, command: Sequence[str], *, wanted: bool) -> bool:
    """Whether a session gets a terminal: a command does without one where there is none.

    Raises WorkerError for a shell.
    """
    if wanted and login.no_terminal is not None and not command:
        raise WorkerError(
            f"{login.host}: a shell has no terminal there: {login.no_terminal}",
            f"a command needs none:  runner shell host={login.host} -- nvidia-smi",
            "its keeper can mend it:  mount -o remount,gid=5,mode=620 /dev/pts",
        )
    return wanted and login.no_terminal is None


def shell_argv(login: Login, where: str, command: Sequence[str], *, terminal: bool) -> list[str]:
    """The ssh that runs `command` in that folder of the worker; none: a login shell."""
    return worker_login.ssh_argv(
        login, terminal=terminal, command=["sh", "-c", _SHELL, "runner", where, *command]
    )


def stream(ctx: Context, door: Door) -> None:
    """Our stdin and stdout as a connection to the sshd of a worker or run. Raises RunnerError.

    The key may log in, and the host key is known, before the first byte: a worker may have been
    made anew since ssh's configuration was written.
    """
    _, public = worker_login.own_key(ctx.store.ssh_folder())
    container: str | None = None
    while True:
        try:
            with ctx.connect(door.host, image=door.image, container=container) as worker:
                _stream(ctx, door, worker, public)
                return
        except RunnerError as error:
            there = suffix_elsewhere(door.host, error.told) if error.code == "elsewhere" else None
            if there is None or there == container:
                raise
            container = there


def _stream(ctx: Context, door: Door, worker: Worker, public: str) -> None:
    told, _ = worker.call("login", key=public)
    _prepare(ctx, door, told, public)
    ctx.report.done()
    forwarding.pump(worker, forwarding.Target("ssh", door.run))
