"""The output of several ranks in one: whole lines, each with its rank before it (pure)."""

from __future__ import annotations

import re

MOST_BYTES = 1 << 20
"""A line that is longer comes in pieces, each on a line of its own."""
_RETURN = re.compile(rb"\r(?!\n)")


class MergedLines:
    """Takes bytes of ranks as they come and gives lines `RANK| …`."""

    def __init__(self, *, redraws: bool = False) -> None:
        """redraws: for a terminal, where what follows a CR goes over the rank."""
        self._redraws = redraws
        self._held: dict[int, bytearray] = {}
        self._prefix: dict[int, bytes] = {}

    def feed(self, rank: int, ranks: int, data: bytes) -> bytes:
        """The lines of this rank that are whole now; ranks: how many there are."""
        self._prefix[rank] = f"{rank:>{len(str(ranks - 1))}}| ".encode()
        held = self._held.setdefault(rank, bytearray())
        end = data.rfind(b"\n") + 1
        if not end:
            held += data
            return self._release(rank) if len(held) >= MOST_BYTES else b""
        whole = bytes(held) + data[:end]
        held[:] = data[end:]
        return self._with_rank(rank, whole)

    def finish(self) -> bytes:
        """What is left: last lines without an end."""
        return b"".join(self._release(rank) for rank in sorted(self._held))

    def _release(self, rank: int) -> bytes:
        held = self._held[rank]
        if not held:
            return b""
        whole = bytes(held) + b"\n"
        held.clear()
        return self._with_rank(rank, whole)

    def _with_rank(self, rank: int, lines: bytes) -> bytes:
        prefix = self._prefix[rank]
        if self._redraws:
            lines = _RETURN.sub(lambda found: b"\r" + prefix, lines)
        return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"
