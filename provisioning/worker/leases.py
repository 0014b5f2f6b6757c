"""Claims on GPUs and CPU slots: one flock file each, shared by all workers of the account.

A claim takes the file's lock alone, writes who it is for, and steps down to a shared lock; the
launcher and the job inherit the open file, so the lease lives exactly as long as one of them
does and no stale one can stay behind. Files are named by UUID, since an index differs between
containers, and are never deleted.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any, Dict, Iterable, List, Optional

import processes
import records

_MOST_NOTE = 4096


def gpu_path(folder: str, uuid: str) -> str:
    """The lease file of a card. Raises ValueError for a UUID that could leave the folder."""
    if "/" in uuid or uuid.startswith("."):
        raise ValueError("not a GPU's UUID: %r" % uuid)
    return os.path.join(folder, uuid)


def slot_paths(folder: str, count: int) -> List[str]:
    """The lease files of the CPU slots."""
    return [os.path.join(folder, "slot-%03d" % number) for number in range(count)]


def claim(
    path: str, token: str, run: str, worker: Optional[Dict[str, Any]] = None
) -> Optional[int]:
    """An inheritable open file that holds the lease, or None when someone else has it.

    worker: {"id", "runtime", "image"} of the claiming worker, for the words of those who wait.
    """
    fd = records.try_lock(path, fcntl.LOCK_EX)
    if fd is None:
        return None
    body = {"token": token, "run": run, "by": processes.identity()}
    if worker is not None:
        body["worker"] = worker
    note = json.dumps(body)
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, note.encode("ascii"), 0)
        # stepping down is not atomic: another claim may come between, so look again
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    if token.encode() not in os.pread(fd, _MOST_NOTE, 0):
        os.close(fd)
        return None
    os.set_inheritable(fd, True)
    return fd


def claim_some(
    paths: Iterable[str],
    count: int,
    token: str,
    run: str,
    worker: Optional[Dict[str, Any]] = None,
) -> Optional[Dict[str, int]]:
    """`count` of these leases (path to open file), or None and none at all."""
    got: Dict[str, int] = {}
    for path in paths:
        if len(got) == count:
            break
        fd = claim(path, token, run, worker)
        if fd is not None:
            got[path] = fd
    if len(got) == count:
        return got
    for fd in got.values():
        os.close(fd)
    return None


def holder(path: str) -> Optional[Dict[str, Any]]:
    """Who holds a lease, as it said itself; None when it is free.

    {"token", "run", "by", and where it was told: "worker": {"id", "runtime", "image"}}.
    """
    if not records.is_locked(path, alone=False):
        return None
    return records.read(path) or {}


def last_note(path: str) -> bytes:
    """What the last claim left, whether it holds or not: it differs after every claim."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_NOTE)
    except OSError:
        return b""
