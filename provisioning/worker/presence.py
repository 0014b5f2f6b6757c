"""Whether somebody is in a worker by one of the ways in: a lock that each of them holds shared."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import Iterator

import records
from paths import Workspace

_LOCK_S = 2.0


@contextlib.contextmanager
def held(workspace: Workspace) -> Iterator[None]:
    """Somebody is in: a `local` worker does not end as idle meanwhile."""
    try:
        # who looks whether it is free has it for an instant
        lock = records.wait_lock(
            _path(workspace), _LOCK_S, lambda path: records.try_lock(path, fcntl.LOCK_SH)
        )
    except OSError:  # no room for the file: the worker may end then, and is started again
        lock = None
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def is_there(workspace: Workspace) -> bool:
    """Whether somebody is in."""
    return records.is_locked(_path(workspace), alone=False)


def _path(workspace: Workspace) -> str:
    return os.path.join(workspace.own, "in-use.lock")
