"""What is open on a worker, seen through a port of this machine: each connection a stream of one
conversation, made again when its link is lost.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from runner import flow, wire
from runner.app.context import Context
from runner.endpoint import Request, Worker, wire_json
from runner.errors import ProvisionError, RunnerError, SpecError, Unreachable
from runner.model import Host

WINDOW = 128 * 1024
MOST_CONNECTIONS = 48
"""Their windows fit into what either side keeps unread. More wait until one has ended."""
RETRY_WAITS_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
WITHOUT_WORKER_S = 300.0
_LOOK_S = 1.0


@dataclass(frozen=True)
class Target:
    """What a port leads to."""

    to: str
    """`jupyter` or `tensorboard`."""
    run: str | None = None
    """The run whose door it is behind; None for the worker's own."""


class Listener:
    """A port of this machine's loopback, for programs of this user alone."""

    def __init__(self, port: int | None = None) -> None:
        """port: that one; None for any that is free. Raises SpecError."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port or 0))
        except OSError as error:
            self._socket.close()
            raise SpecError(
                f"port {port} of this machine cannot be used: {error.strerror}",
                "without port= a free one is taken",
            ) from error
        self._socket.listen(128)
        self.port: int = self._socket.getsockname()[1]

    def accept(self, timeout_s: float) -> socket.socket | None:
        """A connection of this user's; None when none came in time. Raises OSError once closed."""
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return None
        connection, address = self._socket.accept()
        if _may_enter(connection_owner(address[1], self.port)):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        connection.close()
        return None

    def close(self) -> None:
        """No more connections."""
        self._socket.close()


def can_tell_users() -> bool:
    """Whether this system tells whose a connection is, so that others' are refused."""
    return os.path.exists("/proc/net/tcp")


def connection_owner(peer_port: int, port: int) -> int | None:
    """The uid of the program at the other end of a connection to a port of our loopback; None
    where that cannot be known, -1 where it is gone.
    """
    wanted = [f"0100007F:{number:04X}" for number in (peer_port, port)]
    try:
        with open("/proc/net/tcp", encoding="ascii") as file:
            for line in file:
                words = line.split()
                if words[1:3] == wanted:
                    return int(words[7])
    except (OSError, ValueError, IndexError):
        return None
    return -1


def _may_enter(owner: int | None) -> bool:
    return owner is None or owner in (0, os.getuid())


class Forwarder:
    """Carries the connections of a listener, over as many conversations as it takes."""

    def __init__(
        self,
        ctx: Context,
        host: Host,
        target: Target,
        listener: Listener,
        *,
        image: str | None = None,
        container: str | None = None,
    ) -> None:
        """image, container: of which of the host's workers, see `Worker`."""
        self._ctx = ctx
        self._host = host
        self._target = target
        self._listener = listener
        self._connect = partial(ctx.connect, host, image=image, container=container)
        self._worker: Worker | None = None
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def run(self, on_ready: Callable[[str], None]) -> None:
        """Until interrupted; on_ready is told the token, if there is one, once it can be used.

        Raises RunnerError for what does not pass by itself: HostError when the host was never
        reached, ProvisionError when nothing can be started there.
        """
        threading.Thread(target=self._accept, daemon=True).start()
        lost_at: float | None = None
        told = False
        tries = 0
        while True:
            try:
                with self._connect() as worker:
                    for event in _watch(worker, self._target):
                        self._worker = worker
                        if not told:
                            self._ctx.report.done()
                            on_ready(str(event.get("token") or ""))
                            told = True
                        if lost_at is not None:
                            self._ctx.report.done()
                            self._ctx.report.note(_back_text(self._host.name, lost_at))
                            lost_at = None
                        tries = 0
                    return
            except (Unreachable, ProvisionError) as error:
                self._worker = None
                if lost_at is None:
                    lost_at = time.time()
                if not told or not _passes(error, lost_at):
                    raise
                self._ctx.report.trouble(f"{error}; trying again")
                time.sleep(RETRY_WAITS_S[min(tries, len(RETRY_WAITS_S) - 1)])
                tries += 1
            finally:
                self._worker = None

    def _accept(self) -> None:
        while True:
            self._room.acquire()
            connection = None
            try:
                while connection is None:
                    connection = self._listener.accept(_LOOK_S)
            except (OSError, ValueError):
                return
            threading.Thread(target=self._carry, args=(connection,), daemon=True).start()

    def _carry(self, connection: socket.socket) -> None:
        try:
            worker = self._worker
            if worker is None:
                connection.close()  # a browser tries again
                return
            carry(open_connection(worker, self._target, WINDOW), connection, WINDOW)
        except Exception:  # the edge of a thread: one connection is lost, whatever it was
            connection.close()
        finally:
            self._room.release()


def open_connection(worker: Worker, target: Target, window: int) -> Request:
    """A stream that leads to the target. Raises RunnerError when nothing is there."""
    request = worker.open("forward", to=target.to, run=target.run, window=window)
    request.event()
    return request


def carry(request: Request, connection: socket.socket, window: int) -> None:
    """A connection over a stream, until its end. Raises LinkLost."""
    carried = flow.Flow(
        connection,
        lambda message: request.send_frames([(wire.DATA, message)]),
        window,
        on_finished=request.end,
    )
    carried.start()
    try:
        for kind, payload in request.frames():
            if kind == wire.DATA:
                carried.feed(payload)
    finally:
        carried.abort(tell=False)


def _watch(worker: Worker, target: Target) -> Iterator[dict[str, Any]]:
    """Tables of the worker while what is forwarded to is there, the first once it can be used;
    ends with the run whose door it is behind.
    """
    if target.run is None:
        request = worker.open("service", name=target.to)
    else:
        request = worker.open("forward", to="hold", run=target.run, window=flow.LEAST_WINDOW)
    for kind, payload in request.frames():
        if kind == wire.EVENT:
            yield wire_json(payload, worker.host.name)
        elif flow.is_last(payload):
            request.end()


def _passes(error: RunnerError, lost_at: float) -> bool:
    """Whether it may be over soon by itself: the link is, a container that starts anew is."""
    if isinstance(error, Unreachable):
        return True
    return error.code is None and time.time() - lost_at < WITHOUT_WORKER_S


def _back_text(host: str, lost_at: float) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(lost_at))
    seconds = max(1, round(time.time() - lost_at))
    return f"{host}: link lost {at}, back after {seconds}s; connections work again"


def pump(worker: Worker, target: Target) -> None:
    """Our own stdin and stdout as that one connection, as ssh's ProxyCommand. Raises RunnerError
    when it does not come about; nothing was read then.
    """
    request = open_connection(worker, target, flow.MOST_WINDOW)
    ours, theirs = socket.socketpair()
    threading.Thread(target=_copy, args=(0, ours), daemon=True).start()
    writer = threading.Thread(target=_copy_back, args=(ours, 1), daemon=True)
    writer.start()
    carry(request, theirs, flow.MOST_WINDOW)
    writer.join(5.0)


def _copy(fd: int, into: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(fd, flow.PIECE):
            into.sendall(data)
        into.shutdown(socket.SHUT_WR)


def _copy_back(source: socket.socket, fd: int) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(flow.PIECE):
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        os.close(fd)
