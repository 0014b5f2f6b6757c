"""Replay memory: one ring of float32 rows, kept in checkpoints as segments.

Rows are numbered from 0 for ever; row i lies in slot i % capacity. A segment is `SEGMENT` rows
that start at a multiple of it, and its file is named by the rows it holds,
`replay-rank0-000004096-000008192.bin` (raw float32 rows, little-endian, end excluded). A full
segment's file never changes: later checkpoints hard-link it. The segment being filled, and one
whose older rows were overwritten before any checkpoint kept it, is written anew.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import numpy as np
from checkpoint import StoredFile, write_file
from numpy.typing import NDArray
from options import Refused

SEGMENT = 4096
Floats = NDArray[np.float32]


class Replay:
    """A ring of the last `capacity` rows of `width` float32 numbers. Raises Refused: no room."""

    def __init__(self, capacity: int, width: int, *, rank: int = 0) -> None:
        self.capacity, self.width, self.rank = capacity, width, rank
        self.size_bytes = capacity * width * 4
        room = available_bytes()
        if self.size_bytes > room:
            raise Refused(
                f"replay memory for {capacity} transitions takes {self.size_bytes / 1e9:.1f} GB, "
                f"{room / 1e9:.1f} GB are free; lower buffer_size"
            )
        self.rows: Floats = np.zeros((capacity, width), np.float32)
        self.count = 0  # rows written since the start
        self._kept: dict[str, StoredFile] = {}  # whole segments lying in self._folder
        self._folder = Path()

    def check_disk(self, folder: Path) -> None:
        """Raises Refused where the disk has no room for it: each checkpoint keeps it, by links."""
        folder.mkdir(parents=True, exist_ok=True)
        found = os.statvfs(folder)
        room = found.f_bavail * found.f_frsize
        if self.size_bytes > room:
            raise Refused(
                f"checkpoints keep the replay memory, {self.size_bytes / 1e9:.1f} GB when it is "
                f"full; {room / 1e9:.1f} GB are free at {folder}; lower buffer_size"
            )

    def next_row(self) -> Floats:
        """The slot for the next row, a view to be filled; the row counts from now on."""
        slot = self.count % self.capacity
        self.count += 1
        row: Floats = self.rows[slot]
        return row

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Rows drawn evenly, with replacement, from those kept. Returns (*shape, width)."""
        return self.rows[rng.integers(min(self.count, self.capacity), size=shape)]

    def first_bad(self, since: int) -> int | None:
        """Number of the first row at or after `since` that holds NaN or infinity."""
        since = max(since, self.count - self.capacity)
        slots = np.arange(since, self.count) % self.capacity
        bad = ~np.isfinite(self.rows[slots]).all(axis=1)
        return since + int(bad.argmax()) if bad.any() else None

    def save(self, folder: Path) -> dict[str, StoredFile]:
        """Write or link the segments that hold the kept rows; what the manifest says of them."""
        files: dict[str, StoredFile] = {}
        oldest = max(0, self.count - self.capacity)
        for start in range(oldest // SEGMENT * SEGMENT, self.count, SEGMENT):
            whole = self._name(start, start + SEGMENT)
            if whole in self._kept and link(self._folder / whole, folder / whole):
                files[whole] = self._kept[whole]
                continue
            first, end = max(start, oldest), min(start + SEGMENT, self.count)
            slots = np.arange(first, end) % self.capacity
            files[self._name(first, end)] = write_file(
                folder / self._name(first, end), self.rows[slots].tobytes()
            )
        return files

    def kept_in(self, folder: Path, files: dict[str, StoredFile]) -> None:
        """Remember that `files` now lie in `folder`, from where the next save can link them."""
        self._folder = folder
        self._kept = {n: f for n, f in files.items() if f.bytes == SEGMENT * self.width * 4}

    def load(self, folder: Path, files: dict[str, StoredFile], count: int) -> None:
        """Read the rows a checkpoint keeps; count: rows written up to it. Raises Refused."""
        self.count = count
        missing = min(count, self.capacity)
        own = {n: f for n, f in files.items() if n.startswith(f"replay-rank{self.rank}-")}
        for name in own:
            first, end = (int(n) for n in re.findall(r"-(\d+)", name))
            rows = np.fromfile(folder / name, "<f4").reshape(end - first, self.width)
            live = max(first, count - self.capacity)
            self.rows[np.arange(live, end) % self.capacity] = rows[live - first :]
            missing -= end - live
        if missing:
            raise Refused(f"{folder}: {missing} transitions of the replay memory are missing")
        self.kept_in(folder, own)

    def _name(self, first: int, end: int) -> str:
        return f"replay-rank{self.rank}-{first:09d}-{end:09d}.bin"


def link(source: Path, target: Path) -> bool:
    """Hard-link, or False where it cannot be: another disk, no links there, source removed."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def available_bytes() -> int:
    """Memory this process may still take: the kernel's estimate, and its cgroup's limit."""
    room = sys.maxsize
    try:
        text = Path("/proc/meminfo").read_text()
        room = int(re.search(r"MemAvailable:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        pass
    for group in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory"):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            try:
                allowed = int(Path(group, limit).read_text())
                room = min(room, allowed - int(Path(group, usage).read_text()))
            except (OSError, ValueError):
                continue  # no such group, or "max"
    return room
