"""Programs of this machine as carriers, and the child process every ssh carrier is built on."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence

from runner.carriers.base import TROUBLE_BYTES
from runner.carriers.failures import program_failure
from runner.errors import RunnerError
from runner.model import Host

_PIPE_BYTES = 1 << 20
"""Larger pipes than Linux's 64 KiB: fewer turns between us and ssh during a pull."""
_READ_BYTES = 256 << 10
"""At a time: a buffer of 1 MiB costs five times the CPU, since it comes from the system anew."""
_TERM_S = 0.5
"""Between TERM and KILL: ssh uses it to end its ProxyCommand."""
_END_S = 2.0
"""How long a program whose output has ended may take to exit."""

Explain = Callable[[int, str], "RunnerError | None"]
"""From an exit status that is not 0 and what was said on stderr to the error it stands for."""


def open_local(host: Host, argv: Sequence[str]) -> ChildCarrier:
    """Starts `argv` on this machine."""
    return ChildCarrier(argv, explain=lambda status, said: program_failure(host.name, status, said))


class ChildCarrier:
    """A child process's stdin and stdout."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        explain: Explain,
        env: Mapping[str, str] | None = None,
        on_end: Callable[[], None] = lambda: None,
        shared: bool = False,
    ) -> None:
        """on_end: called once when the child says no more, from another thread. shared: it goes
        over a connection that another process holds; that has our pipes as well, and lets go of
        them only a round trip after the child has ended.
        """
        self._shared = shared
        self._begun = False
        self._explain = explain
        self._on_end = on_end
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._closed = False
        self._child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            # No terminal: nothing can ask there, and Ctrl-C ends the child through us alone.
            start_new_session=True,
        )
        assert self._child.stdin and self._child.stdout and self._child.stderr
        self._out = self._child.stdout
        self._in = self._child.stdin
        self._wake_read, self._wake_write = os.pipe()
        for stream in (self._out, self._in):
            with contextlib.suppress(OSError, AttributeError):  # over the limit; not Linux
                fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(self._in.fileno(), False)
        self._said = bytearray()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def read(self, size: int) -> bytes:
        """1 to `size` bytes; b"" at the end, also once closed."""
        with self._reading:
            if self._closed or not self._wait(self._out.fileno(), select.POLLIN):
                return b""
            data = os.read(self._out.fileno(), min(size, _READ_BYTES))
            self._begun = self._begun or bool(data)
            return data

    def stir(self, limit_s: float | None) -> bool | None:
        """Whether there is something to read (True) or the end of it (False, also once closed);
        None when there was neither for that long.
        """
        with self._reading:
            if self._closed:
                return False
            ready = self._poll(self._out.fileno(), select.POLLIN, limit_s)
            if not ready:
                return None
            event = ready.get(self._out.fileno(), 0)
            return bool(event & select.POLLIN) and self._wake_read not in ready

    def write(self, data: bytes) -> None:
        """Sends all of `data`. Raises OSError when the other end is gone."""
        view = memoryview(data)
        with self._writing:
            while view:
                if self._closed or self._in.closed or not self._wait_to_write():
                    raise BrokenPipeError("the stream is closed")
                with contextlib.suppress(BlockingIOError):
                    view = view[os.write(self._in.fileno(), view) :]

    def close_write(self) -> None:
        """Closes the program's stdin."""
        with self._writing, contextlib.suppress(OSError):
            self._in.close()

    def close(self) -> None:
        """Ends the child and reaps it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.write(self._wake_write, b"x")
        self._end_child()
        if not (self._shared and self._begun):
            self._listener.join(_TERM_S)
        with self._reading, self._writing:  # woken by now, so nobody holds them for long
            for stream in (self._in, self._out):
                with contextlib.suppress(OSError):
                    stream.close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def trouble(self) -> str:
        """The end of what the child said on stderr."""
        self._listener.join(0.2 if self._child.poll() is not None else 0)
        return bytes(self._said).decode("utf-8", "replace").strip()

    def failure(self) -> RunnerError | None:
        """What the child's end means; None when it ended well."""
        try:
            status = self._child.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._end_child()
            status = self._child.wait()
        return self._explain(status, self.trouble()) if status else None

    def _wait_to_write(self) -> bool:
        return self._wait(self._in.fileno(), select.POLLOUT)

    def _wait(self, fd: int, event: int) -> bool:
        """Waits until `fd` is ready; False when `close` came first."""
        return self._wake_read not in self._poll(fd, event)

    def _poll(self, fd: int, event: int, limit_s: float | None = None) -> dict[int, int]:
        """What there is of `fd` and of the wish to close, by descriptor."""
        poll = select.poll()
        poll.register(fd, event)
        poll.register(self._wake_read, select.POLLIN)
        return dict(poll.poll(None if limit_s is None else max(0, limit_s) * 1000))

    def _end_child(self) -> None:
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(_TERM_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
        self._child.wait()

    def _listen(self) -> None:
        assert self._child.stderr
        with self._child.stderr as stream:
            while piece := os.read(stream.fileno(), 65536):
                self._said += piece
                del self._said[:-TROUBLE_BYTES]
        self._on_end()
