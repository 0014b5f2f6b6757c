"""Where a conversation can be cut: before, within and after every frame, of either side."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from runner import wire

UP, DOWN = "up", "down"
NAMES = {
    wire.REQ: "REQ",
    wire.REP: "REP",
    wire.DATA: "DATA",
    wire.END: "END",
    wire.PING: "PING",
    wire.ERR: "ERR",
    wire.EVENT: "EVENT",
}
EDGE = 2
"""Of a long row of DATA frames so many at either end are tried,"""
DRAWN = 3
"""and so many between them."""
_HEAD = struct.Struct(">IBI")


@dataclass(frozen=True)
class Cut:
    """A place in the bytes of one direction."""

    way: str
    at: int
    where: str
    """In words: `before REQ submit`, `in DATA 2`, `after END`."""

    @property
    def id(self) -> str:
        """For the name of a test's case."""
        return f"{self.way} {self.at} {self.where}"


@dataclass(frozen=True)
class _Span:
    begin: int
    end: int
    name: str


def cuts(up: bytes, down: bytes, seed: int) -> list[Cut]:
    """Every place worth a try in a conversation that was noted whole."""
    found = [Cut(DOWN, 0, "before all"), Cut(DOWN, len(wire.MAGIC) // 2, "in the magic line")]
    for way, data, start in ((UP, up, 0), (DOWN, down, len(wire.MAGIC))):
        spans = _thinned(list(_spans(data, start)), random.Random(f"{seed} {way}"))
        for span in spans:
            found.append(Cut(way, span.begin, f"before {span.name}"))
            found.append(Cut(way, (span.begin + span.end) // 2, f"in {span.name}"))
        if spans:
            found.append(Cut(way, spans[-1].end, f"after {spans[-1].name}"))
    return found


def _spans(data: bytes, start: int) -> Iterator[_Span]:
    """Where each frame lies; pings, which come when they come, are no places."""
    verbs: dict[int, str] = {}
    while start + _HEAD.size <= len(data):
        size, kind, stream = _HEAD.unpack_from(data, start)
        end = start + _HEAD.size + size
        name = NAMES[kind]
        if kind == wire.REQ:
            verbs[stream] = str(wire.read_json(data[start + _HEAD.size : end])["verb"])
            name = f"REQ {verbs[stream]}"
        if kind != wire.PING:
            yield _Span(start, end, name)
        start = end


def _thinned(spans: list[_Span], draw: random.Random) -> list[_Span]:
    """The same, of long rows of DATA only the ends and a few between."""
    kept: list[_Span] = []
    row: list[_Span] = []
    for span in [*spans, None]:
        if span is not None and span.name == "DATA":
            row.append(span)
            continue
        between = row[EDGE:-EDGE]
        chosen = draw.sample(between, min(DRAWN, len(between)))
        kept += [each for each in row if each not in between or each in chosen]
        row = []
        if span is not None:
            kept.append(span)
    return kept
