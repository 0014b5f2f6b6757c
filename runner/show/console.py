"""A terminal taken over for a while: its other screen, keys as they are typed, its size.

Whatever ends the command (a key, TERM, HUP, QUIT, Ctrl-C, a bug), the terminal is left as it was.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
"""The other screen, no cursor, and no line goes on in the next one."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_ENDS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_SIGNALS = (*_ENDS, signal.SIGWINCH, signal.SIGTSTP)
_KEYS = {
    b"q": "quit",
    b"Q": "quit",
    b"\x03": "quit",
    b"j": "down",
    b"k": "up",
    b" ": "page-down",
    b"b": "page-up",
    b"g": "home",
    b"G": "end",
    b"h": "h",
    b"?": "h",
    b"r": "r",
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page-up",
    b"\x1b[6~": "page-down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
}
_LONGEST = 16
"""Bytes of a key's sequence; what is longer is none of ours."""
_LEAST_COLUMNS, _LEAST_ROWS = 20, 4


class Ended(Exception):
    """The terminal went away, or somebody ends us; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Console:
    """The terminal of two file descriptors, while the context lasts; for the main thread."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        """fd_in: None of its keys is read where that is no terminal."""
        self._in = fd_in
        self._out = fd_out
        self._has_keys = os.isatty(fd_in)
        self._rest = b""
        self._drawn: list[str] = []
        self._drawn_at = (0, 0)
        self._modes: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._wakeup_before = -1
        self._woken, self._waker = -1, -1
        self._waking = threading.Lock()
        self._is_in = False

    def __enter__(self) -> Console:
        self._woken, self._waker = os.pipe()
        for fd in (self._woken, self._waker):
            os.set_blocking(fd, False)
        try:
            # a signal that came writes here, too, so that no wait misses it
            self._wakeup_before = signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
            for number in _SIGNALS:
                self._handlers[number] = signal.signal(number, self._on_signal)
            self._enter()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        with _undisturbed():
            self._leave()
            signal.set_wakeup_fd(self._wakeup_before)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)
            with self._waking:
                for fd in (self._woken, self._waker):
                    os.close(fd)
                self._woken = self._waker = -1

    # -- what is shown ------------------------------------------------------------------------

    def size(self) -> tuple[int, int]:
        """(columns, rows) now."""
        try:
            found = os.get_terminal_size(self._out)
        except OSError:
            return 80, 24
        # a terminal nobody measured says 0
        return max(_LEAST_COLUMNS, found.columns or 80), max(_LEAST_ROWS, found.lines or 24)

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines; only those that changed are written, in one go. Raises Ended."""
        size = self.size()
        text = ""
        if size != self._drawn_at:
            self._drawn, self._drawn_at = [], size
            text = "\x1b[H\x1b[2J"
        for number in range(max(len(lines), len(self._drawn))):
            line = lines[number] if number < len(lines) else ""
            if number >= len(self._drawn) or self._drawn[number] != line:
                text += f"\x1b[{number + 1};1H{line}\x1b[K"
        self._drawn = list(lines)
        self._write(text)

    def _write(self, text: str) -> None:
        left = memoryview(text.encode("utf-8", "backslashreplace"))
        try:
            while left:
                left = left[os.write(self._out, left) :]
        except OSError as error:
            raise Ended(signal.SIGHUP) from error

    # -- what is typed ------------------------------------------------------------------------

    def wake(self) -> None:
        """End a `wait`; from any thread."""
        with self._waking, contextlib.suppress(OSError):  # it is full: it ends all the same
            if self._waker >= 0:
                os.write(self._waker, b"\0")

    def wait(self, limit_s: float) -> list[str]:
        """Names of the keys that were typed; none when the time is over or something woke us.

        Raises Ended once the terminal is gone.
        """
        fds = [self._woken, *([self._in] if self._has_keys else [])]
        ready, _, _ = select.select(fds, [], [], max(0.0, limit_s))
        if self._woken in ready:
            with contextlib.suppress(OSError):
                os.read(self._woken, 65536)
        if self._in not in ready or not self._has_keys:
            return []
        try:
            data = os.read(self._in, 4096)
        except OSError as error:
            raise Ended(signal.SIGHUP) from error
        if not data:
            raise Ended(signal.SIGHUP)
        keys, self._rest = read_keys(self._rest + data)
        return keys

    # -- coming and going ---------------------------------------------------------------------

    def _enter(self) -> None:
        if self._has_keys:
            self._modes = termios.tcgetattr(self._in)
            modes = termios.tcgetattr(self._in)
            modes[0] &= ~termios.IXON  # Ctrl-S would stop us in the middle of a line
            modes[3] &= ~(termios.ECHO | termios.ICANON)
            modes[6][termios.VMIN], modes[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._in, termios.TCSADRAIN, modes)
        self._is_in = True
        self._drawn_at = (0, 0)
        self._write(_ENTER)

    def _leave(self) -> None:
        if not self._is_in:
            return
        self._is_in = False
        with contextlib.suppress(Ended):
            self._write(_LEAVE)
        if self._modes is not None:
            # what was typed and not read is not for the shell
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._in, termios.TCSAFLUSH, self._modes)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number in _ENDS:
            raise Ended(number)
        if number == signal.SIGTSTP:
            self._stop()

    def _stop(self) -> None:
        """Ctrl-Z: the terminal is the shell's until we are brought back."""
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on_signal)
        self._enter()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """No signal cuts what is done here."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_SIGNALS, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def read_keys(data: bytes) -> tuple[list[str], bytes]:
    """Names of the keys in what was typed, and the beginning of one whose rest is to come.

    `other` is any that has no meaning.
    """
    keys: list[str] = []
    while data:
        taken = 1
        if data.startswith(b"\x1b"):
            found = _sequence(data)
            if found is None:
                return keys, data
            taken = found
        keys.append(_KEYS.get(data[:taken], "other"))
        data = data[taken:]
    return keys, b""


def _sequence(data: bytes) -> int | None:
    """How long the sequence at an escape character is; None: not all of it is there."""
    if len(data) == 1:
        return None
    if data[1:2] == b"O":
        return 3 if len(data) > 2 else None
    if data[1:2] != b"[":
        return 1
    for at in range(2, min(len(data), _LONGEST)):
        if 0x40 <= data[at] <= 0x7E:
            return at + 1
    return 1 if len(data) >= _LONGEST else None
