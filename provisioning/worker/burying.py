"""Ending what a vanished launcher left, and writing the end it could not write.

A launcher holds its run's lock for life, so whoever gets the lock knows that none lives. Where
processes of the attempt may live on, ending them takes as long as their grace: that is done by a
process of its own, which holds the lock meanwhile as a launcher would. When it is killed, too, the
lock is free again and the same begins anew.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import Any, Dict, List, Optional, Set

import causes
import plain
import processes
import records
import wakeup
from paths import RunPaths, Workspace

LOST_GRACE_S = 5.0
LOST_LOOKS = 3
POLL_S = 1.0
BEAT_EVERY_S = 5.0
"""How often a launcher tells how long its attempt has run."""

Table = Dict[str, Any]


def lost_kind(born: Optional[Table]) -> str:
    """What became of an attempt without exit.json whose lock is free."""
    if not born:
        return "not-started"
    who, here = born["launcher"], processes.identity()
    if who["boot"] != here["boot"]:
        return "host-restart"
    if who["init"] != here["init"] or who["ns"] != here["ns"]:
        return "worker-lost"
    return "launcher-lost"


def bury(
    paths: RunPaths, state: Table, kind: str, swept: Optional[processes.Sweep] = None
) -> Table:
    """Write the attempt's exit.json: it ended for the cause `kind`."""
    folder = paths.attempt(int(state["attempt"]))
    cancelled = os.path.exists(paths.cancel)
    beat = records.read(os.path.join(folder, "beat.json")) or {}
    swept = swept or processes.Sweep()
    record = {
        "format": records.FORMAT,
        "attempt": state["attempt"],
        "cause": causes.plain("cancelled" if cancelled else kind),
        "exit": {"code": None, "signal": None, "rank": None},
        "processes": swept.seen,
        "killed": len(swept.killed),
        "left": sorted(swept.left),
        "gpus": [],
        "ran_s": ran_s(folder, beat.get("ran_s")),
        "ended_at": time.time(),
        "by": "dispatcher",
    }
    os.makedirs(folder, exist_ok=True)
    records.write(os.path.join(folder, "exit.json"), record)
    return record


def ran_s(folder: str, told: Any) -> float:
    """How long a lost attempt ran, at most: until now, or until its next sign of life was due."""
    known = float(told) if plain.is_number(told) else 0.0
    born = records.read(os.path.join(folder, "proc.json")) or {}
    began = born.get("started_at")
    since = time.time() - float(began) if plain.is_number(began) else 0.0  # type: ignore[arg-type]
    return max(known, min(since, known + BEAT_EVERY_S))


def sweep_and_bury(workspace: Workspace, spec: Table, state: Table, born: Table) -> None:
    """End every process of the attempt, then write its end; the caller holds the run's lock.

    It holds the attempt's leases, too (`join`): what cannot be killed keeps them by this process.
    """
    paths = workspace.run(spec["id"])
    folder = paths.attempt(int(state["attempt"]))
    known = records.read(os.path.join(folder, "pids.json")) or {}
    member = processes.Membership(
        born["mark"], born.get("limit"), born.get("leases", ()), [os.getpid()]
    )

    def find() -> Set[int]:
        roots = [int(pid) for pid, start in known.items() if processes.is_same(int(pid), start)]
        return processes.living(set(roots)) | member.find(roots)

    grace_s = min(float(spec.get("grace_s", LOST_GRACE_S)), LOST_GRACE_S)
    # TERM comes once: the launcher may have sent it before it was killed
    asked = os.path.exists(os.path.join(folder, "stop"))
    swept = processes.sweep(
        find,
        lambda: 0.0 if os.path.exists(paths.cancel_now) else grace_s,
        ask=lambda pid: not asked,
        looks=LOST_LOOKS,
    )
    bury(paths, state, "launcher-lost", swept)
    wakeup.poke(workspace, paths.id)
    while processes.living(swept.left):
        time.sleep(POLL_S)  # what cannot die keeps its cards


def join(born: Table) -> List[int]:
    """Hold the attempt's leases, by open files: they must not be free while something of it lives,
    nor be taken by a run that stands behind this one, while its end is being written."""
    kept = []
    for path in born.get("leases", ()):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)  # just being claimed by somebody else
            continue
        # whoever claims it writes its name there first, under a lock that excludes this one
        if str(born["mark"]).encode() in os.pread(fd, 4096, 0):
            kept.append(fd)
        else:
            os.close(fd)
    return kept
