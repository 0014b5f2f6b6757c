"""When to connect once more: after a server dropped us, a few times, further apart each time.

Twenty commands at once meet a server's MaxStartups, which closes some connections before a login.
Nothing was asked then, so it is safe. Keys that are refused, host keys, names and timeouts are not
tried again: they would be the same.
"""

from __future__ import annotations

import random
import time

from runner.carriers.base import CONNECT_TIMEOUT_S
from runner.carriers.failures import Dropped
from runner.errors import RunnerError

PAUSES_S = (0.2, 0.4, 0.8, 1.6, 3.2, 3.2)
_FEW = 2
"""For what may well stay so: 0.6 s in all, in which an sshd is restarted."""


class Tries:
    """How many more times one connection may be tried, and when."""

    def __init__(self, limit_s: float = CONNECT_TIMEOUT_S, *, now: float | None = None) -> None:
        """limit_s: no try begins later than this after the first."""
        began = time.monotonic() if now is None else now
        self._until = began + limit_s
        self._made = 0

    def pause_s(
        self, error: RunnerError | None, *, now: float | None = None, chance: float | None = None
    ) -> float | None:
        """How long to wait before the next try after `error`; None when there is to be none."""
        if not isinstance(error, Dropped):
            return None
        if self._made >= (_FEW if error.may_last else len(PAUSES_S)):
            return None
        # apart from each other, since those who were dropped together come back together
        spread = 0.5 + (random.random() if chance is None else chance)
        pause = PAUSES_S[self._made] * spread
        if (time.monotonic() if now is None else now) + pause >= self._until:
            return None
        self._made += 1
        return pause
