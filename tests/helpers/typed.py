"""A command as it is typed, in this process: its exit status, its bytes on stdout, its stderr."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from runner.cli import main

LIMIT_S = 30.0


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """stdout as text."""
        return self.out.decode("utf-8", "surrogateescape")


class Hung(AssertionError):
    """A command did not end by itself."""


class _Rung(BaseException):
    """Not one that a command turns into a message."""


class _Stream(io.TextIOWrapper):
    """A stream that may say that it is a terminal."""

    def __init__(self, terminal: bool) -> None:
        self._terminal = terminal
        self._kept = io.BytesIO()
        super().__init__(self._kept, "utf-8", errors="backslashreplace", write_through=True)

    def isatty(self) -> bool:
        return self._terminal

    def kept(self) -> bytes:
        self.flush()
        return self._kept.getvalue()


def typed(*words: str, terminal: bool = False, limit_s: float = LIMIT_S) -> Said:
    """`runner WORDS`, in the current folder. Raises Hung when it takes longer than `limit_s`."""
    streams = sys.stdout, sys.stderr
    out, err = _Stream(terminal), _Stream(terminal)
    sys.stdout, sys.stderr = out, err
    try:
        with _limit(limit_s):
            status = main(list(words))
    except _Rung as hung:
        raise Hung(f"runner {' '.join(words)[:200]}: no end after {limit_s:g} s") from hung
    finally:
        sys.stdout, sys.stderr = streams
    return Said(status, out.kept(), err.kept().decode("utf-8", "replace"))


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise _Rung

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
