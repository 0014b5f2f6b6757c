"""What goes on, said on stderr while a command works: lines that stay, and one that is redrawn."""

from __future__ import annotations

import os
import shutil
import threading
from typing import TextIO

from runner.show.screen import cut, escaped

STEP_PATIENCE_S = 1.0
"""How long something is waited for before it is said."""


def is_dumb() -> bool:
    """Whether the terminal can neither colour nor redraw."""
    return os.environ.get("TERM", "dumb") == "dumb"


class TerminalReport:
    """Says on stderr what goes on; nothing at all where that is no terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on = stream.isatty()
        self._redraws = self._on and not is_dumb()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._drawn = False
        self._told: set[str] = set()
        """Troubles that were said where nothing can be redrawn."""

    def note(self, text: str) -> None:
        """A line worth keeping."""
        if self._on:
            with self._lock:
                self._clear()
                for line in text.split("\n"):
                    self._stream.write(escaped(line) + "\n")
                self._stream.flush()

    def step(self, text: str) -> None:
        """What is being waited for now; shown once it has lasted, replaced by the next one."""
        if not self._redraws:
            return
        with self._lock:
            if self._drawn:
                self._draw(text)
                return
            self._stop_timer()
            self._timer = threading.Timer(STEP_PATIENCE_S, self._draw_late, (text,))
            self._timer.daemon = True
            self._timer.start()

    def trouble(self, text: str) -> None:
        """A step worth saying at once; where nothing can be redrawn a line, the same one once."""
        if not self._on:
            return
        with self._lock:
            if self._redraws:
                self._stop_timer()
                self._draw(text)
            elif text not in self._told:
                self._told.add(text)
                self._stream.write(escaped(text) + "\n")
                self._stream.flush()

    def done(self) -> None:
        """Nothing is waited for any more."""
        with self._lock:
            self._clear()
            self._told.clear()

    def warn(self, text: str) -> None:
        """A line for stderr that cron must see too."""
        with self._lock:
            self._clear()
            self._stream.write("".join(escaped(line) + "\n" for line in text.split("\n")))
            self._stream.flush()

    def _draw_late(self, text: str) -> None:
        with self._lock:
            if self._timer is not None and threading.current_thread() is self._timer:
                self._draw(text)

    def _draw(self, text: str) -> None:
        columns = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\x1b[K" + cut(escaped(text), columns))
        self._stream.flush()
        self._drawn = True

    def _clear(self) -> None:
        self._stop_timer()
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
