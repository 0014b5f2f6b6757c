"""Which processes belong to an attempt, whether a process is still the one that was meant, and
how to end them all.

A process belongs to an attempt when it descends from the launcher, carries the attempt's mark in
its environment, has the attempt's own RLIMIT_RTTIME, or holds one of its leases open. The limit is
inherited over fork, exec, setsid and an emptied environment, anyone of the same user can read it,
and it does nothing without real-time scheduling; so it finds what hides from the other signs.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Set, Tuple

if TYPE_CHECKING:
    import random

MARK = "RUNNER_MARK"
KILL_WAIT_S = 30.0
TERM_POLL_S = 0.02
TERM_POLL_MOST_S = 0.2
KILL_POLL_S = 0.01
KTHREADD = 2
PF_KTHREAD = 0x00200000
_BLOCK = 65536

Stat = Tuple[int, int, str]


def read_stat(pid: int) -> Optional[Stat]:
    """(parent, start in clock ticks, state) of a process, or None."""
    text = _read("/proc/%d/stat" % pid)
    if not text:
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


def kernel_threads() -> Set[int]:
    """Threads of the kernel's own, nobody's processes; a big machine has a thousand of them.

    Where the kernel does not list them, or this namespace does not show them: none.
    """
    text = _read("/proc/%d/stat" % KTHREADD)
    # told by its flag, not by its name: a job could have that
    if not text or not int(text[text.rindex(b")") + 2 :].split()[6]) & PF_KTHREAD:
        return set()
    listed = _read("/proc/%d/task/%d/children" % (KTHREADD, KTHREADD))
    return {KTHREADD} | {int(pid) for pid in listed.split()}


def _user_pids() -> List[int]:
    # the kernel's first: a number that comes free meanwhile is looked at
    spared = kernel_threads()
    return [pid for pid in all_pids() if pid not in spared]


def descendants(roots: Iterable[int]) -> Set[int]:
    """All living descendants of the given processes, without these."""
    roots = [pid for pid in roots if _may_have_children(pid)]
    if not roots:
        return set()
    children: Dict[int, List[int]] = {}
    for pid in _user_pids():
        found = read_stat(pid)
        if found:
            children.setdefault(found[0], []).append(pid)
    out: Set[int] = set()
    todo = roots
    while todo:
        for pid in children.get(todo.pop(), ()):
            if pid not in out:
                out.add(pid)
                todo.append(pid)
    return out


def _may_have_children(pid: int) -> bool:
    """False when it surely has none just now; the kernel's list may miss some, but not all."""
    try:
        for thread in os.listdir("/proc/%d/task" % pid):
            fd = os.open("/proc/%d/task/%s/children" % (pid, thread), os.O_RDONLY | os.O_CLOEXEC)
            try:
                if os.read(fd, 16):
                    return True
            finally:
                os.close(fd)
    except OSError:
        return True  # a thread has just gone, or this kernel keeps no such list
    return False


class Membership:
    """The signs by which an attempt's processes are known.

    born_after: the tick at which its launcher started. What is older is not looked at, which saves
    most of the cost; it could only be a daemon that a job has handed its lease to. None: all are.
    """

    def __init__(
        self,
        mark: str,
        limit: Optional[int],
        leases: Iterable[str],
        spared: Iterable[int],
        born_after: Optional[int] = None,
    ) -> None:
        self._mark = ("%s=%s" % (MARK, mark)).encode()
        self._limit = limit
        self._token = mark.encode()
        self._paths = list(leases)
        self._leases = {_file_id(path) for path in self._paths} - {None}
        self._spared = set(spared)
        self._born_after = born_after

    def find(self, roots: Iterable[int] = ()) -> Set[int]:
        """Every living process of the attempt; `roots` are ancestors known by other means."""
        pids = [pid for pid in _user_pids() if pid not in self._spared]
        if self._born_after is not None:
            pids = [pid for pid in pids if (read_stat(pid) or (0, 0))[1] >= self._born_after]
        found = {pid for pid in pids if self._has_limit(pid) or self._has_mark(pid)}
        held = {pid for pid in pids if pid not in found and self._has_lease(pid)}
        if held and self._is_ours():
            found |= held
        found |= descendants(list(roots) + sorted(found))
        return living(found - self._spared)

    def _has_limit(self, pid: int) -> bool:
        if self._limit is None:
            return False
        try:
            # a tenth of what the text costs; only for processes of this very user
            return self._limit in resource.prlimit(pid, resource.RLIMIT_RTTIME)
        except ProcessLookupError:
            return False
        except OSError:
            return self._has_limit_in_text(pid)

    def _has_limit_in_text(self, pid: int) -> bool:
        _, _, rest = _read("/proc/%d/limits" % pid).partition(b"Max realtime timeout")
        return str(self._limit).encode() in rest.partition(b"\n")[0].split()

    def _has_mark(self, pid: int) -> bool:
        environ = _read("/proc/%d/environ" % pid)
        return self._mark in environ and self._mark in environ.split(b"\0")

    def _has_lease(self, pid: int) -> bool:
        """Whether it holds a shared lock on a lease; who only asks for one opens the file too."""
        if not self._leases:
            return False
        try:
            folder = os.open("/proc/%d/fd" % pid, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return any(_holds_shared_lock(pid, fd) for fd in self._lease_fds(folder))
        finally:
            os.close(folder)

    def _lease_fds(self, folder: int) -> List[str]:
        """Of a process's descriptors those that are leases, by their ids: names may differ."""
        out = []
        try:
            for name in os.listdir(folder):
                try:
                    found = os.stat(name, dir_fd=folder)
                except OSError:
                    continue
                if (found.st_dev, found.st_ino) in self._leases:
                    out.append(name)
        except OSError:
            pass
        return out

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

    What is started after that began gets no TERM: a job may save with the help of other programs.

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
    newest: Optional[int] = None
    while True:
        alone = all_reaped()
        current = find()
        calm = calm + 1 if alone and not current else 0
        if calm >= looks:
            return result
        now = time.monotonic()
        if newest is None:
            newest = max([_ticks(), *(born for born in map(_born, current) if born is not None)])
        if now - began < grace_s():
            for pid in current - result.asked:
                result.asked.add(pid)
                if ask(pid) and (_born(pid) or 0) <= newest:
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


def _born(pid: int) -> Optional[int]:
    """When a process was started, in ticks since boot; None once it is gone."""
    found = read_stat(pid)
    return None if found is None else found[1]


def _ticks() -> int:
    """Now, in the same; a moment early where a container has an uptime of its own."""
    text = _read("/proc/uptime").split()
    return int(float(text[0]) * os.sysconf("SC_CLK_TCK")) if text else 0


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
    """What is in a file; nothing when it cannot be read. Unbuffered: thousands are read at once."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        text = block = os.read(fd, _BLOCK)
        while block:
            block = os.read(fd, _BLOCK)
            text += block
        return text
    except OSError:
        return b""
    finally:
        os.close(fd)


def _file_id(path: str) -> Optional[Tuple[int, int]]:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
