"""Streams and commands over a connection of `fabric_link`; these two alone import Paramiko."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import paramiko

from runner.carriers.base import (
    ALIVE_COUNT,
    ALIVE_INTERVAL_S,
    TROUBLE_BYTES,
    Completed,
    Input,
    OnLine,
)
from runner.carriers.fabric_link import WINDOW, Link, connect
from runner.carriers.failures import program_failure
from runner.carriers.quoting import login_shell_line
from runner.carriers.session import Collector, completed, framed, new_mark
from runner.carriers.ssh_config import Route, read_route
from runner.errors import RunnerError, TimedOut, Unreachable
from runner.model import Host

_TAKE_ALL = WINDOW + 1
"""Reading the whole window at once; a part shifts the rest on every read."""


def open_fabric(host: Host, argv: Sequence[str], *, route: Route | None = None) -> FabricCarrier:
    """Starts `argv` on `host`. Raises HostError, NotHonoured.

    route: the way there, where it was read already.
    """
    link = connect(route or read_route(host))
    try:
        return FabricCarrier(link, argv)
    except BaseException:
        link.close()
        raise


def open_fabric_session(host: Host) -> FabricSession:
    """Commands on `host` over one connection. Raises HostError, NotHonoured."""
    return FabricSession(connect(read_route(host)))


class FabricCarrier:
    """A program's stdin and stdout on a channel of a connection of its own."""

    def __init__(self, link: Link, argv: Sequence[str]) -> None:
        self._link = link
        self._rest = memoryview(b"")
        self._said = bytearray()
        self._lock = threading.Lock()
        self._closed = False
        self._channel = link.open_channel()
        link.start(self._channel, login_shell_line(argv))
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def read(self, size: int) -> bytes:
        """1 to `size` bytes; b"" at the end, also once closed."""
        if not self._rest and not self._closed:
            with _as_os_error():  # what was read is told to the other end
                self._rest = memoryview(self._channel.recv(_TAKE_ALL))
        piece, self._rest = self._rest[:size], self._rest[size:]
        return bytes(piece)

    def write(self, data: bytes) -> None:
        """Sends all of `data`. Raises OSError when the other end is gone."""
        with _as_os_error():
            self._channel.sendall(data)

    def close_write(self) -> None:
        """Tells the program that nothing more comes."""
        with contextlib.suppress(OSError), _as_os_error():
            self._channel.shutdown_write()

    def close(self) -> None:
        """Closes channel and connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(OSError), _as_os_error():
            self._channel.close()
        self._link.close()

    def trouble(self) -> str:
        """The end of what the program said on stderr."""
        self._listener.join(0.2 if self._channel.exit_status_ready() else 0)
        return bytes(self._said).decode("utf-8", "replace").strip()

    def failure(self) -> RunnerError | None:
        """What the program's end means; None when it ended well."""
        name = self._link.route.host
        if not self._channel.status_event.wait(2.0):
            return None if self._closed else Unreachable(f"{name}: the connection was lost")
        status = self._channel.recv_exit_status()
        if status == -1:  # paramiko's for a connection that ended without a status
            return Unreachable(f"{name}: the connection was lost")
        return program_failure(name, status, self.trouble()) if status else None

    def _listen(self) -> None:
        with contextlib.suppress(OSError), _as_os_error():
            while piece := self._channel.recv_stderr(65536):
                self._said += piece
                del self._said[:-TROUBLE_BYTES]


class FabricSession:
    """Commands, each on a channel of one connection."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def run(
        self,
        argv: Sequence[str],
        *,
        input: Input = None,
        timeout_s: float,
        on_line: OnLine | None = None,
    ) -> Completed:
        """Runs `argv` and waits for it. Raises HostError, TimedOut."""
        name = self._link.route.host
        mark = new_mark()
        out, err = Collector(mark, on_line), Collector(mark, on_line)
        channel = self._link.open_channel()
        try:
            self._link.start(channel, login_shell_line(framed(mark, argv)))
            threads = [
                _start(_drain, channel.recv, out),
                _start(_drain, channel.recv_stderr, err),
                _start(_feed, channel, input),
            ]
            self._wait(channel, timeout_s)
            for thread in threads[:2]:
                thread.join(1.0)
            status = channel.recv_exit_status()
        finally:
            with contextlib.suppress(OSError), _as_os_error():
                channel.close()
        return completed(name, status, out, err)

    def close(self) -> None:
        """Ends the connection."""
        self._link.close()

    def __enter__(self) -> FabricSession:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _wait(self, channel: Any, timeout_s: float) -> None:
        """Until the command has ended. paramiko's keepalive expects no answer, so a dead link is
        found by asking for one ourselves.
        """
        name = self._link.route.host
        until = time.monotonic() + timeout_s
        while not channel.status_event.wait(
            min(ALIVE_INTERVAL_S * ALIVE_COUNT, max(0.0, until - time.monotonic()))
        ):
            if time.monotonic() >= until:
                raise TimedOut(f"{name}: no answer for {timeout_s:.0f} s")
            if not _answers(self._link.transport, ALIVE_INTERVAL_S * ALIVE_COUNT):
                raise Unreachable(f"{name}: no answer for {ALIVE_INTERVAL_S * ALIVE_COUNT} s")


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Paramiko says in three ways that the connection has ended; whoever has a stream knows one."""
    try:
        yield
    except (EOFError, paramiko.SSHException) as error:
        raise ConnectionError(str(error) or "the connection was lost") from error


def _answers(transport: Any, limit_s: float) -> bool:
    """Whether the server answers a request; any answer will do."""
    asked = threading.Thread(
        target=transport.global_request, args=("keepalive@openssh.com", None, True), daemon=True
    )
    asked.start()
    asked.join(limit_s)
    return not asked.is_alive() and bool(transport.is_active())


def _start(target: Any, *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _drain(receive: Any, into: Collector) -> None:
    with contextlib.suppress(OSError), _as_os_error():
        while piece := receive(_TAKE_ALL):
            into.feed(piece)


def _feed(channel: Any, input: Input) -> None:
    with contextlib.suppress(OSError), _as_os_error():
        for piece in [input] if isinstance(input, bytes) else input or ():
            channel.sendall(piece)
        channel.shutdown_write()
