"""Shared connections of ours that were there before: whether one still carries anything.

A laptop that slept, or a link that was cut, leaves an ssh behind that holds the control socket and
finds out only after its 15 s. What goes over it meanwhile waits for nothing.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from runner.carriers.gate import is_alive
from runner.carriers.ssh_command import run_ssh

SILENCE_S = 4.0
"""How long nothing may come over a connection that was there before. A new one needs about 3 s at
a round trip of 100 ms; a host that is only slow loses nothing, since both are waited for.
"""
_STOP_S = 2.0


def living(control: Path | None) -> int | None:
    """Which socket is there with someone listening, as the number of its file; None for none."""
    if control is None:
        return None
    number = _number(control)
    return number if is_alive(control) else None


def let_go(control: Path, number: int) -> None:
    """Sees that nothing new goes over that socket; what is under way over it lives on."""
    if _number(control) != number:
        return  # someone else did, and there may be a new one
    with contextlib.suppress(OSError):
        run_ssh(["ssh", "-F", "none", "-S", str(control), "-O", "stop", "--", "x"], _STOP_S)
    if _number(control) == number:  # whoever holds it hangs too
        with contextlib.suppress(OSError):
            control.unlink()


def _number(control: Path) -> int | None:
    try:
        return os.stat(control).st_ino
    except OSError:
        return None
