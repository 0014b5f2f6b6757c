"""Ctrl-C while something must not be cut: held back for the short time between two sure states."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Held:
    """Within this context, and after `begin`, the first Ctrl-C waits for the end of the context.

    Before `begin` and after `withdraw` it acts at once, and so does a second one. Outside the main
    thread, where no signal arrives, nothing is changed.
    """

    def __init__(self) -> None:
        self._held = False
        self._pending = False
        self._before: signal._HANDLER = None
        self._active = threading.current_thread() is threading.main_thread()

    def begin(self) -> None:
        """From here on what is done may already count."""
        self._held = True

    def withdraw(self) -> None:
        """What was begun surely came to nothing: as before `begin`, also for one held back."""
        self._held = False
        if self._pending:
            self._pending = False
            raise KeyboardInterrupt

    @property
    def began(self) -> bool:
        """Whether `begin` was called."""
        return self._held

    def __enter__(self) -> Held:
        if self._active:
            self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._active:
            signal.signal(signal.SIGINT, self._before)
        if self._pending and error is None:
            raise KeyboardInterrupt

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._held or self._pending:
            raise KeyboardInterrupt
        self._pending = True
