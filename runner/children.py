"""The processes that this one started: none of them outlives a command that left them behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import time
from collections.abc import Callable

TERM_S = 0.2
"""Between TERM and KILL: ssh uses it to end its ProxyCommand."""
END_S = 1.0
_LOOK_S = 0.02


def children() -> frozenset[int]:
    """The processes started by this one that live."""
    own = str(os.getpid())
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = _stat(name)
            # what has ended only waits to be reaped
            if len(fields) > 1 and fields[1] == own and fields[0] not in "ZX":
                found.append(int(name))
    return frozenset(found)


def end_children(spared: frozenset[int] = frozenset()) -> None:
    """End them all, but for those spared, with what they started in their own session.

    For the end of the process: threads that were left behind may start one more meanwhile.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(children() - spared, number)
        _wait(lambda: not children() - spared, TERM_S if number == signal.SIGTERM else END_S)
    _signal(children() - spared, signal.SIGKILL)


def end_new_at_exit() -> None:
    """Whatever keeps this process from its end, none that starts from here on is left behind."""
    atexit.register(end_children, children())


def _signal(pids: frozenset[int], number: signal.Signals) -> None:
    for pid in pids:
        # a child that nobody reaped keeps its number, so it is nobody else's
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)


def _wait(is_so: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not is_so() and time.monotonic() < until:
        time.sleep(_LOOK_S)


def _stat(pid: str) -> list[str]:
    """State, parent and the rest of what the system tells of a process; nothing once it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []
