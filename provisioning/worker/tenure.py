"""A dispatcher's tenure: how it gets the workspace, and how it leaves it to the next one.

It holds dispatcher.lock. It leaves when it is asked to, when its supervisord was killed (a `local`
one then starts another pair itself, since nobody else would), and, as the only worker nobody
started on purpose, a `local` one that has been idle for long.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Optional

import config
import journal
import presence
import processes
import records
import supervisor
from paths import Workspace

IDLE_END_S = 600.0
LOCK_WAIT_S = 5.0


class Tenure:
    """One dispatcher's hold on a workspace."""

    def __init__(self, workspace: Workspace, lock: int, parent: int, known: config.Config) -> None:
        self._workspace = workspace
        self._parent = parent
        self._config = known
        self._idle_since = time.monotonic()
        self.lock: Optional[int] = lock

    def is_orphaned(self) -> bool:
        """Whether its supervisord was killed."""
        return os.getppid() != self._parent

    def make_room(self) -> bool:
        """Leave the workspace to the next pair, which in a container a keeper starts."""
        if self._config.runtime in ("local", "venv"):
            starting = records.try_lock(self._workspace.start_lock)
            if starting is None:
                return False
            # held to our end, so that nobody starts a third one meanwhile
            known = config.read(self._workspace)  # a venv may have been made anew
            python = str(known.facts.get("python") or sys.executable)
            supervisor.start_detached(self._workspace, python)
        return True

    def end(self) -> bool:
        """It is over: its supervisord goes, too, and with it its container."""
        if not self.is_orphaned():
            os.kill(self._parent, signal.SIGTERM)
        return True

    def may_end(self, idle: bool) -> bool:
        """Whether it is over: an idle `local` worker goes, and the next contact starts one."""
        alone = idle and not presence.is_there(self._workspace)
        if not alone or self._config.runtime != "local":
            self._idle_since = time.monotonic()
            return False
        limit = float(os.environ.get("RUNNER_IDLE_END_S") or IDLE_END_S)
        if time.monotonic() - self._idle_since < limit:
            return False
        starting = records.try_lock(self._workspace.start_lock)
        if starting is None:
            return False
        # not up from here on: who makes a run and then sees us up has made it before the next look
        assert self.lock is not None
        os.close(self.lock)
        if not os.listdir(self._workspace.inbox):
            # start.lock is held to our end: the next starter sees supervisord go, too
            return self.end()
        self.lock = records.wait_lock(self._workspace.dispatcher_lock, LOCK_WAIT_S)
        os.close(starting)
        return self.lock is None


def begin(workspace: Workspace, known: config.Config) -> Optional[Tenure]:
    """Take the workspace, or None when another dispatcher has it."""
    parent = os.getppid()
    lock = records.wait_lock(workspace.dispatcher_lock, LOCK_WAIT_S)
    if lock is None:
        journal.say("another dispatcher has this workspace")
        _end_second(workspace, parent)
        return None
    ours = processes.identity(parent) if _is_supervisor(parent) else None
    body = dict(processes.identity(), format=records.FORMAT, supervisor=ours)
    if not records.write_in_place(workspace.dispatcher, body):
        journal.say("no room for %s; going on without" % workspace.dispatcher)
    if ours is None and os.environ.get("SUPERVISOR_ENABLED"):
        parent = 0  # its supervisord was killed at its very start
    return Tenure(workspace, lock, parent, known)


def _end_second(workspace: Workspace, parent: int) -> None:
    """End the supervisord above us when the one of the dispatcher that has the workspace lives."""
    owner = records.read(workspace.dispatcher) or {}
    first = owner.get("supervisor")
    if (
        first
        and int(first["pid"]) != parent
        and processes.is_alive(first)
        and _is_supervisor(parent)
    ):
        os.kill(parent, signal.SIGTERM)


def _is_supervisor(pid: int) -> bool:
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as file:
            return any(word.endswith(b"/supervisord.py") for word in file.read().split(b"\0"))
    except OSError:
        return False
