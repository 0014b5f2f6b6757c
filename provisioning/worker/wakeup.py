"""Telling dispatchers that something changed: an empty file in the inbox and a byte in the FIFO.

Where a workspace has several workers all are told; whose it is not lets it be.

Both are hints; the dispatcher also looks by itself. The inbox survives a dispatcher that is away.
"""

from __future__ import annotations

import os
from typing import List

import records
from paths import Workspace


def poke(workspace: Workspace, run: str) -> None:
    """Ask to look at a run; never fails."""
    spec = os.path.join(workspace.runs, run, "spec.json")
    for seen in _all_places(workspace):
        try:
            records.make_mark(os.path.join(seen.inbox, run), spec, ())
        except OSError:
            pass  # without room for it the next tick finds the run, if it lives
        _wake(seen)


def wake(workspace: Workspace) -> None:
    """Ask to look at what may start; never fails."""
    for seen in _all_places(workspace):
        _wake(seen)


def _all_places(workspace: Workspace) -> "List[Workspace]":
    if not workspace.place:
        return [workspace]
    others = [name for name in workspace.place_names() if name != workspace.place]
    return [workspace, *map(workspace.at, others)]


def _wake(workspace: Workspace) -> None:
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
