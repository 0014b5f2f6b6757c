"""Ways to a host: a byte stream to a program there, or commands one by one.

`transport` of the host file chooses. `auto` takes an OpenSSH child for a stream, and Fabric for a
session, and for a stream that is one of many at once, unless the user's ssh configuration holds
what paramiko cannot honour; without an ssh client it takes Fabric for both.
"""

from __future__ import annotations

from collections.abc import Sequence

from runner.carriers.base import Carrier, Completed, Session
from runner.carriers.local import open_local
from runner.model import Host

__all__ = ["Carrier", "Completed", "Session", "open_carrier", "open_session"]


def is_here(host: Host) -> bool:
    """Whether the host is this machine."""
    return host.ssh is None or host.ssh == "local"


def open_carrier(host: Host, argv: Sequence[str], *, lane: int = 0, many: bool = False) -> Carrier:
    """Starts the program `argv` on `host` and gives its byte stream.

    The program may be started twice when nothing came of the first (see `steady`), so it must do
    nothing before it is asked. lane: connections of different lanes are never one; each lane has
    one at most, and lane 0 shares those that are there. many: it is one of many hosts asked at
    once, so what takes least of this machine is chosen: a shared connection that is there, else
    Fabric, else a child. Errors that only show once connecting began come from the stream's
    `failure`, those of Fabric from here. Raises HostError, SpecError.
    """
    if is_here(host):
        return open_local(host, argv)
    from runner.carriers.ssh_config import have_ssh

    if host.transport == "fabric" or not have_ssh():
        from runner.carriers.fabric import open_fabric

        return open_fabric(host, argv)
    if many and host.transport == "auto":
        return _open_one_of_many(host, argv, lane)
    from runner.carriers.openssh import open_openssh

    return open_openssh(host, argv, lane=lane)


def _open_one_of_many(host: Host, argv: Sequence[str], lane: int) -> Carrier:
    """50 hosts at once take a third of the time as threads of ours that they take as children."""
    from runner.carriers.masters import living
    from runner.carriers.openssh import open_openssh
    from runner.carriers.ssh_command import control_socket
    from runner.carriers.ssh_config import read_route

    route = read_route(host, many=True)
    if route.last.config.own_control or living(control_socket(route, lane=lane)) is not None:
        return open_openssh(host, argv, lane=lane, route=route)
    from runner.carriers.fabric import open_fabric
    from runner.carriers.fabric_link import NotHonoured

    try:
        return open_fabric(host, argv, route=route)
    except NotHonoured:
        return open_openssh(host, argv, lane=lane, route=route)


def open_session(host: Host) -> Session:
    """Commands on `host`, a context manager. Raises HostError, SpecError."""
    if is_here(host):
        from runner.carriers.session import ChildSession  # most commands need none

        return ChildSession(host.name, list)
    from runner.carriers.openssh import open_openssh_session
    from runner.carriers.ssh_config import have_ssh

    if host.transport == "openssh" and have_ssh():
        return open_openssh_session(host)
    from runner.carriers.fabric import open_fabric_session
    from runner.carriers.fabric_link import NotHonoured

    try:
        return open_fabric_session(host)
    except NotHonoured:
        if host.transport == "fabric" or not have_ssh():
            raise
        return open_openssh_session(host)
