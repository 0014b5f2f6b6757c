"""Commands run one by one, each a child process: of this machine, or an ssh that carries it.

Login shells may print before a command starts, so the command is framed: a mark on stdout and on
stderr, then its own bytes, then its status on stderr. What comes before a mark is dropped; without
the first the command never ran, without the status the connection broke before its end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO

from runner.carriers.again import Tries
from runner.carriers.base import Completed, Input, OnLine
from runner.carriers.failures import Dropped
from runner.carriers.local import Explain
from runner.errors import HostError, TimedOut, Unreachable

_END_S = 1.0
"""What is still in the pipes of a command that has ended; a child it left behind may hold them."""
_FIRST_KEPT, _MOST_KEPT = 1 << 20, 16 << 20
"""Bytes of a command's output, the first and the last ones: a host may answer without an end."""
_LONGEST_LINE = 1 << 16
"""Bytes of a line without an end that are told with the rest of it."""
_FRAME = (
    'm=$1; shift; printf %s "$m"; printf %s "$m" >&2; "$@"; s=$?; printf %s "$m$s" >&2; exit $s'
)


def new_mark() -> str:
    """A word no shell prints by chance."""
    return f"runner-{os.urandom(8).hex()}:"


def framed(mark: str, argv: Sequence[str]) -> list[str]:
    """`argv` so that it says `mark` first, on stdout and on stderr, and its status last."""
    return ["sh", "-c", _FRAME, "runner", mark, *argv]


class Collector:
    """Takes one output stream piece by piece; keeps what comes after the mark, tells its lines."""

    def __init__(self, mark: str | None, on_line: OnLine | None = None) -> None:
        self.mark = mark.encode() if mark else b""
        self._on_line = on_line
        self._before = bytearray()
        self._line = bytearray()
        self.seen = mark is None
        self.data = bytearray()

    def feed(self, piece: bytes) -> None:
        """The next bytes."""
        if not self.seen:
            self._before += piece
            before, mark, piece = bytes(self._before).partition(self.mark)
            if not mark:
                return
            self.seen = True
            self._before[:] = before
        self.data += piece
        if len(self.data) > 2 * _MOST_KEPT:
            del self.data[_FIRST_KEPT:-_MOST_KEPT]
        if self._on_line is not None:
            *lines, rest = (bytes(self._line) + piece).split(b"\n")
            self._line[:] = rest[:_LONGEST_LINE]
            for line in lines:
                self._on_line(line.decode("utf-8", "replace").rstrip("\r"))

    @property
    def before(self) -> str:
        """What came ahead of the mark."""
        return bytes(self._before).decode("utf-8", "replace").strip()


def completed(name: str, status: int, out: Collector, err: Collector) -> Completed:
    """The result of a framed command; `status` is that of what carried it.

    Raises HostError when the login shell did not let it run, Unreachable when it was cut.
    """
    if not out.seen:
        said = (err.before or out.before).splitlines()
        raise HostError(
            f"{name}: the login shell there runs no commands (status {status})",
            *[f"it said: {line}" for line in said[-1:]],
        )
    own, mark, end = bytes(err.data).rpartition(err.mark)
    if not mark or not end.isdigit():
        raise Unreachable(f"{name}: the connection was lost")
    return Completed(int(end), bytes(out.data), own)


class ChildSession:
    """Commands as children of ours."""

    def __init__(
        self,
        name: str,
        wrap: Callable[[Sequence[str]], list[str]],
        *,
        explain: Explain | None = None,
        env: Mapping[str, str] | None = None,
        wait_turn: Callable[[], Callable[[], None]] | None = None,
    ) -> None:
        """wrap: from the argv to run there to the argv to run here. explain: given for ssh, whose
        own failures it turns into errors; None for this machine. wait_turn: returns when a command
        may begin, with what to call when it has ended.
        """
        self._wait_turn = wait_turn
        self._name = name
        self._wrap = wrap
        self._explain = explain
        self._env = env

    def run(
        self,
        argv: Sequence[str],
        *,
        input: Input = None,
        timeout_s: float,
        on_line: OnLine | None = None,
    ) -> Completed:
        """Runs `argv` and waits for it. Raises HostError, TimedOut."""
        tries = Tries()
        while True:
            release = self._wait_turn() if self._wait_turn else None
            try:
                return self._run(argv, input, timeout_s, on_line)
            except Dropped as error:
                # no login, so nothing began; but of an iterable some may be read already
                pause = tries.pause_s(error) if input is None or isinstance(input, bytes) else None
                if pause is None:
                    raise
            finally:
                if release is not None:
                    release()
            time.sleep(pause)

    def _run(
        self, argv: Sequence[str], input: Input, timeout_s: float, on_line: OnLine | None
    ) -> Completed:
        mark = new_mark() if self._explain else None
        command = framed(mark, argv) if mark else list(argv)
        out, err = Collector(mark, on_line), Collector(mark, on_line)
        try:
            child = subprocess.Popen(
                self._wrap(command),
                stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if self._env is None else dict(self._env),
                start_new_session=True,
            )
        except FileNotFoundError as error:
            return Completed(127, b"", f"{argv[0]}: command not found: {error}\n".encode())
        assert child.stdout and child.stderr
        threads = [_start(_drain, child.stdout, out), _start(_drain, child.stderr, err)]
        if child.stdin:
            threads.append(
                _start(_feed, child.stdin, [input] if isinstance(input, bytes) else input)
            )
        try:
            status = self._wait(child, timeout_s, out)
        finally:
            for thread in threads:
                thread.join(_END_S)
        if self._explain is None:
            return Completed(status, bytes(out.data), bytes(err.data))
        if status == 255 and not out.seen:
            failure = self._explain(status, err.before)
            if failure is not None:
                raise failure
        return completed(self._name, status, out, err)

    def close(self) -> None:
        """Nothing is left open but ssh's own control socket."""

    def __enter__(self) -> ChildSession:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _wait(self, child: subprocess.Popen[bytes], timeout_s: float, out: Collector) -> int:
        try:
            return child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            kind = TimedOut if out.seen or not self._explain else Unreachable
            raise kind(f"{self._name}: no answer for {timeout_s:.0f} s") from None
        finally:
            if child.poll() is None:
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(0.5)
                child.kill()
                child.wait()


def _start(target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _drain(stream: IO[bytes], into: Collector) -> None:
    with contextlib.suppress(OSError, ValueError), stream:
        while piece := os.read(stream.fileno(), 65536):
            into.feed(piece)


def _feed(stream: IO[bytes], pieces: Iterable[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError), stream:
        for piece in pieces:
            stream.write(piece)
