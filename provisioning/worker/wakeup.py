"""Telling the dispatcher that something changed: an empty file in its inbox and a byte in its FIFO.

Both are hints; the dispatcher also looks by itself. The inbox survives a dispatcher that is away.
"""

from __future__ import annotations

import os
from typing import List

import records
from paths import Workspace


def poke(workspace: Workspace, run: str) -> None:
    """Ask the dispatcher to look at a run; never fails."""
    try:
        spec = os.path.join(workspace.runs, run, "spec.json")
        records.make_mark(os.path.join(workspace.inbox, run), spec, ())
    except OSError:
        pass  # without room for it the next tick finds the run, if it lives
    wake(workspace)


def wake(workspace: Workspace) -> None:
    """Ask the dispatcher to look at what may start; never fails."""
    try:
        fd = os.open(workspace.wake, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.write(fd, b"x")
    except OSError:
        pass
    finally:
        os.close(fd)


def take_inbox(workspace: Workspace) -> "List[str]":
    """Runs to look at; forgotten before they are looked at, so a later poke is not lost."""
    names = []
    for name in sorted(os.listdir(workspace.inbox)):
        try:
            os.unlink(os.path.join(workspace.inbox, name))
        except FileNotFoundError:
            continue
        names.append(name)
    return names
