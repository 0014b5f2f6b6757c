"""A stream that begins again as long as nothing has come of it.

Two things make it: a server that dropped us before a login (`again`), and a shared connection that
was there already and is dead (`masters`). Nothing was read and nothing written then, so whoever
reads gets a program that was started just now. It may be started twice, so it must do nothing
before it is asked to. Over a shared connection that only is slow the first is not given up: the one
that speaks first is taken.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from runner.carriers.again import Tries
from runner.carriers.local import ChildCarrier
from runner.errors import RunnerError, Unreachable

_SLICE_S = 0.02
"""Each of two streams is looked at for that long, in turn."""

Start = Callable[[], tuple[ChildCarrier, "Callable[[], None] | None"]]
"""Starts the program; gives its stream and, if its connection was there before, how to see that no
other goes over that.
"""


class SteadyCarrier:
    """A program's stdin and stdout, started anew where that is harmless."""

    def __init__(self, start: Start, *, silence_s: float, limit_s: float) -> None:
        """silence_s: how long nothing may come over a connection that was there before. limit_s:
        how long connecting may take in all.
        """
        self._start = start
        self._silence_s = silence_s
        self._tries = Tries(limit_s)
        self._until = time.monotonic() + limit_s
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._begun = False
        self._input_ended = False
        self._failure: RunnerError | None = None
        self._child, self._let_go = start()
        self._before: ChildCarrier | None = None

    def read(self, size: int) -> bytes:
        """1 to `size` bytes; b"" at the end, also once closed."""
        while not self._begun:
            self._settle()
        return self._child.read(size)

    def write(self, data: bytes) -> None:
        """Sends all of `data`. Raises OSError when the other end is gone."""
        self._begin().write(data)

    def close_write(self) -> None:
        """Closes the program's stdin."""
        with self._lock:
            self._input_ended = True
            children = self._children()
        for child in children:
            child.close_write()

    def close(self) -> None:
        """Ends what was started here, and reaps it."""
        self._closing.set()
        with self._lock:
            children = self._children()
        for child in children:
            child.close()

    def trouble(self) -> str:
        """The end of what was said on stderr."""
        return self._child.trouble()

    def failure(self) -> RunnerError | None:
        """What the end means; None when it ended well."""
        return self._failure or self._child.failure()

    def _children(self) -> list[ChildCarrier]:
        return [self._child, *([self._before] if self._before is not None else [])]

    def _begin(self, child: ChildCarrier | None = None) -> ChildCarrier:
        """From here on there is one stream, and it is never started again."""
        with self._lock:
            if self._begun:
                return self._child
            self._begun = True
            chosen = child or self._child
            others = [other for other in self._children() if other is not chosen]
            self._child, self._before = chosen, None
        for other in others:
            other.close()
        return chosen

    def _settle(self) -> None:
        """Waits for the first byte, or for what is to be done without one."""
        child, before, let_go = self._child, self._before, self._let_go
        if before is not None:
            self._settle_between(child, before)
            return
        ready = child.stir(self._silence_s if let_go is not None else None)
        if ready:
            self._begin(child)
        elif ready is None and let_go is not None:
            let_go()
            self._start_anew(child)
        elif ready is False:
            self._ended(child)

    def _settle_between(self, new: ChildCarrier, old: ChildCarrier) -> None:
        """A fresh connection beside one that was silent: whichever speaks first is taken."""
        new_ready, old_ready = new.stir(_SLICE_S), old.stir(_SLICE_S)
        if new_ready:
            self._begin(new)
        elif old_ready:
            self._failure = None
            self._begin(old)
        elif old_ready is False or time.monotonic() > self._until:
            with self._lock:
                self._before = None
            old.close()
        elif new_ready is False and self._failure is None and not self._closing.is_set():
            self._failure = new.failure()
            pause = self._tries.pause_s(self._failure)
            if pause is not None and not self._closing.wait(pause):
                self._failure = None
                new.close()
                self._start_anew(old)

    def _ended(self, child: ChildCarrier) -> None:
        if self._closing.is_set() or self._begun:
            self._begin(child)
            return
        error = self._failure = self._failure or child.failure()
        stale, self._let_go = self._let_go, None
        if stale is not None and isinstance(error, Unreachable):
            stale()  # the connection that was there has ended meanwhile
        else:
            pause = self._tries.pause_s(error)
            if pause is None or self._closing.wait(pause):
                self._begin(child)
                return
        self._failure = None
        child.close()
        self._start_anew(None)

    def _start_anew(self, before: ChildCarrier | None) -> None:
        """The next child, unless a write made the present one the only one meanwhile."""
        new, _ = self._start()
        with self._lock:
            wanted = not (self._begun or self._closing.is_set())
            if wanted:
                self._child, self._before = new, before
                self._let_go = None  # that is done once
            ended = self._input_ended
        if not wanted:
            new.close()
            self._begin()
        elif ended:
            new.close_write()
