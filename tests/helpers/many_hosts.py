"""Many hosts for the price of one: host files, each leading to a worker of its own.

    many = many_here(project, folder, 50, set_env)      # no ssh: a `docker` of ours first on PATH
    with many_over_ssh(operator, sshd, 50) as many:     # real ssh: aliases of one rig host
        operator.runner("ps")

The hosts are `h01` … in `project/hosts/`. Each has its workspace below `many.folder`, named by its
container; the `docker` stand-in starts the worker program there. `put_run` writes a run's records,
as if its dispatcher had; none runs. How a host behaves is changed at any time: `slow`, `mute`,
`without_worker`; over ssh also the way to it: `many.door` (a port in front of sshd).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.model import Host
from runner.placement import container_suffix
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator

STAND_IN = """#!/bin/sh
# exec -i CONTAINER PROGRAM…; ps: no other container is there
[ "$1" = exec ] || exit 0
name=$3
shift 3
cd {folder} || exit 1
[ -e "$name.mute" ] && exec sleep 600
[ -e "$name.slow" ] && sleep "$(cat "$name.slow")"
if [ ! -d "$name" ]; then
    echo "Error response from daemon: No such container: $name" >&2
    exit 1
fi
RUNNER_WORKSPACE={folder}/$name RUNNER_LEASES={folder}/leases
export RUNNER_WORKSPACE RUNNER_LEASES
exec "$@"
"""


@dataclass
class ManyHosts:
    """Hosts that share a machine, and nothing else."""

    project: Path
    folder: Path
    """Where their workspaces are."""
    names: list[str]
    uid: int
    """Of the account the workers run in."""
    write: Callable[[Path, str], None]
    """Puts a file there, so that the account may change it."""
    doors: dict[str, Door] = field(default_factory=dict)
    """Over ssh: what stands between us and a host's sshd."""

    def container(self, name: str) -> str:
        """The name of a host's container."""
        return f"runner-{self.uid}-{container_suffix(Host(name, workspace=workspace(name)))}"

    def workspace(self, name: str) -> Path:
        """A host's workspace, seen from here."""
        return self.folder / self.container(name)

    def put_worker(self, name: str, worker: str | None = None) -> None:
        """Have a worker there; another id makes another worker of it."""
        body = {"format": 1, "worker": worker or f"w-{name:0>12}", "runtime": "docker", "slots": 1}
        self.write(self.workspace(name) / ".runner" / "worker.json", json.dumps(body))

    def put_run(self, name: str, run: str, state: str = "running", **spec: Any) -> None:
        """A run of the project (`p-1`) as its dispatcher would have written it."""
        body: dict[str, Any] = {"format": 1, "id": run, "project": {"id": "p-1", "name": "p"}}
        body.update(argv=["true"], params={}, nproc=1, gpus=0, accepted_at=time.time())
        body.update(spec)
        told: dict[str, Any] = {"format": 1, "state": state, "attempt": 1}
        told.update(submitted_at=body["accepted_at"], started_at=body["accepted_at"])
        if state == "ended":
            told.update(outcome="done", ended_at=body["accepted_at"])
        self.write(self.workspace(name) / "runs" / run / "spec.json", json.dumps(body))
        self.write(self.workspace(name) / "runs" / run / "state.json", json.dumps(told))

    def slow(self, name: str, seconds: float) -> None:
        """Its worker program starts so much later from now on."""
        self.write(self.folder / f"{self.container(name)}.slow", str(seconds))

    def mute(self, name: str) -> None:
        """The machine answers, and then says nothing for ever."""
        self.write(self.folder / f"{self.container(name)}.mute", "")

    def without_worker(self, name: str) -> None:
        """It has no container any more."""
        self.workspace(name).rename(self.folder / f"gone-{name}")


class Door:
    """A port of 127.0.0.1 that leads to another one: at once, late, or never."""

    def __init__(self, port: int) -> None:
        self._target = port
        self.delay_s: float | None = 0.0
        """How much later what is said passes; None: connections are taken, and nothing passes."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port: int = self._listener.getsockname()[1]
        self._kept: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more."""
        for each in (self._listener, *self._kept):
            with contextlib.suppress(OSError):
                each.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self._kept.append(near)
                if self.delay_s is not None:
                    threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        time.sleep(self.delay_s or 0)
        with contextlib.suppress(OSError):
            far = socket.create_connection(("127.0.0.1", self._target))
            self._kept.append(far)
            threading.Thread(target=_pass_on, args=(far, near), daemon=True).start()
            _pass_on(near, far)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def workspace(name: str) -> str:
    """What the host file says."""
    return f"~/many/{name}"


def names_of(count: int) -> list[str]:
    """`h01` and so on."""
    return [f"h{number:02d}" for number in range(1, count + 1)]


def many_here(
    project: Path, folder: Path, count: int, set_env: Callable[[str, str], None]
) -> ManyHosts:
    """Hosts of this machine, without ssh; their workers are children of ours."""
    tools = folder / "bin"
    tools.mkdir(parents=True)
    _put_stand_in(tools / "docker", folder)
    set_env("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    many = ManyHosts(project, folder, names_of(count), os.getuid(), _write)
    _lay(many, dict.fromkeys(many.names, "local"))
    return many


@contextlib.contextmanager
def many_over_ssh(
    operator: Operator, host: RigHost, count: int, *, doors: int = 0
) -> Iterator[ManyHosts]:
    """Hosts that are one rig host under many names, each with a connection of its own.

    doors: the first so many of them are reached through a door (`many.doors[NAME]`).
    """
    folder = host.home / "many"

    def write(path: Path, text: str) -> None:
        _write(path, text)
        for each in (path, *path.parents):
            if each == host.home:
                break
            os.chown(each, host.spec.uid, host.spec.uid)

    many = ManyHosts(operator.project, folder, names_of(count), host.spec.uid, write)
    write(folder / "leases" / ".keep", "")
    client, before = host.bin / "docker", host.bin / "docker.before"
    if client.exists():
        client.rename(before)
    config = operator.ssh_config.read_text()
    blocks = []
    for number, name in enumerate(many.names):
        port = host.spec.port
        if number < doors:
            many.doors[name] = Door(port)
            port = many.doors[name].port
        lines = [f"Host many-{name}", f"HostName {host.spec.address}", f"Port {port}"]
        blocks.append("\n    ".join([*lines, f"User {host.user}"]))
    try:
        _put_stand_in(client, folder)
        operator.ssh_config.write_text("\n\n".join([*blocks, config]))
        _lay(many, {name: f"many-{name}" for name in many.names}, host.host_key)
        yield many
    finally:
        operator.ssh_config.write_text(config)
        for door in many.doors.values():
            door.close()
        client.unlink()
        if before.exists():
            before.rename(client)


def _lay(many: ManyHosts, targets: dict[str, str], key: str | None = None) -> None:
    for name, target in targets.items():
        lines = [f'ssh = "{target}"', 'runtime = "docker"', f'workspace = "{workspace(name)}"']
        if name in many.doors:
            lines.append(f'host_key = "{key}"')  # known_hosts know it by another port
        _write(many.project / "hosts" / f"{name}.toml", "\n".join(lines) + "\n")
        many.put_worker(name)


def _put_stand_in(path: Path, folder: Path) -> None:
    path.write_text(STAND_IN.format(folder=folder))
    path.chmod(0o755)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
