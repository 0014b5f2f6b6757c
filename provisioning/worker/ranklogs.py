"""The ranks' log files: whether each is still the file that its rank writes, and its limit.

A job may delete, move, replace or shorten its log. What lies in the log's place is only taken for
the log when it is the very file (device and inode) that was there when the ranks were started, or
that the rank has open as its output now; nothing else is ever cut.
"""

from __future__ import annotations

import os
import stat
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import logcap
import processes
from paths import RunPaths

Identity = Tuple[int, int]
_OUTPUT = (1, 2)
_KIND = "log-limit"


class Logs:
    """The logs of one attempt while it runs."""

    def __init__(
        self,
        paths: RunPaths,
        nproc: int,
        limit_bytes: Optional[int],
        note: Callable[..., None],
        ranks: Callable[[], Dict[int, int]] = dict,
    ) -> None:
        """ranks: the living ranks' processes. note: writes an event."""
        self._paths = [paths.log(rank) for rank in range(nproc)]
        self._limit_bytes = limit_bytes
        self._note = note
        self._ranks = ranks
        self._own: List[Optional[Identity]] = [None] * nproc
        self._sizes = [0] * nproc
        self._gone: Dict[int, str] = {}
        self._short: Dict[int, str] = {}
        self._told: Set[Tuple[str, int]] = set()

    @property
    def problem(self) -> Optional[str]:
        """What became of the logs, in words; None while all is well."""
        found = {**self._short, **self._gone}
        if not found:
            return None
        more = len(found) - 1
        return found[min(found)] + (" (and %d more like it)" % more if more else "")

    @property
    def own(self) -> List[Optional[Identity]]:
        """(device, inode) of each rank's own log."""
        return self._own

    def begin(self) -> None:
        """Before the ranks are started: what lies there now is theirs."""
        for rank, path in enumerate(self._paths):
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(path, flags | os.O_NONBLOCK, 0o644))
            except OSError:
                continue  # the rank will meet the same
            here = _plain(path)
            if here is not None:
                self._own[rank], self._sizes[rank] = _identity(here), here.st_size

    def look(self) -> bool:
        """Bring them below the limit; whether `problem` is another one now."""
        before = self.problem
        for rank in range(len(self._paths)):
            self._look(rank)
            if self._limit_bytes:
                self._cut(rank, int(self._limit_bytes))
        return self.problem != before

    # -- parts --------------------------------------------------------------------------------

    def _look(self, rank: int) -> None:
        name = os.path.basename(self._paths[rank])
        here = _plain(self._paths[rank])
        own = self._own[rank]
        if here is not None and own != _identity(here) and _identity(here) in self._open_by(rank):
            # the job moved it away, and writes into a new one of that name
            self._own[rank] = _identity(here)
            if own is not None:
                self._short[rank] = (
                    "%s was begun anew while it ran; what was in it before is not there" % name
                )
                self._tell("log-anew", rank)
            own, self._sizes[rank] = self._own[rank], here.st_size
        if here is None or own != _identity(here):
            if own is not None:
                self._gone[rank] = (
                    "%s was deleted or replaced while it ran; what is printed since is lost" % name
                )
                self._tell("log-gone", rank)
            return
        self._gone.pop(rank, None)  # it may have been moved back
        if here.st_size < self._sizes[rank]:
            self._short[rank] = (
                "%s was cut short while it ran, from %d to %d bytes; what was in it is lost"
                % (name, self._sizes[rank], here.st_size)
            )
            self._tell("log-short", rank)
        self._sizes[rank] = here.st_size

    def _open_by(self, rank: int) -> List[Identity]:
        """The plain files that a rank's output goes to; none where nobody can say."""
        return [found for _, found in _outputs(self._ranks().get(rank))]

    def _cut(self, rank: int, limit_bytes: int) -> None:
        if self._own[rank] is None:
            return
        here = None if rank in self._gone else _plain(self._paths[rank])
        if here is not None and here.st_blocks * 512 <= limit_bytes:
            return
        fd: Optional[int] = None
        try:
            fd = self._open_own(rank)
            if fd is None:
                what = "its log cannot be reached" if here is None else "its output goes elsewhere"
                self._tell(_KIND, rank, "rank %d: %s; log_limit is not kept" % (rank, what))
                return
            if os.fstat(fd).st_nlink > 1:
                text = "rank %d: its log has another name, too; log_limit is not kept" % rank
                self._tell(_KIND, rank, text)
                return
            gone = logcap.cut(fd, limit_bytes)
        except logcap.NoHoles:
            self._note(_KIND, text="this file system cannot cut logs; log_limit is not kept")
            self._limit_bytes = None
            return
        except OSError as error:
            self._tell(_KIND, rank, "rank %d: %s; log_limit is not kept" % (rank, error))
            return
        finally:
            if fd is not None:
                os.close(fd)
        if gone is not None:
            self._note("log-cut", rank=rank, start=gone[0], end=gone[1])

    def _open_own(self, rank: int) -> Optional[int]:
        """The rank's own log: what it writes into, or once it has ended what lies in its place.

        None when neither is the file that is known to be its log.
        """
        own, pid = self._own[rank], self._ranks().get(rank)
        places = [place for place, found in _outputs(pid) if found == own]
        flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC  # not for appending: see logcap
        if not places and pid is None and rank not in self._gone:
            places, flags = [self._paths[rank]], flags | os.O_NOFOLLOW
        for place in places:
            fd = os.open(place, flags)
            if _identity(os.fstat(fd)) == own:
                return fd
            os.close(fd)
        return None

    def _tell(self, event: str, rank: int, text: Optional[str] = None) -> None:
        """Note it, once."""
        if (event, rank) not in self._told:
            self._told.add((event, rank))
            more: Dict[str, Any] = {"rank": rank} if text is None else {"text": text}
            self._note(event, **more)


def set_aside(paths: RunPaths, nproc: int) -> List[str]:
    """Move away what lies in a log's place and is no plain file; a line for each.

    An earlier attempt put it there: a rank would write through a link, or wait at a pipe for ever.
    """
    said = []
    for rank in range(nproc):
        path = paths.log(rank)
        if not os.path.lexists(path) or _plain(path) is not None:
            continue
        number = 1
        while os.path.lexists("%s.aside-%d" % (path, number)):
            number += 1
        os.rename(path, "%s.aside-%d" % (path, number))
        name = os.path.basename(path)
        said.append("%s was no plain file; set aside as %s.aside-%d" % (name, name, number))
    return said


def children_by_rank(front: int) -> Dict[int, int]:
    """The ranks that torchrun's agent has started: rank to process."""
    found = {}
    for pid in processes.descendants([front]):
        seen = processes.read_stat(pid)
        if seen is None or seen[0] != front:
            continue
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        for word in words:
            if word.startswith(b"RANK=") and word[5:].isdigit():
                found[int(word[5:])] = pid
    return found


def _outputs(pid: Optional[int]) -> List[Tuple[str, Identity]]:
    """(place, identity) of the plain files that a process has open as its output."""
    found: List[Tuple[str, Identity]] = []
    if pid is None:
        return found
    for number in _OUTPUT:
        place = "/proc/%d/fd/%d" % (pid, number)
        try:
            seen = os.stat(place)
        except OSError:
            continue
        if stat.S_ISREG(seen.st_mode):
            found.append((place, _identity(seen)))
    return found


def _plain(path: str) -> Optional[os.stat_result]:
    """The plain file in a place; None for anything else."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino
