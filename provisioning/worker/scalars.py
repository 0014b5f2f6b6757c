"""What a run's event files say, kept beside its records so that nothing is read twice.

    scalars.json  {"step", "metrics", "t"} as last said, and what is wrong with which file
    curves.json   how far each file was read, and its points, thinned

While an attempt runs its launcher reads on and writes both; of a run that is not live who reads
much does. A job that writes progress lines says all by them: its event files are not read.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, FrozenSet, List, Optional

import eventfiles
import merging
import plain
import progress
import records
import retention
from paths import RunPaths

FORMAT = 1
LOOK_S = 0.05
"""Of each second; at some 8 MB/s of scalars alone a job hardly writes faster than that is read."""
FIND_S = 10.0
FIRST_FIND_S = 2.0
"""How often files are looked for; at first it is done more often, since none may be there yet."""
WORDS_S = 5.0
CURVES_S = 300.0
"""How often what was read is written: short, and long."""
LAST_LOOK_S = 5.0
HURRIED_LOOK_S = 0.5
MOST_POINTS = 2000
"""Of a metric; twice as many may be there."""
MOST_POINTS_IN_ALL = 130_000
LEAST_POINTS = 50
MOST_TAGS = 2048
"""Of all files; what may be shown is kept beyond them."""
WORTH_KEEPING_BYTES = 1 << 20


class Scalars:
    """A run's event files as far as they were read."""

    def __init__(self, paths: RunPaths, metric: Optional[str]) -> None:
        """metric: the job's own choice."""
        self._paths = paths
        self._wanted = _wanted(metric)
        self._where: Dict[str, str] = {}
        self._files: Dict[str, eventfiles.EventFile] = _kept(paths.curves)

    def find(self) -> None:
        """Look for files that came, or went; what a file had said that went still counts."""
        self._where = eventfiles.find(self._paths)
        for name in self._where:
            if name not in self._files:
                self._files[name] = eventfiles.EventFile(name)
        gone = [name for name in self._files if name not in self._where]
        for name in gone[: max(0, len(self._files) - eventfiles.MOST_FILES)]:
            del self._files[name]

    def read(self, limit_s: float) -> bool:
        """Read on, for that long at most; whether all was read."""
        deadline = time.monotonic() + limit_s
        whole = True
        # the newest first: what it says is shown
        for name in sorted(self._where, reverse=True):
            file, path = self._files[name], self._where[name]
            if plain.size(path) != file.offset:
                whole = file.read(path, deadline, self._room(file)) and whole
        return whole

    def _room(self, file: eventfiles.EventFile) -> eventfiles.Room:
        """How much may be kept of a file, with all that there is of others."""
        tags = sum(len(each.series) for each in self._files.values())
        points = max(LEAST_POINTS, min(MOST_POINTS, MOST_POINTS_IN_ALL // max(1, tags)))
        most = len(file.series) + max(0, MOST_TAGS - tags)
        return eventfiles.Room(most, points, self._wanted)

    @property
    def offset(self) -> int:
        """Bytes that were read, of all files."""
        return sum(file.offset for file in self._files.values())

    @property
    def size(self) -> int:
        """Bytes of all files when they were last looked at."""
        return sum(file.size for file in self._files.values())

    def last(self, metric: Optional[str]) -> Dict[str, Any]:
        """As `merging.last`, and `problems`: {name of a file: what is wrong with it}."""
        found = merging.last(merging.parts(list(self._files.values())), metric)
        return dict(found, problems=self.problems())

    def points(
        self, most: int, names: Optional[List[str]], metric: Optional[str]
    ) -> List[List[Any]]:
        """As `merging.points`."""
        return merging.points(merging.parts(list(self._files.values())), most, names, metric)

    def problems(self) -> Dict[str, str]:
        """What is wrong with which file."""
        found = {name: file.trouble for name, file in sorted(self._files.items())}
        return {name: text for name, text in found.items() if text}

    def keep(self) -> None:
        """Write what was read. Raises OSError."""
        files = {name: file.pack() for name, file in self._files.items()}
        body = {"format": FORMAT, "files": files}
        records.write(self._paths.curves, body, sync=False)


def _wanted(metric: Optional[str]) -> FrozenSet[str]:
    """Tags by which a file may say the metric that is shown: its name, and the ends of it to which
    a folder's name may be the beginning."""
    found: set[str] = set()
    for name in (*([metric] if metric else []), *retention.KNOWN_METRICS):
        parts = name.split("/")
        found.update("/".join(parts[place:]) for place in range(len(parts)))
    return frozenset(found)


def _kept(path: str) -> Dict[str, eventfiles.EventFile]:
    """What was kept; nothing where that was not written by us."""
    body = records.read(path) or {}
    files = body.get("files")
    if body.get("format") != FORMAT or not isinstance(files, dict):
        return {}
    try:
        return {str(name): eventfiles.unpacked(str(name), each) for name, each in files.items()}
    except ValueError:
        return {}


def curve(
    paths: RunPaths,
    most: int,
    names: Optional[List[str]],
    *,
    metric: Optional[str],
    is_live: bool,
    limit_s: float,
) -> List[List[Any]]:
    """[[step, metrics, t], …] by step, as `progress.points`; from event files where it said none.

    is_live: it has a launcher, which keeps what was read.
    """
    rows = progress.points(paths.progress(0), most, names)
    if rows or progress.last(paths.progress(0))["step"] is not None:
        return rows
    found = Scalars(paths, metric)
    before = found.offset
    found.find()
    found.read(limit_s)
    if not is_live and found.offset - before >= WORTH_KEEPING_BYTES:
        try:
            found.keep()
        except OSError:
            pass  # it is read again
    return found.points(most, names, metric)


class Reader:
    """Reads a live attempt's event files on, a little at each look; its launcher's."""

    def __init__(
        self,
        paths: RunPaths,
        metric: Optional[str],
        tell: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paths = paths
        self._metric = metric
        self._tell = tell
        self._now = now
        self._scalars: Optional[Scalars] = None
        self._is_off = False
        self._begun_at = 0.0
        self._found_at = self._words_at = self._curves_at = -CURVES_S
        self._words_of = self._curves_of = 0
        self._told: Dict[str, str] = {}

    @property
    def size(self) -> int:
        """Bytes of all event files: when they grow, the job moves."""
        return self._scalars.size if self._scalars is not None else 0

    def look(self, limit_s: float = LOOK_S) -> None:
        """Read what is new, and write down at times what was read."""
        if self._has_lines():
            return
        now = self._now()
        if self._scalars is None:
            self._scalars = Scalars(self._paths, self._metric)
            self._begun_at = self._curves_at = now
            self._words_of = self._curves_of = self._scalars.offset
        if now - self._found_at >= min(FIND_S, FIRST_FIND_S + (now - self._begun_at) / 10):
            self._found_at = now
            self._scalars.find()
        self._scalars.read(limit_s)
        if now - self._words_at >= WORDS_S and self._scalars.offset != self._words_of:
            self._words_at = now
            self._write_words()
        if now - self._curves_at >= CURVES_S and self._scalars.offset != self._curves_of:
            self._curves_at = now
            self._write_curves()

    def finish(self, hurried: bool) -> None:
        """The attempt has ended: read and write the rest."""
        if self._has_lines():
            return
        self._found_at = -CURVES_S
        self.look(HURRIED_LOOK_S if hurried else LAST_LOOK_S)
        assert self._scalars is not None
        if self._scalars.offset != self._words_of or self._scalars.problems() != self._told:
            self._write_words()
        if self._scalars.offset != self._curves_of:
            self._write_curves()

    def _has_lines(self) -> bool:
        path = self._paths.progress(0)
        if not self._is_off and plain.size(path):
            self._is_off = progress.last(path)["step"] is not None
        return self._is_off

    def _write_words(self) -> None:
        assert self._scalars is not None
        found = self._scalars.last(self._metric)
        for name, text in found["problems"].items():
            if name not in self._told:
                self._tell("%s: %s" % (name, text))
        self._told = found["problems"]
        try:
            records.write(self._paths.scalars, found, sync=False)
            self._words_of = self._scalars.offset
        except OSError:
            pass  # the next look may find room

    def _write_curves(self) -> None:
        assert self._scalars is not None
        try:
            self._scalars.keep()
            self._curves_of = self._scalars.offset
        except OSError:
            pass
