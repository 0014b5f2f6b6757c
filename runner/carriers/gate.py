"""One connection is made at a time, so that many commands at once share the first one.

Twenty commands started together would open twenty connections, of which a server with ordinary
limits drops some (MaxStartups). The first holds a lock until its control socket is there, for a few
seconds at most; the others then find the socket. The lock dies with its holder.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

_HOLD_S = 5.0
"""A login through a jump takes 3 s at a round trip of 100 ms; after this the others go on alone."""
_LOOK_S = 0.02


Release = Callable[[], None]


def wait_turn(control: Path | None) -> Release:
    """Returns when the control socket is there, or when it is our turn to make it; at once where
    there is to be none.

    Call what it gives when the attempt has ended; until then, or until the socket is there, no
    other begins one.
    """
    if control is None or is_alive(control):
        return _nothing
    lock = os.open(f"{control}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + _HOLD_S
    while not _take(lock):
        if is_alive(control) or time.monotonic() > until:
            os.close(lock)
            return _nothing
        time.sleep(_LOOK_S)
    ended = threading.Event()
    threading.Thread(target=_hold, args=(lock, control, ended), daemon=True).start()
    return ended.set


def _nothing() -> None:
    """There is nothing to release."""


def _hold(lock: int, control: Path, ended: threading.Event) -> None:
    until = time.monotonic() + _HOLD_S
    while not ended.wait(_LOOK_S) and time.monotonic() < until and not is_alive(control):
        pass
    os.close(lock)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_alive(control: Path) -> bool:
    """Whether someone listens there; a socket that was left behind has nobody."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(_HOLD_S)  # a master that hangs takes nobody in once its queue is full
            return control.exists() and probe.connect_ex(str(control)) == 0
    except OSError:
        return False
