"""What to send or fetch, from two listings: pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner import wire

KINDS = ("checkpoints", "logs", "work")
APPEND_ONLY = "logs"


@dataclass(frozen=True)
class Snapshot:
    """A code tree as it was read: rows as `wire` describes them, and where each content lies."""

    rows: tuple[tuple[Any, ...], ...]
    digest: str
    code: Mapping[str, Any]
    """{"commit", "branch", "edited", "files", "bytes"}."""
    skipped: tuple[str, ...] = ()

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

    @property
    def name(self) -> str:
        """Its path below the run's results folder."""
        return f"{self.kind}/{self.path}"


@dataclass(frozen=True)
class Known:
    """A file an earlier pull made: what it was there, and what it is here."""

    size: int
    mtime_ns: int
    """Of the remote file."""
    sha256: str
    local_mtime_ns: int


@dataclass(frozen=True)
class Fetch:
    """One file to bring, from `offset` on; the bytes before it are here already."""

    file: RemoteFile
    offset: int = 0


@dataclass(frozen=True)
class PullPlan:
    """What a pull does."""

    fetch: tuple[Fetch, ...] = ()
    unchanged: tuple[RemoteFile, ...] = ()
    kept: tuple[str, ...] = ()
    """Local files that no pull made, or that were edited here: left alone."""
    refused: tuple[str, ...] = field(default=())
    """Names the worker sent that cannot be files below the results folder."""


@dataclass(frozen=True)
class LocalFile:
    """What lies at a path here now."""

    size: int
    mtime_ns: int


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


def plan_pull(
    remote: Iterable[RemoteFile],
    known: Mapping[str, Known],
    local: Mapping[str, LocalFile],
    parts: Mapping[str, int],
) -> PullPlan:
    """Decide for each file: bring it (from where?), leave it, or keep what a person put there.

    known: what earlier pulls made, by name. local: what lies here now. parts: bytes already here of
    files whose last pull was cut.
    """
    fetch, unchanged, kept = [], [], []
    for file in remote:
        here, was = local.get(file.name), known.get(file.name)
        if here is None:
            fetch.append(Fetch(file, min(parts.get(file.name, 0), file.size)))
        elif was is None or (here.size, here.mtime_ns) != (was.size, was.local_mtime_ns):
            kept.append(file.name)
        elif file.size == was.size and (file.kind == APPEND_ONLY or file.mtime_ns == was.mtime_ns):
            unchanged.append(file)
        else:
            grows = file.kind == APPEND_ONLY and file.size > was.size
            cut_at = min(parts.get(file.name, 0), file.size)
            fetch.append(Fetch(file, max(was.size, cut_at) if grows else 0))
    return PullPlan(tuple(fetch), tuple(unchanged), tuple(kept))


def _read_row(row: Any) -> RemoteFile | None:
    if not isinstance(row, list) or len(row) != 5:
        return None
    kind, path, size, mtime_ns, executable = row
    good = (
        kind in KINDS
        and wire.plain_path(path)
        and isinstance(size, int)
        and isinstance(mtime_ns, int)
        and size >= 0
    )
    return RemoteFile(kind, path, size, mtime_ns, bool(executable)) if good else None


def _parents(name: str) -> set[str]:
    parts = name.split("/")
    return {"/".join(parts[:count]) for count in range(1, len(parts))}
