"""What a submit sends unasked: what its worker is believed not to have.

A list of changes against the snapshot that the worker was known to hold, and a pack of the contents
that were not in that one. Whatever is believed wrongly the worker asks for: see verbs/submit.py.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from runner import wire
from runner.code import tree
from runner.manifest import Snapshot
from runner.store import KnownTree

UNASKED_BYTES = 1 << 20
"""Packed contents that are sent before they are asked for, at most."""
LARGEST_UNASKED = 4 << 20
"""Of one content, before it is packed."""
PROBE_BYTES = 64 * 1024
WORTH_IT = 0.95
"""What packs less well than to this part of its size travels as it is."""


@dataclass(frozen=True)
class Contents:
    """Where the contents of a snapshot come from, and that of its diff."""

    root: Path
    places: Mapping[str, tuple[str, int]]
    """Of each a path that has it, and its size."""
    beside: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, root: Path, snapshot: Snapshot, diff: str | None) -> Contents:
        """Those of a snapshot; `diff` names the content that its diff is, if that is to travel."""
        places = {row[4]: (row[0], row[3]) for row in snapshot.rows if row[1] == "f"}
        beside = {diff: snapshot.diff} if diff is not None and snapshot.diff is not None else {}
        return cls(root, places, beside)

    def __contains__(self, digest: object) -> bool:
        return digest in self.places or digest in self.beside

    def size(self, digest: str) -> int:
        """Its bytes before it is packed."""
        return len(self.beside[digest]) if digest in self.beside else self.places[digest][1]

    def read(self, digest: str) -> Iterator[bytes]:
        """It, in pieces. Raises SpecError when it is not what was read before."""
        if digest in self.beside:
            return iter([self.beside[digest]])
        path, size = self.places[digest]
        return tree.read_content(self.root, path, size, digest)


class Packer:
    """Makes a pack: streams of zlib behind each other, what does not shrink in ones of its own."""

    def __init__(self) -> None:
        self._level = 1
        self._zip: Any = None

    def add(self, contents: Contents, digest: str) -> Iterator[tuple[int, bytes]]:
        """(bytes of the content, what is to be sent), piece by piece; either may be nothing."""
        pieces = contents.read(digest)
        first = next(pieces, b"")
        large = contents.size(digest) >= PROBE_BYTES
        out = self._turn(0 if large and not _shrinks(first[:PROBE_BYTES]) else 1)
        out += self._zip.compress(wire.PACK_HEAD.pack(bytes.fromhex(digest), contents.size(digest)))
        yield len(first), out + self._zip.compress(first)
        for piece in pieces:
            yield len(piece), self._zip.compress(piece)

    def finish(self) -> bytes:
        """What is left to be sent; the pack may go on behind it."""
        if self._zip is None:
            return b""
        rest: bytes = self._zip.flush()
        self._zip = None
        return rest

    def _turn(self, level: int) -> bytes:
        out = b"" if self._zip is None or level == self._level else self.finish()
        if self._zip is None:
            self._level, self._zip = level, zlib.compressobj(level)
        return out


def _shrinks(data: bytes) -> bool:
    return len(zlib.compress(data, 1)) < WORTH_IT * len(data)


@dataclass(frozen=True)
class Offer:
    """What goes out with the request."""

    kind: str | None
    """Of the list: whole, changes, or None, when the worker is believed to have the snapshot."""
    base: str | None
    """What the changes are against."""
    rows: bytes
    """The list, packed."""
    pack: bytes
    packed: frozenset[str]
    """The contents in it."""
    ends: bool
    """Whether that is all that is believed to be missing."""
    changed: int | None
    """Files that differ from the snapshot believed to be there; None: there is none."""

    @property
    def frames(self) -> list[tuple[int, bytes]]:
        """The same as frames behind the request."""
        frames = [(wire.DATA, self.rows), (wire.END, b"")] if self.kind else []
        frames += [(wire.DATA, self.pack)] if self.pack else []
        return [*frames, (wire.END, b"")] if self.ends else frames


def packed_rows(rows: Any) -> bytes:
    """A list as it travels."""
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode("ascii"), 1)


def make_offer(
    snapshot: Snapshot, contents: Contents, diff: str | None, known: KnownTree | None
) -> Offer:
    """What to send to a worker that was known to hold `known`; reads what it packs.

    Raises SpecError when a content is not any more what was read before.
    """
    base = known.rows() if known is not None and known.digest != snapshot.digest else None
    kind: str | None = "whole"
    rows: Any = [list(row) for row in snapshot.rows]
    changed, there = None, set()
    if known is not None and known.digest == snapshot.digest:
        kind, rows, changed = None, [], 0
        there = {row[4] for row in snapshot.rows if row[1] == "f"}
    elif known is not None and base is not None:
        came, gone, changed = differing(snapshot, base)
        there = {row[4] for row in base.values() if row[1] == "f"}
        if len(came) + len(gone) < len(rows):
            kind, rows = "changes", [gone, came]
    if known is not None and known.diff is not None:
        there.add(known.diff)
    guess = [digest for digest in contents.places if digest not in there]
    guess.sort(key=contents.size)
    if diff is not None and diff not in there:
        guess.insert(0, diff)
    pack, packed = _pack_unasked(contents, guess)
    return Offer(
        kind,
        known.digest if known is not None and kind == "changes" else None,
        packed_rows(rows) if kind else b"",
        pack,
        frozenset(packed),
        len(packed) == len(guess),
        changed,
    )


class Difference(NamedTuple):
    """What a snapshot is, seen from another one."""

    came: list[list[Any]]
    """Rows that came or changed."""
    gone: list[str]
    files: int
    """How many of both are files."""


def differing(snapshot: Snapshot, base: Mapping[str, list[Any]]) -> Difference:
    """What leads from the rows of `base` to a snapshot."""
    rows = {row[0]: list(row) for row in snapshot.rows}
    came = [row for path, row in rows.items() if base.get(path) != row]
    gone = [path for path in base if path not in rows]
    files = sum(row[1] == "f" for row in (*came, *map(base.__getitem__, gone)))
    return Difference(came, gone, files)


def _pack_unasked(contents: Contents, guess: list[str]) -> tuple[bytes, list[str]]:
    """As many of these as may be sent unasked, packed; the smallest come first."""
    packer = Packer()
    out = bytearray()
    packed = []
    for digest in guess:
        if contents.size(digest) > LARGEST_UNASKED or len(out) >= UNASKED_BYTES:
            break
        for _, data in packer.add(contents, digest):
            out += data
        packed.append(digest)
    out += packer.finish()
    return bytes(out), packed
