"""Where the processes of an attempt just are: every Python's stack, read from outside by py-spy.

Nothing is sent to the job and nothing of it is stopped. Of a rank that runs no Python the kernel's
own word is shown: its state and what it waits in.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

import config
import processes
import records
from paths import RunPaths, Workspace

LIMIT_S = 20.0
"""For all processes together: the launcher waits for it."""
ONE_LIMIT_S = 8.0
TRIES = 3
"""A stack that changes while it is read may not make sense."""
TEXT_BYTES = 256 * 1024
_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting in the kernel, not to be interrupted",
    "T": "stopped",
    "t": "stopped by a tracer",
}


def take(workspace: Workspace, paths: RunPaths, attempt: int, nproc: int) -> Dict[str, Any]:
    """{"ranks": [{"rank", "pid", "text"}], "problem"?: one line} of an attempt that lives."""
    born = records.read(os.path.join(paths.attempt(attempt), "proc.json"))
    if not born:
        return {"ranks": [], "problem": "it has no processes yet"}
    launcher = int(born["launcher"]["pid"])
    tools = {os.getpid(), launcher}
    member = processes.Membership(born["mark"], born.get("limit"), born.get("leases", ()), tools)
    # a pid that another process has by now is no root
    roots = [launcher] if processes.is_alive(born["launcher"]) else []
    found = _by_rank(member.find(roots), nproc)
    spy = find_spy(workspace)
    rows: List[Dict[str, Any]] = []
    problem = None if spy else _no_spy(workspace)
    deadline = time.monotonic() + LIMIT_S
    for rank, pids in sorted(found.items()):
        pythons = [pid for pid in pids if is_python(pid)]
        # the job's own program first, then what it has started
        for pid in sorted(pythons or pids[:1]):
            text, trouble = None, None
            if pid in pythons and spy is not None:
                text, trouble = _dump(spy, pid, deadline)
                problem = problem or trouble
            rows.append({"rank": rank, "pid": pid, "text": text or kernel_text(pid)})
    if not rows:
        problem = problem or "it has no processes just now"
    return {"ranks": rows, "problem": problem} if problem else {"ranks": rows}


def write(folder: str, taken: Dict[str, Any]) -> Optional[str]:
    """Keep what was taken as attempts/N/stacks-K.txt; its path, or None when the disk is full."""
    lines = [] if not taken.get("problem") else ["runner: %s" % taken["problem"], ""]
    for row in taken["ranks"]:
        lines += ["rank %d, process %d" % (row["rank"], row["pid"]), row["text"].rstrip(), ""]
    data = "\n".join(lines).encode("utf-8", "replace")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    number = 1
    while True:
        path = os.path.join(folder, "stacks-%d.txt" % number)
        try:
            fd = os.open(path, flags, 0o644)
        except FileExistsError:
            number += 1
            continue
        except OSError:
            return None
        try:
            with open(fd, "wb") as file:
                file.write(data)
        except OSError:
            return None
        return path


def find_spy(workspace: Workspace) -> Optional[str]:
    """py-spy beside the worker's Python, else on the path."""
    for python in (config.read(workspace).facts.get("python"), sys.executable):
        beside = os.path.join(os.path.dirname(str(python or "")), "py-spy")
        if os.path.isabs(beside) and os.access(beside, os.X_OK):
            return beside
    return shutil.which("py-spy")


def is_python(pid: int) -> bool:
    """Whether a process runs Python, by its program or by the library it has loaded."""
    try:
        name = os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return False
    if name.startswith("python"):
        return True
    try:
        with open("/proc/%d/maps" % pid, "rb") as file:
            return b"/libpython" in file.read()
    except OSError:
        return False


def kernel_text(pid: int) -> str:
    """A process as the kernel tells of it: its command, its state, what it waits in."""
    found = processes.read_stat(pid)
    if found is None:
        return "Process %d has ended" % pid
    words = _read(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "replace").strip()
    place = _read(pid, "wchan").decode("ascii", "replace").strip()
    text = "Process %d: %s\nState: %s" % (pid, words[:500], _STATES.get(found[2], found[2]))
    return text + ("\nWaits in: %s" % place if place not in ("", "0") else "")


def _by_rank(pids: Any, nproc: int) -> Dict[int, List[int]]:
    """Processes by their rank, ancestors first; torchrun's agent and its helpers have none."""
    out: Dict[int, List[int]] = {}
    for pid in sorted(pids, key=_age):
        rank = _rank(pid, pids) if nproc > 1 else 0
        if rank is not None:
            out.setdefault(rank, []).append(pid)
    return out


def _age(pid: int) -> Tuple[int, int]:
    return (processes.read_stat(pid) or (0, 0, ""))[1], pid


def _rank(pid: int, members: Any) -> Optional[int]:
    """RANK of a process, or of the nearest ancestor in the attempt that has one."""
    seen = set()
    while pid in members and pid not in seen:
        seen.add(pid)
        for word in _read(pid, "environ").split(b"\0"):
            if word.startswith(b"RANK=") and word[5:].isdigit():
                return int(word[5:])
        pid = (processes.read_stat(pid) or (0, 0, ""))[0]
    return None


def _dump(spy: str, pid: int, deadline: float) -> Tuple[Optional[str], Optional[str]]:
    """(py-spy's text or None, what was wrong or None)."""
    for _ in range(TRIES):
        text, trouble = _dump_once(spy, pid, deadline)
        if text is not None or trouble is None:
            break
    return text, trouble


def _dump_once(spy: str, pid: int, deadline: float) -> Tuple[Optional[str], Optional[str]]:
    left = min(ONE_LIMIT_S, deadline - time.monotonic())
    if left <= 0:
        return None, "not all were read: it took more than %d s" % LIMIT_S
    argv = [spy, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=left,
            check=False,
            env={"NO_COLOR": "1"},
        )
    except subprocess.TimeoutExpired:
        return None, "py-spy did not answer for process %d" % pid
    except OSError as error:
        return None, "%s cannot be run: %s" % (spy, error.strerror)
    if done.returncode == 0:
        return done.stdout[:TEXT_BYTES].decode("utf-8", "replace"), None
    if processes.read_stat(pid) is None:
        return None, None
    said = done.stderr.decode("utf-8", "replace").strip()
    return None, _refusal(pid, said)


def _refusal(pid: int, said: str) -> str:
    if "ermission denied" in said or "EPERM" in said or "not permitted" in said:
        scope = _scope()
        if scope >= 2:
            return (
                "py-spy may not read process %d: kernel.yama.ptrace_scope is %d there; "
                "1 is enough: sudo sysctl kernel.yama.ptrace_scope=1" % (pid, scope)
            )
        if scope == 1:
            return (
                "py-spy may not read process %d, which a rank has started itself "
                "(kernel.yama.ptrace_scope is 1 there); a command that begins with "
                "`exec` or `python` is the rank, and can be read" % pid
            )
        return "py-spy may not read process %d: it runs under another user or a guard" % pid
    first = said.partition("\n")[0].replace("Error: ", "") or "no reason given"
    return "py-spy cannot read process %d: %s" % (pid, first[:300])


def _scope() -> int:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _no_spy(workspace: Workspace) -> str:
    body = config.read(workspace)
    if body.runtime == "local":
        python = body.facts.get("python") or sys.executable
        return "py-spy is not there; install it with: %s -m pip install py-spy" % python
    return "py-spy is not in the worker's image; provision the host again"


def _read(pid: int, name: str) -> bytes:
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as file:
            return file.read(64 * 1024)
    except OSError:
        return b""
