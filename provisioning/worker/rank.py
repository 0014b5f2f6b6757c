"""What a rank becomes before the job's own program: log, progress file, leases, then exec.

Run as `python3 -I -S -B FOLDER rank ARGV…` under torchrun's agent or mpirun, or called in a forked
child for a run of one rank. Files are opened here and not by a parent, so that no pipe stands
between the job and its log and nothing is lost with a parent.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
from typing import Dict, List

PLAN = "RUNNER_RANK_PLAN"
PR_SET_PTRACER = 0x59616D61
PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
NO_PROGRAM = 127
NOT_EXECUTABLE = 126
_RESET = ("SIGTERM", "SIGINT", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGXFSZ", "SIGUSR1")


def main(argv: List[str]) -> None:
    """Become the job's program for the rank that torchrun's variables name."""
    plan = json.loads(os.environ.pop(PLAN))
    for path in plan["leases"]:
        _join_lease(path)
    if plan.get("ends"):
        import mpi

        rank = mpi.rank_of(dict(os.environ)) or 0
        mpi.run_rank(rank, plan["ends"], lambda env: become(argv, env, plan["logs"], rank))
    become(argv, dict(os.environ), plan["logs"], int(os.environ.get("RANK", "0")))


def become(argv: List[str], env: Dict[str, str], logs: str, rank: int) -> None:
    """Replace this process by the job's program; never returns."""
    for name in _RESET:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    log = os.path.join(logs, "rank-%d.log" % rank)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    out = os.open(log, flags, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    name = "progress.jsonl" if rank == 0 else "progress-rank-%d.jsonl" % rank
    env["RUNNER_PROGRESS"] = os.path.join(logs, name)
    _let_be_read()
    try:
        os.execvpe(argv[0], argv, env)
    except (OSError, ValueError) as error:
        absent = isinstance(error, FileNotFoundError)
        reason = "no such program" if absent else getattr(error, "strerror", None) or error
        os.write(2, ("runner: %s: %s\n" % (argv[0], reason)).encode("utf-8", "surrogateescape"))
    os._exit(NO_PROGRAM if absent else NOT_EXECUTABLE)


def _let_be_read() -> None:
    """Where Yama lets only ancestors look into a process: `runner stack` may, too.

    It outlives exec, and concerns processes of the same user alone.
    """
    ctypes.CDLL(None).prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0)


def _join_lease(path: str) -> None:
    """Hold the lease too: it must not be free while this rank lives, whoever else dies."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.set_inheritable(fd, True)
    except OSError as error:
        sys.stderr.write("runner: lease %s: %s\n" % (path, error))
