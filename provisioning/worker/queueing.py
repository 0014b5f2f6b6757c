"""Which queued run starts next: pure.

Order is by submission. Runs that lease GPUs keep their order among themselves: none overtakes one
that waits, so a big one is not starved. Runs without GPUs have a line of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Sequence

LONGEST_WAIT_S = 60.0


@dataclass(frozen=True)
class Waiting:
    """A queued run."""

    run: str
    accepted_at: float
    gpus: int
    not_before: float = 0.0


def in_order(waiting: Iterable[Waiting]) -> List[Waiting]:
    """First come, first served; the id decides between equals."""
    return sorted(waiting, key=lambda item: (item.accepted_at, item.run))


def candidates(waiting: Iterable[Waiting], now: float) -> List[Waiting]:
    """Runs whose time has come, in the order in which to try them."""
    # a clock that was set back must not hold a run for longer than any wait we give
    latest = now + LONGEST_WAIT_S
    return [item for item in in_order(waiting) if not now < item.not_before <= latest]


def position(waiting: Iterable[Waiting], run: str) -> Optional[int]:
    """Place in its own line, from 1; None for a run that does not wait."""
    rows = in_order(waiting)
    own = next((item for item in rows if item.run == run), None)
    if own is None:
        return None
    line = [item for item in rows if bool(item.gpus) == bool(own.gpus)]
    return line.index(own) + 1


def blocked_by(
    line: List[Waiting], busy: Dict[str, str], own: Waiting, strangers: Sequence[str] = ()
) -> str:
    """Why a queued run waits, in words.

    busy: lease name to the run that holds it. strangers: what to say of cards that others use.
    """
    place = line.index(own)
    if place:
        return "next after %s" % line[place - 1].run
    if not own.gpus:
        return "waits for a slot"
    holders = ["%s's" % name for name in sorted(set(busy.values()))]
    reasons = ", ".join([*holders, *strangers])
    return "waits for %s" % count(own.gpus) + (": " + reasons if reasons else "")


def count(gpus: int) -> str:
    """`1 GPU`, `2 GPUs`."""
    return "%d GPU%s" % (gpus, "" if gpus == 1 else "s")
