"""`.parts`: where files gather until they are whole, and what is known of them across pulls.

    HASH         bytes of the file whose name has this hash, at their places
    HASH.have    what of it is there: a head {"size", "mtime_ns"}, then lines FROM TO
    HASH.grows   a log that is being appended to where it lies: a head {"name"}, then lines
                 SIZE MTIME_NS of it after each write
    done         files that are whole and verified, a line each, from before they are put into
                 place: [name, size, mtime_ns, sha256, local_mtime_ns]

A line is written after the bytes it speaks of, so a pull that is killed leaves nothing that claims
too much; and the sha256 of the whole is asked of the worker before a file is put into place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Container, Iterable, Mapping
from typing import Any

from runner.manifest import Gathered, Known, RemoteFile, is_wanted, merged
from runner.transfer.places import Places

PARTS = ".parts"
"""No name a worker can send lies there."""
DONE = f"{PARTS}/done"
_HAVE, _GROWS = ".have", ".grows"
_OURS = re.compile(r"[0-9a-f]{32}(\.have|\.grows)?\Z")
_MOST = 64 << 20


def part_name(name: str) -> str:
    """Where a file's bytes gather until it is whole."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{PARTS}/{digest[:32]}"


class Record:
    """A head and lines that are added to it, each at once; closed by whoever opened it."""

    def __init__(self, places: Places, name: str, head: Mapping[str, Any] | None) -> None:
        """head: None goes on with what is there."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._fd = places.open(name, flags | (0 if head is None else os.O_TRUNC), make=True)
        if head is not None:
            self.add(json.dumps(head))

    def add(self, line: str) -> None:
        """Write a line down."""
        os.write(self._fd, line.encode("ascii") + b"\n")

    def close(self) -> None:
        """No more lines."""
        os.close(self._fd)


def open_have(places: Places, file: RemoteFile, *, anew: bool) -> Record:
    """The record of what is there of a file."""
    head = {"size": file.size, "mtime_ns": file.mtime_ns}
    return Record(places, part_name(file.name) + _HAVE, head if anew else None)


def open_grows(places: Places, name: str) -> Record:
    """The record of a log that is being appended to."""
    return Record(places, part_name(name) + _GROWS, {"name": name})


def end_growth(places: Places, name: str) -> None:
    """The log is what the book says again, or what `done` says."""
    places.unlink(part_name(name) + _GROWS)


def drop(places: Places, name: str) -> None:
    """Nothing of this file is gathered any more."""
    part = part_name(name)
    places.unlink(part + _HAVE)
    places.unlink(part)


def open_done(places: Places) -> Record:
    """The list of files that are whole and verified."""
    return Record(places, DONE, None)


def add_done(record: Record, name: str, known: Known) -> None:
    """Say that a file is whole, before it is put into place."""
    row = [name, known.size, known.mtime_ns, known.sha256, known.local_mtime_ns]
    record.add(json.dumps(row))


def read_done(places: Places) -> dict[str, Known]:
    """What a pull that was cut had finished, by name; also what it could not put into place."""
    found = {}
    for row in _lines(places.read(DONE, _MOST)):
        if (
            isinstance(row, list)
            and len(row) == 5
            and isinstance(row[0], str)
            and is_known(row[1:])
        ):
            found[row[0]] = Known(*row[1:])
    return found


def is_known(row: Any) -> bool:
    """Whether these are the values of a `Known`."""
    return (
        isinstance(row, list)
        and len(row) == 4
        and isinstance(row[2], str)
        and all(isinstance(row[i], int) for i in (0, 1, 3))
    )


def read_gathered(places: Places, files: Iterable[RemoteFile]) -> dict[str, Gathered]:
    """What is here of files whose pull was cut."""
    there = set(places.names(PARTS))
    if not there:
        return {}
    done = read_done(places)
    found = {}
    for file in files:
        part = part_name(file.name)
        if part.rpartition("/")[2] not in there:
            continue
        known, here = done.get(file.name), places.look(part)
        if here is None:
            continue
        if known is not None and (here.size, here.mtime_ns) == (known.size, known.local_mtime_ns):
            whole = ((0, known.size),) if known.size else ()
            found[file.name] = Gathered(known.size, known.mtime_ns, whole, known.sha256)
            continue
        gathered = _read_have(places.read(part + _HAVE, _MOST))
        if gathered is not None:
            found[file.name] = gathered
    return found


def read_grown(places: Places) -> dict[str, tuple[int, int]]:
    """Logs that a pull was appending to when it was killed: size and time after the last write."""
    found = {}
    for entry in places.names(PARTS):
        if not entry.endswith(_GROWS):
            continue
        head, *rows = places.read(f"{PARTS}/{entry}", _MOST).split(b"\n")
        name = _json(head)
        name = name.get("name") if isinstance(name, dict) else None
        pairs = _pairs(rows[:-1])
        if isinstance(name, str):
            found[name] = pairs[-1] if pairs else (-1, -1)
    return found


def sweep(places: Places, files: Iterable[RemoteFile]) -> None:
    """Remove what no pull can go on from, now that the worker lists these files."""
    entries = places.names(PARTS)
    if not entries:
        return
    listed = list(files)
    gathered = read_gathered(places, listed)
    names = {f.name for f in listed if f.name in gathered and is_wanted(f, gathered[f.name])}
    names |= set(read_grown(places)) & {file.name for file in listed}
    wanted = {part_name(name).rpartition("/")[2] for name in names}
    for entry in entries:
        if _OURS.match(entry) and entry.split(".")[0] not in wanted:
            places.unlink(f"{PARTS}/{entry}")


def settle(places: Places, doubtful: Container[str]) -> None:
    """Forget what the book says by now: what is in place, and logs that grew or are as they were.

    doubtful: logs of which it still says something else.
    """
    if not places.names(PARTS):
        places.remove_empty(PARTS)
        return
    for name in read_grown(places):
        if name not in doubtful:
            end_growth(places, name)
    waiting = {}
    for name, known in read_done(places).items():
        here = places.look(part_name(name))
        if here is not None and here.mtime_ns == known.local_mtime_ns:
            waiting[name] = known
    places.unlink(DONE)
    if waiting:
        with contextlib.closing(open_done(places)) as record:
            for name, known in waiting.items():
                add_done(record, name, known)
    places.remove_empty(PARTS)


def _read_have(data: bytes) -> Gathered | None:
    head, *rows = data.split(b"\n")
    facts = _json(head)
    if not isinstance(facts, dict):
        return None
    size, mtime_ns = facts.get("size"), facts.get("mtime_ns")
    if not isinstance(size, int) or not isinstance(mtime_ns, int):
        return None
    return Gathered(size, mtime_ns, merged(_pairs(rows[:-1]), size))


def _pairs(rows: Iterable[bytes]) -> list[tuple[int, int]]:
    """Lines of two numbers."""
    pairs = []
    for row in rows:
        words = row.split()
        if len(words) == 2 and all(word.isdigit() and len(word) < 20 for word in words):
            pairs.append((int(words[0]), int(words[1])))
    return pairs


def _lines(data: bytes) -> Iterable[Any]:
    return (_json(line) for line in data.split(b"\n"))


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
