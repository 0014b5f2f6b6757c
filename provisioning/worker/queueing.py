"""Which queued run starts next: pure.

Order is by priority, then by submission. Runs that lease GPUs keep their order among themselves:
none overtakes one that waits for cards that runs hold, so a big one is not starved by small ones;
one that waits for strangers holds up nobody. Runs without GPUs have a line of their own. A run
that waits for others to end (`after`), stands in no line until they have.
"""

from __future__ import annotations

import bisect
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

LONGEST_WAIT_S = 60.0
GPU, CPU = "gpu", "cpu"
LINES = (GPU, CPU)
Key = Tuple[int, float, str]


class Waiting:
    """A queued run. Ten thousand of them are kept, so it is small."""

    __slots__ = ("accepted_at", "after", "gpus", "not_before", "priority", "run")

    def __init__(
        self,
        run: str,
        accepted_at: float,
        gpus: int,
        not_before: float = 0.0,
        priority: int = 0,
        after: Tuple[str, ...] = (),
    ) -> None:
        self.run = run
        self.accepted_at = accepted_at
        self.gpus = gpus
        self.not_before = not_before
        self.priority = priority
        self.after = after

    @property
    def line(self) -> str:
        """Where it waits: GPU or CPU."""
        return GPU if self.gpus else CPU

    @property
    def key(self) -> Key:
        """What orders a line; the id decides between equals."""
        return -self.priority, self.accepted_at, self.run

    def is_paused(self, now: float) -> bool:
        """Whether its next try is not due."""
        # a clock that was set back must not hold a run for longer than any wait we give
        return now < self.not_before <= now + LONGEST_WAIT_S


class Queue:
    """All that waits. Nothing here costs more with ten thousand than with ten, but for moving
    pointers; `changes` counts what happened, to tell when what was written of it is old."""

    def __init__(self) -> None:
        self._items: Dict[str, Waiting] = {}
        self._lines: Dict[str, List[Key]] = {line: [] for line in LINES}
        self._held: Dict[str, Set[str]] = {}
        """Runs in no line, and what they still wait for."""
        self._waiters: Dict[str, Set[str]] = {}
        self.changes = 0

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, run: str) -> bool:
        return run in self._items

    def __getitem__(self, run: str) -> Waiting:
        return self._items[run]

    def add(self, item: Waiting, open_runs: Tuple[str, ...] = ()) -> None:
        """Let it wait, in its line or for `open_runs` to end; what was known of it is replaced."""
        self.discard(item.run)
        self._items[item.run] = item
        self.changes += 1
        if not open_runs:
            bisect.insort(self._lines[item.line], item.key)
            return
        self._held[item.run] = set(open_runs)
        for run in open_runs:
            self._waiters.setdefault(run, set()).add(item.run)

    def discard(self, run: str) -> None:
        """Forget it."""
        item = self._items.pop(run, None)
        if item is None:
            return
        self.changes += 1
        for other in self._held.pop(run, ()):
            self._waiters.get(other, set()).discard(run)
        line = self._lines[item.line]
        at = bisect.bisect_left(line, item.key)
        if at < len(line) and line[at] == item.key:
            del line[at]

    def waiters(self, run: str) -> List[str]:
        """Who waits for this run to end, in the order of their lines."""
        return sorted(self._waiters.get(run, ()), key=lambda other: self._items[other].key)

    def due(self, line: str, now: float) -> Iterator[Waiting]:
        """Runs of a line whose time has come, in the order in which to try them.

        The one that was given last may be discarded meanwhile, others not.
        """
        at, keys = 0, self._lines[line]
        while at < len(keys):
            item = self._items[keys[at][2]]
            if not item.is_paused(now):
                yield item
            if at < len(keys) and keys[at][2] == item.run:
                at += 1

    def rows(self, line: str) -> List[Tuple[str, int, float]]:
        """(run, priority, accepted_at) of a line, in order."""
        return [(run, -low, accepted_at) for low, accepted_at, run in self._lines[line]]

    def held(self) -> Dict[str, List[str]]:
        """Runs in no line, and what they wait for."""
        return {run: sorted(others) for run, others in self._held.items()}


class Place(NamedTuple):
    """Where a run stands: its place from 1, and who is before it."""

    position: int
    behind: Optional[str]


def place(rows: List[Any], run: str, priority: int, accepted_at: float) -> Place:
    """Where a run stands in a line as `Queue.rows` told it; one that is not there yet, too."""
    behind = None
    position = 1
    for other, other_priority, other_at in rows:
        if other == run:
            break
        if (-other_priority, other_at, other) > (-priority, accepted_at, run):
            break
        behind = other
        position += 1
    return Place(position, behind)


def count(gpus: int) -> str:
    """`1 GPU`, `2 GPUs`."""
    return "%d GPU%s" % (gpus, "" if gpus == 1 else "s")
