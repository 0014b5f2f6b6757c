"""How what is to be fetched is cut up for the connections it comes over: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.manifest import Fetch, gaps

LARGE_BYTES = 32 << 20
"""From here on more connections than one may pay."""
FAR_S = 0.02
"""A round trip from which the window of one ssh connection (2 MiB) is what bounds it."""
MOST_LANES = 4
PIECE_BYTES = 8 << 20
"""What one connection fetches of a file at a time, at least."""
MOST_PIECES = 1000
"""Of one file, which may be a terabyte of nothing."""
MOST_FILES = 500
"""At a time."""


@dataclass
class Unit:
    """A stretch of a file that is asked for in one row, and how far it has come."""

    item: int
    """Its file's place in what is wanted."""
    summed: int
    """From here to its end the worker's sha256 is asked for; `end` for none."""
    start: int
    end: int
    prefix: str | None = None
    """The sha256 of bytes `summed` to `start` that are here, where the worker is to compare it."""
    position: int = 0
    is_over: bool = False

    def __post_init__(self) -> None:
        self.position = self.start

    @property
    def has_sum(self) -> bool:
        """Whether a sha256 comes with it."""
        return self.summed < self.end or self.start == self.end


@dataclass(frozen=True)
class Cut:
    """Everything that is asked for."""

    own: tuple[Unit, ...]
    """What must come over the first connection: logs that are appended to in place."""
    batches: tuple[tuple[Unit, ...], ...]
    """For whichever connection is free."""
    sums: tuple[Unit, ...]
    """Digests of whole files that come in several pieces."""


def lanes_for(missing_bytes: int, round_trip_s: float) -> int:
    """Over how many connections so many bytes are best fetched."""
    if missing_bytes <= LARGE_BYTES or round_trip_s < FAR_S:
        return 1
    return int(min(MOST_LANES, missing_bytes // PIECE_BYTES))


def cut(wanted: Sequence[Fetch], lanes: int) -> Cut:
    """The rows to ask for; with one lane each file in as few as there are gaps in it."""
    own: list[Unit] = []
    shared: list[Unit] = []
    sums: list[Unit] = []
    for index, item in enumerate(wanted):
        size = item.file.size
        if item.growth is not None:
            own.append(Unit(index, item.growth.summed, item.growth.size, size))
            continue
        pieces = [piece for gap in gaps(size, item.here) for piece in _pieces(*gap, lanes)] or [
            (size, size)
        ]
        if len(pieces) == 1 and pieces[0][1] == size:
            shared.append(Unit(index, 0, pieces[0][0], size))
        else:
            shared += [Unit(index, end, begin, end) for begin, end in pieces]
            sums.append(Unit(index, 0, size, size))
    return Cut(tuple(own), _batches(shared, lanes), tuple(sums))


def _pieces(begin: int, end: int, lanes: int) -> list[tuple[int, int]]:
    count = min(MOST_PIECES, max(1, (end - begin) // PIECE_BYTES)) if lanes > 1 else 1
    length = -(-(end - begin) // count)
    return [(at, min(end, at + length)) for at in range(begin, end, length)]


def _batches(units: Sequence[Unit], lanes: int) -> tuple[tuple[Unit, ...], ...]:
    if lanes == 1:
        return (tuple(units),) if units else ()
    found: list[tuple[Unit, ...]] = []
    batch: list[Unit] = []
    count = 0
    for unit in units:
        batch.append(unit)
        count += unit.end - unit.start
        if count >= PIECE_BYTES or len(batch) >= MOST_FILES:
            found.append(tuple(batch))
            batch, count = [], 0
    return (*found, tuple(batch)) if batch else tuple(found)
