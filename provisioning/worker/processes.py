"""Which processes belong to an attempt, whether a process is still the one that was meant, and
how to end them all.

A process belongs to an attempt when it descends from the launcher, carries the attempt's mark in
its environment, has the attempt's own RLIMIT_RTTIME, or holds one of its leases open. The limit is
inherited over fork, exec, setsid and an emptied environment, anyone of the same user can read it,
and it does nothing without real-time scheduling; so it finds what hides from the other signs.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

MARK = "RUNNER_MARK"
KILL_WAIT_S = 30.0
TERM_POLL_S = 0.02
TERM_POLL_MOST_S = 0.2
KILL_POLL_S = 0.01

Stat = Tuple[int, int, str]


def read_stat(pid: int) -> Optional[Stat]:
    """(parent, start in clock ticks, state) of a process, or None."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            text = file.read()
    except OSError:
        return None
    parts = text[text.rindex(b")") + 2 :].split()
    return int(parts[1]), int(parts[19]), parts[0].decode()


def boot_id(environ: Optional[Dict[str, str]] = None) -> str:
    """This boot of the kernel; RUNNER_BOOT_ID stands in for it: a test must inject it."""
    named = (os.environ if environ is None else environ).get("RUNNER_BOOT_ID")
    if named:
        return named
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def identity(pid: Optional[int] = None) -> Dict[str, Any]:
    """A name for a process that no later process can have."""
    pid = os.getpid() if pid is None else pid
    own, first = read_stat(pid), read_stat(1)
    return {
        "boot": boot_id(),
        "init": first[1] if first else 0,
        "ns": os.stat("/proc/self/ns/pid").st_ino,
        "pid": pid,
        "start": own[1] if own else 0,
    }


def is_alive(who: Optional[Dict[str, Any]]) -> Optional[bool]:
    """Whether that very process lives; None when it cannot be told from this pid namespace."""
    if not who or who.get("boot") != boot_id():
        return False
    here = identity()
    if who.get("ns") != here["ns"] or who.get("init") != here["init"]:
        return None
    return is_same(int(who["pid"]), int(who["start"]))


def is_same(pid: int, start: int) -> bool:
    """Whether `pid` is still the process that started at that tick, and not a zombie."""
    found = read_stat(pid)
    return found is not None and found[1] == start and found[2] not in "ZX"


def draw_limit(rng: random.Random) -> Optional[int]:
    """A value for RLIMIT_RTTIME that no other attempt has, or None where there is no room."""
    hard = resource.getrlimit(resource.RLIMIT_RTTIME)[1]
    top = (1 << 61) if hard == resource.RLIM_INFINITY else hard
    if top < 1 << 32:
        return None
    return rng.randrange(top // 2, top)


def set_limit(value: Optional[int]) -> None:
    """Give this process, and all that will come of it, the attempt's own limit."""
    if value is not None:
        resource.setrlimit(resource.RLIMIT_RTTIME, (value, value))


def all_pids() -> List[int]:
    """Every process that this namespace shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(roots: Iterable[int]) -> Set[int]:
    """All living descendants of the given processes, without these."""
    children: Dict[int, List[int]] = {}
    for pid in all_pids():
        found = read_stat(pid)
        if found:
            children.setdefault(found[0], []).append(pid)
    out: Set[int] = set()
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in out:
                out.add(pid)
                todo.append(pid)
    return out


class Membership:
    """The signs by which an attempt's processes are known."""

    def __init__(
        self, mark: str, limit: Optional[int], leases: Iterable[str], spared: Iterable[int]
    ) -> None:
        self._mark = ("%s=%s" % (MARK, mark)).encode()
        self._limit = None if limit is None else str(limit).encode()
        self._token = mark.encode()
        self._paths = list(leases)
        self._leases = {_file_id(path) for path in self._paths} - {None}
        self._spared = set(spared)

    def find(self, roots: Iterable[int] = ()) -> Set[int]:
        """Every living process of the attempt; `roots` are ancestors known by other means."""
        pids = [pid for pid in all_pids() if pid not in self._spared]
        found = {pid for pid in pids if self._has_limit(pid) or self._has_mark(pid)}
        held = {pid for pid in pids if self._has_lease(pid)}
        if held and self._is_ours():
            found |= held
        found |= descendants(list(roots) + sorted(found))
        return living(found - self._spared)

    def _has_limit(self, pid: int) -> bool:
        if self._limit is None:
            return False
        try:
            with open("/proc/%d/limits" % pid, "rb") as file:
                for line in file:
                    if line.startswith(b"Max realtime timeout"):
                        return self._limit in line.split()
        except OSError:
            pass
        return False

    def _has_mark(self, pid: int) -> bool:
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                return self._mark in file.read().split(b"\0")
        except OSError:
            return False

    def _has_lease(self, pid: int) -> bool:
        """Whether it holds a shared lock on a lease; who only asks for one opens the file too."""
        if not self._leases:
            return False
        folder = "/proc/%d/fd" % pid
        try:
            names = os.listdir(folder)
        except OSError:
            return False
        return any(
            _file_id(os.path.join(folder, name)) in self._leases and _holds_shared_lock(pid, name)
            for name in names
        )

    def _is_ours(self) -> bool:
        """Whether no later claim took the leases over; asked after looking for their holders."""
        return any(self._token in _read(path) for path in self._paths)


def living(pids: Iterable[int]) -> Set[int]:
    """Those that still run; a zombie does not."""
    return {pid for pid in pids if (read_stat(pid) or (0, 0, "Z"))[2] not in "ZX"}


def starts(pids: Iterable[int]) -> Dict[str, int]:
    """pid (as text, for JSON) to the tick it started at."""
    return {str(pid): (read_stat(pid) or (0, 0, ""))[1] for pid in pids}


class Sweep:
    """What ending an attempt's processes came to."""

    def __init__(self) -> None:
        self.asked: Set[int] = set()
        self.killed: Set[int] = set()
        self.left: Set[int] = set()

    @property
    def seen(self) -> int:
        """How many processes there were in all."""
        return len(self.asked | self.killed)


def sweep(
    find: Callable[[], Set[int]],
    grace_s: Callable[[], float],
    all_reaped: Callable[[], bool] = lambda: True,
    ask: Callable[[int], bool] = lambda pid: True,
    looks: int = 1,
) -> Sweep:
    """End every process that `find` shows: TERM once each, `grace_s` seconds, then KILL until none.

    One look at /proc can miss a process that forks and exits at that moment: `all_reaped` collects
    dead children and says whether none is left at all; who is not their reaper asks for several
    `looks` that agree. `ask` says whether a process is to be sent TERM (torchrun's front is not: it
    would pass a second one on). What is left `KILL_WAIT_S` after the first KILL is given up, named.
    """
    result = Sweep()
    began = time.monotonic()
    first_kill: Optional[float] = None
    pause = TERM_POLL_S
    calm = 0
    while True:
        alone = all_reaped()
        current = find()
        calm = calm + 1 if alone and not current else 0
        if calm >= looks:
            return result
        now = time.monotonic()
        if now - began < grace_s():
            for pid in current - result.asked:
                result.asked.add(pid)
                if ask(pid):
                    _send(pid, signal.SIGTERM)
                    # a stopped process sees TERM only once it goes on
                    _send(pid, signal.SIGCONT)
            time.sleep(pause)
            # a look costs a millisecond per twenty processes of the machine
            pause = min(pause * 1.2, TERM_POLL_MOST_S)
            continue
        first_kill = now if first_kill is None else first_kill
        for pid in current:
            result.killed.add(pid)
            _send(pid, signal.SIGKILL)
        if now - first_kill > KILL_WAIT_S:
            result.left = current
            return result
        time.sleep(KILL_POLL_S)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _holds_shared_lock(pid: int, fd: str) -> bool:
    lines = _read("/proc/%d/fdinfo/%s" % (pid, fd)).splitlines()
    return any(
        line.startswith(b"lock:") and b" FLOCK " in line and b" READ " in line for line in lines
    )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def _file_id(path: str) -> Optional[Tuple[int, int]]:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
