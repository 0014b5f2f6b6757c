"""Ranks started by Open MPI's mpirun on one node. It only starts them: gloo or NCCL carry the data.

The front (front.py) starts mpirun, mpirun a wrapper for each rank, and the wrapper the job's
program, which it waits for: mpirun tells of the first end alone, and takes the others along. So a
wrapper always ends well, and what became of its rank stands in a file; who ends the others after a
failure, and when, is decided by the front as for every launcher.

mpirun's own daemon listens on every interface, and no option of Open MPI 4 keeps it from that. So
where there is an interface but loopback it is started with a few lines of C before its `bind`,
which turn "any address" into 127.0.0.1. The image brings them built; elsewhere that takes a C
compiler, once for each workspace.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from typing import Any, Dict, List, Optional, Tuple

ENDS = ".ranks"
"""Behind the path of an attempt's stop file: a folder with rank-N.json for each rank: {"pid",
"start"}, and once it has ended "code" and "t"."""
_HELD_BACK = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PRELOAD, _PRELOAD_BEFORE = "LD_PRELOAD", "RUNNER_LD_PRELOAD_BEFORE"
_NETWORKS = "/sys/class/net"
_BUILD_S = 60.0
_SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loopback.c")
IN_IMAGE = "/opt/runner/loopback.so"
"""What the Dockerfile makes of it, where the base or its packages give a compiler."""


class Missing(OSError):
    """What mpirun needs is not in this worker."""


# -- before the ranks: the launcher -----------------------------------------------------------


def prepare(folder: str, env: Dict[str, str]) -> None:
    """See that mpirun can be started without a listener beyond loopback; sets what it needs in env.

    folder: where the lines of C are kept once they are built. Raises Missing.
    """
    if shutil.which("mpirun", path=env.get("PATH")) is None:
        raise Missing("launcher mpirun: there is no mpirun in this worker")
    if not _is_reachable():
        return
    path = IN_IMAGE if os.path.exists(IN_IMAGE) else _built(folder, env)
    before = env.get(_PRELOAD, "")
    env[_PRELOAD_BEFORE] = before
    env[_PRELOAD] = path + (":" + before if before else "")


def _is_reachable() -> bool:
    """Whether there is an interface but loopback."""
    try:
        return any(name != "lo" for name in os.listdir(_NETWORKS))
    except OSError:
        return True


def _built(folder: str, env: Dict[str, str]) -> str:
    """The library, built when it is not there yet. Raises Missing."""
    with open(_SOURCE, "rb") as file:
        source = file.read()
    path = os.path.join(folder, "loopback-%s.so" % hashlib.sha256(source).hexdigest()[:16])
    if os.path.exists(path):
        return path
    compiler = shutil.which("cc", path=env.get("PATH")) or shutil.which("gcc", path=env.get("PATH"))
    if compiler is None:
        raise Missing(
            "launcher mpirun: mpirun listens on every interface; to keep it on loopback takes a"
            ' C compiler in this worker, or network = "none" for its host'
        )
    os.makedirs(folder, exist_ok=True)
    temporary = "%s.tmp%d" % (path, os.getpid())
    words = [compiler, "-shared", "-fPIC", "-O1", _SOURCE, "-o", temporary, "-ldl"]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_BUILD_S,
        )
    except subprocess.SubprocessError as error:
        raise Missing("launcher mpirun: %s" % error) from error
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()
        raise Missing("launcher mpirun: %s: %s" % (compiler, said[-1] if said else "it failed"))
    os.rename(temporary, path)
    return path


# -- mpirun: the front ------------------------------------------------------------------------


def command(nproc: int, words: List[str]) -> List[str]:
    """mpirun and its options for ranks on this node alone, run as whoever runs this."""
    options = ["-np", str(nproc), "--host", "localhost:%d" % nproc, "--oversubscribe"]
    options += ["--bind-to", "none", "--allow-run-as-root"]
    for name, value in (
        # nothing is started elsewhere, so no ssh is looked for
        ("plm", "isolated"),
        ("oob_tcp_if_include", "lo"),
        ("btl", "self,vader"),
    ):
        options += ["--mca", name, value]
    return ["mpirun", *options, *words]


def read_ends(folder: str) -> Dict[int, Tuple[int, float]]:
    """(exit code, time) of each rank that has ended."""
    found = {}
    for rank, body in _records(folder).items():
        if isinstance(body.get("code"), int):
            found[rank] = (int(body["code"]), float(body.get("t") or 0.0))
    return found


def pids(folder: str) -> Dict[int, int]:
    """The process of each rank that has begun and not ended."""
    found = {}
    for rank, body in _records(folder).items():
        pid = body.get("pid")
        if isinstance(pid, int) and "code" not in body and _start(pid) == body.get("start"):
            found[rank] = pid
    return found


def _records(folder: str) -> Dict[int, Dict[str, Any]]:
    found = {}
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    for name in names:
        if name.startswith("rank-") and name.endswith(".json"):
            try:
                with open(os.path.join(folder, name)) as file:
                    body = json.load(file)
            except (OSError, ValueError):
                continue
            if isinstance(body, dict) and name[5:-5].isdigit():
                found[int(name[5:-5])] = body
    return found


# -- a rank: mpirun's child -------------------------------------------------------------------


def rank_of(environ: Dict[str, str]) -> Optional[int]:
    """Which rank Open MPI made this process; None when it was not started by it."""
    told = environ.get("OMPI_COMM_WORLD_RANK", "")
    return int(told) if told.isdigit() else None


def run_rank(rank: int, folder: str, become: Any) -> None:
    """Run the job's program as a child and write down how it ended; never returns.

    become: called in the child with its environment. A TERM is for the job, not for this process.
    """
    env = dict(os.environ)
    size = env.get("OMPI_COMM_WORLD_SIZE", "1")
    env.update(RANK=str(rank), LOCAL_RANK=env.get("OMPI_COMM_WORLD_LOCAL_RANK", str(rank)))
    env.update(WORLD_SIZE=size, LOCAL_WORLD_SIZE=env.get("OMPI_COMM_WORLD_LOCAL_SIZE", size))
    before = env.pop(_PRELOAD_BEFORE, None)
    if before is not None:
        env[_PRELOAD] = before
        if not before:
            del env[_PRELOAD]
    for number in _HELD_BACK:
        signal.signal(number, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        become(env)
    path = os.path.join(folder, "rank-%d.json" % rank)
    body: Dict[str, Any] = {"pid": child, "start": _start(child)}
    _write(path, body)
    _, status = os.waitpid(child, 0)
    _write(path, dict(body, code=os.waitstatus_to_exitcode(status), t=time.time()))
    os._exit(0)


def _write(path: str, body: Dict[str, Any]) -> None:
    temporary = "%s.tmp" % path
    with open(temporary, "w") as file:
        json.dump(body, file)
    os.rename(temporary, path)


def _start(pid: int) -> Optional[int]:
    """When a process began, in clock ticks; None when it is gone or has ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            parts = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if parts[0] in (b"Z", b"X") else int(parts[19])
