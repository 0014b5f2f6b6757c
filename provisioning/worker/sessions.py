"""One log-in: an sshd that serves one connection, and the end of all it began.

The keeper of a session stands above its sshd. When the connection is gone, by itself or since the
client was killed, sshd ends; what it leaves gets HUP then, as it would from a terminal. Programs
that are meant to stay (tmux, nohup) do.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from typing import List, Mapping, Set

import processes
import records
import supervisor
from paths import Workspace

_PR_SET_CHILD_SUBREAPER = 36
_AGAIN_S = 0.3
_MOST_LOG = 1 << 20


def begin(
    connection: socket.socket, argv: List[str], env: Mapping[str, str], log: str
) -> "subprocess.Popen[bytes]":
    """Serve a connection with `argv`; the connection is closed here."""
    try:
        if os.path.exists(log) and os.path.getsize(log) > _MOST_LOG:
            os.truncate(log, 0)
    except OSError:
        pass
    out = records.open_log(log)
    keeper = [sys.executable, "-I", "-S", "-B", supervisor.HERE, "session", *argv]
    with connection:
        try:
            return subprocess.Popen(
                keeper,
                stdin=connection.fileno(),
                stdout=connection.fileno(),
                stderr=out,
                env=dict(env),
                start_new_session=True,
            )
        finally:
            os.close(out)


def log_path(workspace: Workspace) -> str:
    """Where sshd says why it let nobody in."""
    return os.path.join(workspace.own, "sessions.log")


def main(argv: List[str]) -> int:
    """The keeper: runs `argv` on our stdin and stdout; its exit status."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(argv)
    # the connection ends with the last who has it open: not with us
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            child.returncode = status
            break
    for _ in range(2):
        for pid in descendants(os.getpid()):
            for number in (signal.SIGHUP, signal.SIGCONT):
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
        time.sleep(_AGAIN_S)
    return 0


def descendants(top: int) -> Set[int]:
    """Every process below one."""
    parents = {}
    for pid in processes.all_pids():
        found = processes.read_stat(pid)
        if found is not None and found[2] not in "ZX":
            parents[pid] = found[0]
    below: Set[int] = set()
    grown = {top}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in grown and pid not in below}
        below |= grown
    return below
