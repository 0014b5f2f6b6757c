"""A command on a pseudo-terminal: what its screen shows, keys, sizes, and how it is left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.wait import wait_for

LIMIT_S = 30.0
_ROWS = 100
_SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class OnTerminal:
    """A child whose terminal this is; `close` ends it."""

    def __init__(
        self,
        argv: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        *,
        columns: int = 80,
        rows: int = 24,
    ) -> None:
        self._ours, self._theirs = os.openpty()
        self.resize(columns, rows)
        self.modes_before = termios.tcgetattr(self._theirs)
        self.raw = b""
        self.child = subprocess.Popen(
            argv,
            cwd=folder,
            env=dict(env),
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while piece := os.read(self._ours, 65536):
                self.raw += piece

    def resize(self, columns: int, rows: int) -> None:
        """Another size of the window; whoever is in front is told."""
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    @property
    def screen(self) -> list[str]:
        """The lines of the screen now, up to the last that is not empty."""
        return shown(self.raw.decode("utf-8", "ignore"))

    @property
    def text(self) -> str:
        return "\n".join(self.screen)

    def until(self, text: str, limit_s: float = LIMIT_S) -> str:
        """Wait for a text on the screen; the whole screen then."""
        wait_for(lambda: text in self.text, limit_s, f"{text!r} on the screen:\n{self.text}")
        return self.text

    def until_gone(self, text: str, limit_s: float = LIMIT_S) -> None:
        wait_for(lambda: text not in self.text, limit_s, f"the end of {text!r}")

    def end(self) -> int:
        """Its exit status, once it has ended."""
        return self.child.wait(LIMIT_S)

    @property
    def modes(self) -> list[Any]:
        """The terminal's modes now, as `stty` knows them."""
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
            self.child.wait()
        os.close(self._theirs)
        self._reader.join(5)
        os.close(self._ours)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def shown(text: str) -> list[str]:
    """What a large terminal shows once it was sent this: places, erasing, and text are obeyed."""
    lines, row, column, at = [""] * _ROWS, 0, 0, 0
    while at < len(text):
        found = _SEQUENCE.match(text, at)
        if found:
            at = found.end()
            numbers = [int(part or 0) for part in re.findall(r"\d+", found[1])]
            if found[2] == "H":
                row, column = (numbers[0] - 1, numbers[1] - 1) if numbers else (0, 0)
            elif found[2] == "J" or found[0] in ("\x1b[?1049h", "\x1b[?1049l"):
                lines = [""] * _ROWS
            elif found[2] == "K":
                lines[row] = lines[row][:column]
            continue
        char, at = text[at], at + 1
        if char == "\r":
            column = 0
        elif char == "\n":
            row = min(_ROWS - 1, row + 1)
        else:
            assert char.isprintable(), f"{char!r} reached the terminal: {text[-500:]!r}"
            lines[row] = lines[row][:column].ljust(column) + char + lines[row][column + 1 :]
            column += 1
    while lines and not lines[-1]:
        lines.pop()
    return lines
