"""The event files of a run: where they are, and reading on in one where the last look ended.

Everything here was written by the job, so all has a bound: folders and files looked at, tags,
points, the size of a record. Links are not followed.
"""

from __future__ import annotations

import os
import stat
import time
from typing import AbstractSet, Any, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

import plain
import tfevents
from paths import RunPaths
from series import Series, unpack

LIKELY = ("runs", "logs", "lightning_logs", "tensorboard", "tb_logs", "outputs", "results")
"""Looked into first, beside the job's code."""
UNLIKELY = ("__pycache__", "wandb", "node_modules", "checkpoints", "videos")
MOST_ENTRIES = 4000
"""Names looked at below each of the two folders; what lies behind is not found."""
DEEPEST = 6
MOST_FILES = 64
"""The newest ones."""
MOST_STARTS = 64
CHUNK_BYTES = 256 << 10
_MOST_WALL = 1e11
_DAMAGED = "damaged at byte %d, and not read behind it"


def find(paths: RunPaths) -> Dict[str, str]:
    """{name: path} of the run's event files; names begin with `logs/` or `work/`, as pulled.

    What came with the code is read-only, and not the run's.
    """
    found: List[Tuple[int, str, str]] = []
    for kind, top in (("logs", paths.logs), ("work", paths.code)):
        for name, seen in _walk(top):
            if stat.S_ISREG(seen.st_mode) and (kind == "logs" or seen.st_mode & stat.S_IWUSR):
                path = os.path.join(top, name)
                found.append((seen.st_mtime_ns, "%s/%s" % (kind, name), path))
    return {name: path for _, name, path in sorted(found)[-MOST_FILES:]}


def _walk(top: str) -> Iterable[Tuple[str, os.stat_result]]:
    """(path below `top`, lstat) of what is named like an event file, nearest folders first."""
    todo = [""] if plain.is_folder(top) else []
    left = MOST_ENTRIES
    while todo and left > 0:
        folder = todo.pop(0)
        inner = []
        try:
            with os.scandir(os.path.join(top, folder)) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        break
                    path = os.path.join(folder, entry.name) if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if not entry.name.startswith(".") and entry.name not in UNLIKELY:
                            inner.append(path)
                    elif "tfevents" in entry.name:
                        yield path, entry.stat(follow_symlinks=False)
        except OSError:
            continue  # it went
        if folder.count(os.sep) < DEEPEST - 1:
            inner.sort(key=lambda path: (path not in LIKELY, path))
            # what was likely stays so all the way down
            todo = inner + todo if folder.split(os.sep, 1)[0] in LIKELY else todo + inner


class Room(NamedTuple):
    """How much is kept of a file."""

    tags: int
    points: int
    """Of each tag, or up to twice as many."""
    wanted: AbstractSet[str] = frozenset()
    """Tags that are kept however many others there are."""


class EventFile:
    """What was read of one file so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.inode: Optional[int] = None
        self.size = 0
        self.offset = 0
        self.begun: Optional[float] = None
        """The clock at its first record, in seconds."""
        self.first: Optional[Tuple[int, float]] = None
        """Step and clock of its first scalar."""
        self.series: Dict[str, Series] = {}
        self.starts: List[Tuple[int, float]] = []
        """(step, clock) where a writer said that it begins anew."""
        self.problem: Optional[str] = None
        """Why it is not read on."""
        self.damaged = 0
        """Records that were passed over."""
        self._known: Set[str] = set()
        self._doubt: Optional[Tuple[int, int]] = None

    @property
    def folder(self) -> str:
        """Where it lies."""
        return os.path.dirname(self.name)

    @property
    def trouble(self) -> Optional[str]:
        """What is wrong with it, in words."""
        words = []
        if self.problem is not None:
            words.append(self.problem)
        elif self._doubt is not None and self._doubt[0] == self.offset:
            words.append(_DAMAGED % self.offset)
        if self.damaged:
            words.append("%d damaged records passed over" % self.damaged)
        return "; ".join(words) or None

    def read(self, path: str, deadline: float, room: Room) -> bool:
        """Read on; whether all that is whole was read.

        deadline: of the monotonic clock. A record that is not whole yet is read at another time.
        """
        try:
            fd = plain.open_file(path)
        except OSError:
            return True
        try:
            found = os.fstat(fd)
            if self.inode not in (None, found.st_ino) or found.st_size < self.offset:
                self._begin_anew()  # by the job, with another file or an emptied one
            self.inode, self.size = found.st_ino, found.st_size
            self._known |= room.wanted  # of which a tensor is taken whatever came before it
            while self.problem is None and self.offset < self.size:
                if time.monotonic() >= deadline:
                    return False
                before = self.offset
                self._take(os.pread(fd, CHUNK_BYTES, before), room)
                if self.offset == before:
                    break
        except OSError as error:
            self.problem = error.strerror or "cannot be read"
        finally:
            os.close(fd)
        return True

    def _take(self, data: bytes, room: Room) -> None:
        """Take up the whole records of these bytes, which lie at `offset`."""
        at = 0
        while len(data) - at >= tfevents.HEADER:
            length = tfevents.length_of(data[at : at + tfevents.HEADER])
            if length is None:
                self._doubt_of(self.offset + at)
                break
            begin = at + tfevents.HEADER
            end = begin + length + tfevents.FOOTER
            if self.offset + end > self.size:
                break
            if length <= tfevents.LARGEST:
                if end > len(data):
                    break
                record = data[begin : begin + length]
                self._record(record, data[begin + length : end], room)
            at = end
        self.offset += at

    def _doubt_of(self, offset: int) -> None:
        """A length that is damaged: no record can be found behind it. It may be just being
        written, so it is looked at once more after the file has grown."""
        if self._doubt is not None and self._doubt[0] == offset and self.size > self._doubt[1]:
            self.problem = _DAMAGED % offset
        elif self._doubt is None or self._doubt[0] != offset:
            self._doubt = offset, self.size

    def _record(self, data: bytes, footer: bytes, room: Room) -> None:
        try:
            event = tfevents.decode(data, self._known)
        except tfevents.NoEvent:
            self.damaged += 1
            return
        told = event.values or event.is_start or self.begun is None
        if told and not tfevents.is_whole(data, footer):
            self.damaged += 1
            return
        wall = event.wall if 0 < event.wall < _MOST_WALL else 0.0
        if self.begun is None:
            self.begun = wall
        if not plain.is_number(event.step):
            return
        if event.is_start and len(self.starts) < MOST_STARTS:
            self.starts.append((event.step, wall))
        for tag, value in event.values:
            self._add(tag, (event.step, wall, value), room)

    def _add(self, tag: str, point: Tuple[int, float, float], room: Room) -> None:
        if not plain.is_number(point[2]):
            return
        if tag not in self.series:
            if len(self.series) >= room.tags and tag not in room.wanted:
                return
            self.series[tag] = Series()
        if self.first is None:
            self.first = point[0], point[1]
        self.series[tag].add(point, room.points)

    def pack(self) -> Dict[str, Any]:
        """As JSON holds it."""
        return {
            "inode": self.inode,
            "size": self.size,
            "offset": self.offset,
            "begun": self.begun,
            "first": self.first,
            "starts": self.starts,
            "problem": self.problem,
            "damaged": self.damaged,
            "known": sorted(self._known),
            "series": {tag: series.pack() for tag, series in self.series.items()},
        }


def unpacked(name: str, body: Any) -> EventFile:
    """A file as it was packed. Raises ValueError for what none was packed as."""
    made = EventFile(name)
    try:
        made.inode, made.size, made.offset = (int(body[key]) for key in ("inode", "size", "offset"))
        made.begun = None if body["begun"] is None else float(body["begun"])
        if body["first"] is not None:
            made.first = int(body["first"][0]), float(body["first"][1])
        made.starts = [(int(step), float(wall)) for step, wall in body["starts"]][:MOST_STARTS]
        made.problem = None if body["problem"] is None else str(body["problem"])
        made.damaged = int(body["damaged"])
        made._known = {str(tag) for tag in body["known"]}
        made.series = {str(tag): unpack(series) for tag, series in body["series"].items()}
    except (TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError("no event file: %s" % error) from error
    if made.offset < 0:
        raise ValueError("no event file")
    return made
