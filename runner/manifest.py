"""What to send or fetch, from two listings: pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner import wire
from runner.errors import SpecError
from runner.fields import did_you_mean, said

KINDS = ("checkpoints", "logs", "work")
APPEND_ONLY = "logs"
PARTS_OF_RUNS = (*KINDS, "best", "last", "events")
"""What `--what` can name: kinds, the best and the newest checkpoint, TensorBoard's event files."""


@dataclass(frozen=True)
class LeftOut:
    """What did not travel: a file, or a folder (with `/`) for all below it."""

    path: str
    rule: str
    """`FILE:LINE: PATTERN`, or who else says so."""


@dataclass(frozen=True)
class Snapshot:
    """A code tree as it was read: rows as `wire` describes them, and where each content lies."""

    rows: tuple[tuple[Any, ...], ...]
    digest: str
    code: Mapping[str, Any]
    """{"files", "bytes"}, in git also {"commit", "branch", "edited", "untracked", "diff_bytes"}.

    edited: files that differ from the commit, of which `untracked` are new. diff_bytes: the size of
    `diff`, also where that is too large to keep; None where git did not make one in time.
    """
    skipped: tuple[str, ...] = ()
    """How much was left out, by rule file: `3 by .gitignore`."""
    left_out: tuple[LeftOut, ...] = ()
    """Each of it, by path; only where it was asked for."""
    warnings: tuple[str, ...] = ()
    """What the operator should know of how it was read, a line each."""
    diff: bytes | None = None
    """What `git diff` says of the files that travel; of a deleted one only that it is gone."""

    @property
    def paths(self) -> dict[str, str]:
        """Digest to one path that has this content."""
        return {row[4]: row[0] for row in self.rows if row[1] == "f"}


@dataclass(frozen=True)
class RemoteFile:
    """An artifact as its worker lists it."""

    kind: str
    path: str
    size: int
    mtime_ns: int
    executable: bool = False
    room: int | None = None
    """Bytes it takes on the disk there: fewer than its size when it has holes."""

    @property
    def name(self) -> str:
        """Its path below the run's results folder."""
        return f"{self.kind}/{self.path}"

    @property
    def group(self) -> str:
        """What is put into place at once: a checkpoint with all its files, else the file alone."""
        return group_of(self.name)


Ranges = tuple[tuple[int, int], ...]
"""Stretches of a file, (from, to) each, in order, none touching the next."""


@dataclass(frozen=True)
class Known:
    """A file an earlier pull made: what it was there, and what it is here."""

    size: int
    mtime_ns: int
    """Of the remote file."""
    sha256: str
    """Empty: of what was appended to it only the end was verified."""
    local_mtime_ns: int


@dataclass(frozen=True)
class Gathered:
    """What came of a file before its pull was cut."""

    size: int
    mtime_ns: int
    """Of the remote file when it was begun."""
    ranges: Ranges
    sha256: str | None = None
    """It is whole and verified, and waits for the other files of its checkpoint."""


@dataclass(frozen=True)
class Growth:
    """A log that is appended to where it lies."""

    size: int
    local_mtime_ns: int
    summed: int = 0
    """From here on its bytes are verified, also those that are here."""


@dataclass(frozen=True)
class Fetch:
    """One file to bring, less what is here of it."""

    file: RemoteFile
    here: Ranges = ()
    """What was gathered of it."""
    growth: Growth | None = None
    replaces: LocalFile | None = None
    """What lies in its place now."""

    @property
    def missing(self) -> int:
        """How many of its bytes are to come."""
        held = self.growth.size if self.growth else sum(end - begin for begin, end in self.here)
        return self.file.size - held


@dataclass(frozen=True)
class PullPlan:
    """What a pull does."""

    fetch: tuple[Fetch, ...] = ()
    ready: tuple[Fetch, ...] = ()
    """Here and verified already; to be put into place."""
    unchanged: tuple[RemoteFile, ...] = ()
    kept: tuple[str, ...] = ()
    """Local files that no pull made, or that were edited here: left alone."""


@dataclass(frozen=True)
class LocalFile:
    """What lies at a path here now."""

    size: int
    mtime_ns: int


def group_of(name: str) -> str:
    """`checkpoints/step-10` for every file of that checkpoint, else the name."""
    kind, _, path = name.partition("/")
    return f"{kind}/{path.split('/', 1)[0]}" if kind == "checkpoints" else name


def read_listing(rows: Sequence[Any]) -> tuple[list[RemoteFile], list[str]]:
    """(files, names refused) of a worker's listing; nothing in it is trusted."""
    files, refused = [], []
    seen: set[str] = set()
    folders: set[str] = set()
    for row in rows:
        file = _read_row(row)
        if file is None:
            refused.append(repr(row)[:200])
            continue
        parents = _parents(file.name)
        if file.name in seen or file.name in folders or parents & seen:
            refused.append(file.name)
            continue
        seen.add(file.name)
        folders |= parents
        files.append(file)
    return files, refused


def parse_what(text: str) -> tuple[str, ...]:
    """The words of `--what`. Raises SpecError with the list of them."""
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in PARTS_OF_RUNS:
            raise SpecError(
                f"--what: {said(word)} is none of {', '.join(PARTS_OF_RUNS)}"
                f"{did_you_mean(word, PARTS_OF_RUNS)}"
            )
    return words


def select(
    files: Iterable[RemoteFile], what: Sequence[str], best: str | None, last: str | None
) -> list[RemoteFile]:
    """Those of the files that `what` names; without words all. best, last: names of checkpoints."""
    if not what:
        return list(files)
    groups = {f"checkpoints/{best}"} if "best" in what and best else set()
    groups |= {f"checkpoints/{last}"} if "last" in what and last else set()
    return [
        file
        for file in files
        if file.kind in what
        or file.group in groups
        or ("events" in what and "tfevents" in file.path.rsplit("/", 1)[-1])
    ]


def plan_pull(
    remote: Iterable[RemoteFile],
    known: Mapping[str, Known],
    local: Mapping[str, LocalFile],
    gathered: Mapping[str, Gathered],
    *,
    afresh: Container[str] = (),
    doubtful: Container[str] = (),
    window: int | None = None,
) -> PullPlan:
    """Decide for each file: bring it (from where?), leave it, or keep what a person put there.

    known: what earlier pulls made, by name. local: what lies here now. gathered: what is here of
    files whose last pull was cut. afresh: logs that are not what they were, so that nothing can be
    appended. doubtful: logs here that a killed pull appended to, or perhaps a person; they may be
    completed, but not replaced. window: verify of logs only what is new and so many bytes before
    it; None: whole.
    """
    fetch: list[Fetch] = []
    ready: list[Fetch] = []
    unchanged: list[RemoteFile] = []
    kept: list[str] = []
    for file in remote:
        here, was = local.get(file.name), known.get(file.name)
        if here is None:
            item = Fetch(file, _usable(file, gathered.get(file.name)))
        elif was is None or (here.size, here.mtime_ns) != (was.size, was.local_mtime_ns):
            kept.append(file.name)
            continue
        elif file.kind == APPEND_ONLY and file.name not in afresh and file.size >= was.size:
            is_same = (file.size, file.mtime_ns) == (was.size, was.mtime_ns) and was.sha256
            if is_same or (window is not None and file.size == was.size):
                unchanged.append(file)
                continue
            summed = 0 if window is None else max(0, was.size - window)
            item = Fetch(file, (), Growth(was.size, was.local_mtime_ns, summed), here)
        elif file.kind == APPEND_ONLY and file.name in doubtful:
            kept.append(file.name)
            continue
        elif file.kind != APPEND_ONLY and (file.size, file.mtime_ns) == (was.size, was.mtime_ns):
            unchanged.append(file)
            continue
        else:
            item = Fetch(file, _usable(file, gathered.get(file.name)), None, here)
        part = gathered.get(file.name)
        is_ready = part is not None and part.sha256 and _is_same(file, part) and not item.growth
        (ready if is_ready else fetch).append(item)
    return PullPlan(tuple(fetch), tuple(ready), tuple(unchanged), tuple(kept))


def is_wanted(file: RemoteFile, part: Gathered) -> bool:
    """Whether what was gathered of a file can be gone on from."""
    return _is_same(file, part) or (file.kind == APPEND_ONLY and part.size <= file.size)


def plan_mirror(
    remote: Iterable[RemoteFile], known: Mapping[str, Known], local: Mapping[str, LocalFile]
) -> list[str]:
    """Files here of checkpoints that are not there any more, unedited, manifests last.

    None when the worker lists no checkpoint at all: `keep` rules always leave one.
    """
    groups = {file.group for file in remote if file.kind == "checkpoints"}
    if not groups:
        return []
    names = [
        name
        for name, was in known.items()
        if name.startswith("checkpoints/")
        and group_of(name) not in groups
        and local.get(name) == LocalFile(was.size, was.local_mtime_ns)
    ]
    # what is left of one that is half removed is then seen to be none
    return sorted(names, key=lambda name: (name.endswith("/manifest.json"), name))


def room_needed(wanted: Iterable[Fetch]) -> int:
    """Bytes of disk that all of it takes here at least, what it replaces given back."""
    total = 0
    for item in wanted:
        room = item.file.size if item.file.room is None else min(item.file.size, item.file.room)
        total += max(0, room - (item.file.size - item.missing))
        if item.replaces is not None and item.growth is None:
            total -= item.replaces.size
    return total


def gaps(size: int, here: Ranges) -> list[tuple[int, int]]:
    """The stretches of a file that are missing."""
    found, position = [], 0
    for begin, end in here:
        if begin > position:
            found.append((position, begin))
        position = max(position, end)
    if position < size:
        found.append((position, size))
    return found


def merged(pairs: Iterable[tuple[int, int]], size: int) -> Ranges:
    """Stretches in order, those that touch as one, within a file of that size."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(pairs):
        begin, end = max(0, begin), min(end, size)
        if begin >= end:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return tuple(found)


def _is_same(file: RemoteFile, part: Gathered) -> bool:
    return (file.size, file.mtime_ns) == (part.size, part.mtime_ns)


def _usable(file: RemoteFile, part: Gathered | None) -> Ranges:
    return part.ranges if part is not None and is_wanted(file, part) else ()


def _read_row(row: Any) -> RemoteFile | None:
    if not isinstance(row, list) or len(row) != 6:
        return None
    kind, path, size, mtime_ns, executable, room = row
    good = (
        kind in KINDS
        and wire.plain_path(path)
        and all(isinstance(each, int) and wire.is_number(each) for each in (size, mtime_ns, room))
        and size >= 0
        and room >= 0
    )
    return RemoteFile(kind, path, size, mtime_ns, bool(executable), room) if good else None


def _parents(name: str) -> set[str]:
    parts = name.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}
