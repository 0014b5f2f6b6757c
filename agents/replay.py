"""Replay memory: one ring of rows, kept in checkpoints as segments.

Rows are numbered from 0 for ever; row i lies in slot i % capacity. A segment is `SEGMENT` rows
(fewer where rows are large) that start at a multiple of it, and its file is named by the rows it
holds, `replay-rank0-000004096-000008192.bin` (raw rows, end excluded: float32 numbers, or the
fields of a numpy dtype, little-endian). A full segment's file never changes: later checkpoints
hard-link it. The segment being filled, and one whose older rows were overwritten before any
checkpoint kept it, is written anew. So a checkpoint writes what is new since the last one and no
more than a segment beside it, however large the ring is.

Of that most is on the disk before (`write_ahead`): a thread writes each segment as soon as it is
full to `replay-rank0.tmp/` beside the checkpoints, and a save waits for it and links.
"""

from __future__ import annotations

import os
import re
import shutil
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from checkpoint import StoredFile, write_file
from numpy.typing import NDArray
from options import Refused
from room import amount, available_bytes
from torch import Tensor

SEGMENT = 4096
SEGMENT_BYTES = 4_000_000  # at most, or a checkpoint rewrites too much of the one being filled
WAITING = 4  # segments that wait for the disk, at most: beyond that the training waits, too
Floats = NDArray[np.float32]


class Replay:
    """A ring of the last `capacity` rows. Raises Refused: no room.

    row: how many float32 numbers a row is, or a numpy dtype with fields. beside: bytes of memory
    that a row takes elsewhere.
    """

    def __init__(
        self, capacity: int, row: int | np.dtype[Any], *, rank: int = 0, beside: int = 0
    ) -> None:
        plain = isinstance(row, int)
        self.dtype = np.dtype((np.float32, (row,)) if plain else row)
        self.capacity, self.width, self.rank = capacity, row if plain else 1, rank
        self.size_bytes = capacity * (self.dtype.itemsize + beside)
        self.segment = max(1, min(SEGMENT, SEGMENT_BYTES // self.dtype.itemsize))
        room = available_bytes()
        if self.size_bytes > room:
            raise Refused(
                f"replay memory for {capacity} transitions takes {amount(self.size_bytes)}, "
                f"{amount(room)} are free; lower buffer_size"
            )
        self.rows: NDArray[Any] = np.zeros(capacity, self.dtype)
        self.count = 0  # rows written since the start
        self._kept: dict[str, StoredFile] = {}  # whole segments lying in self._folder
        self._folder = Path()
        self._ahead: Path | None = None
        self._written: dict[str, Future[StoredFile]] = {}  # whole segments lying there, or soon

    def write_ahead(self, checkpoints: Path) -> None:
        """From now on bring each segment to the disk once it is full, beside the checkpoints.

        Raises OSError from then on in `next_row`, too.
        """
        if self.segment > self.capacity:
            return  # none is ever whole
        folder = checkpoints / f"replay-rank{self.rank}.tmp"
        shutil.rmtree(folder, ignore_errors=True)  # an attempt's that was killed
        folder.mkdir(parents=True)
        self._ahead, self._thread = folder, ThreadPoolExecutor(1, "write-ahead")
        weakref.finalize(self, _end_ahead, self._thread, folder)

    def _write_segment(self) -> None:
        """The one that has just become full; those that no checkpoint will hold go."""
        assert self._ahead is not None
        for name in [n for n in self._written if _rows(n)[1] <= self.oldest]:
            self._written.pop(name).result()
            (self._ahead / name).unlink()
        waiting = [one for one in self._written.values() if not one.done()]
        if len(waiting) >= WAITING:
            waiting[0].result()
        start = self.count - self.segment
        name = self._name(start, self.count)
        if name in self._kept:  # a save came just when it was full
            return
        data = self.rows[np.arange(start, self.count) % self.capacity].tobytes()
        self._written[name] = self._thread.submit(write_file, self._ahead / name, data)

    def check_disk(self, folder: Path) -> None:
        """Raises Refused where the disk has no room for it: each checkpoint keeps it, by links."""
        folder.mkdir(parents=True, exist_ok=True)
        found = os.statvfs(folder)
        room = found.f_bavail * found.f_frsize
        if self.size_bytes > room:
            raise Refused(
                f"checkpoints keep the replay memory, {amount(self.size_bytes)} when it is "
                f"full; {amount(room)} are free at {folder}; lower buffer_size"
            )

    @property
    def oldest(self) -> int:
        """Number of the oldest row kept."""
        return max(0, self.count - self.capacity)

    def next_row(self) -> Any:
        """The slot for the next row, a view to be filled; the row counts from now on."""
        if self._ahead and self.count and not self.count % self.segment:
            self._write_segment()  # its last row is filled by now
        slot = self.count % self.capacity
        self.count += 1
        return self.rows[slot]

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[Any]:
        """Rows drawn evenly, with replacement, from those kept. Returns (*shape, width)."""
        return self.rows[rng.integers(min(self.count, self.capacity), size=shape)]

    def first_bad(self, since: int, field: str | None = None) -> int | None:
        """Number of the first row at or after `since` that holds NaN or infinity.

        field: where to look, in rows with fields.
        """
        since = max(since, self.oldest)
        slots = np.arange(since, self.count) % self.capacity
        numbers = (self.rows if field is None else self.rows[field])[slots]
        bad = ~np.isfinite(numbers).all(axis=tuple(range(1, numbers.ndim)))
        return since + int(bad.argmax()) if bad.any() else None

    def save(self, folder: Path) -> dict[str, StoredFile]:
        """Write or link the segments that hold the kept rows; what the manifest says of them."""
        files: dict[str, StoredFile] = {}
        oldest, size = self.oldest, self.segment
        for start in range(oldest // size * size, self.count, size):
            whole = self._name(start, start + size)
            if whole in self._kept and link(self._folder / whole, folder / whole):
                files[whole] = self._kept[whole]
                continue
            if whole in self._written:
                stored = self._written[whole].result()  # durable from here on
                assert self._ahead is not None
                if link(self._ahead / whole, folder / whole):
                    files[whole] = stored
                    continue
            first, end = max(start, oldest), min(start + size, self.count)
            slots = np.arange(first, end) % self.capacity
            files[self._name(first, end)] = write_file(
                folder / self._name(first, end), self.rows[slots].tobytes()
            )
        return files

    def kept_in(self, folder: Path, files: dict[str, StoredFile]) -> None:
        """Remember that `files` now lie in `folder`, from where the next save can link them."""
        self._folder = folder
        whole = self.segment * self.dtype.itemsize
        self._kept = {n: f for n, f in files.items() if f.bytes == whole}
        for name in [n for n in self._written if n in self._kept]:
            del self._written[name]
            (self._ahead or folder).joinpath(name).unlink(missing_ok=True)

    def load(self, folder: Path, files: dict[str, StoredFile], count: int) -> None:
        """Read the rows a checkpoint keeps; count: rows written up to it. Raises Refused."""
        self.count = count
        missing = min(count, self.capacity)
        own = {n: f for n, f in files.items() if n.startswith(f"replay-rank{self.rank}-")}
        for name in own:
            first, end = _rows(name)
            rows = np.fromfile(folder / name, self.dtype.base)
            rows = rows.reshape(end - first, *self.dtype.shape)
            live = max(first, count - self.capacity)
            self.rows[np.arange(live, end) % self.capacity] = rows[live - first :]
            missing -= end - live
        if missing:
            raise Refused(f"{folder}: {missing} transitions of the replay memory are missing")
        self.kept_in(folder, own)

    def _name(self, first: int, end: int) -> str:
        return f"replay-rank{self.rank}-{first:09d}-{end:09d}.bin"


def _rows(name: str) -> tuple[int, int]:
    """First and end of the rows that a segment's file holds, from its name."""
    first, end = re.findall(r"-(\d+)", name)
    return int(first), int(end)


def _end_ahead(thread: ThreadPoolExecutor, folder: Path) -> None:
    thread.shutdown(wait=True, cancel_futures=True)
    shutil.rmtree(folder, ignore_errors=True)


class Batch(NamedTuple):
    """Transitions to learn from, all (updates, batch, …) on one device.

    seen, after: observations left and reached. choice: int64 (…, 1). reward: the discounted sum of
    the rewards between them. discount: what the value of `after` counts, 0 after a real end.
    """

    seen: Tensor
    after: Tensor
    choice: Tensor
    reward: Tensor
    discount: Tensor


def as_batch(rows: Tensor, numbers: int) -> Batch:
    """(updates, batch, row) rows of Windows by their names. numbers: in one observation."""
    return Batch(
        rows[..., :numbers],
        rows[..., numbers : 2 * numbers],
        rows[..., -3:-2].long(),
        rows[..., -2],
        rows[..., -1],
    )


class Windows:
    """Transitions over `n_step` steps of several environments, as float32 rows of a ring.

    A row is (observation, observation reached, action, reward, discount), the last two as in
    Batch. A window that an end or a time limit cuts is shorter; none reaches beyond either, nor
    into another environment.
    """

    def __init__(
        self, capacity: int, numbers: int, *, envs: int, n_step: int, gamma: float, rank: int = 0
    ) -> None:
        self.ring = Replay(capacity, 2 * numbers + 3, rank=rank)
        self.numbers, self.n_step = numbers, n_step
        self._powers = [gamma**k for k in range(n_step + 1)]
        self._open: Floats = np.zeros((envs, n_step, 2 * numbers + 3), np.float32)
        self._counts = [0] * envs  # windows open in each environment, the oldest first

    def begin(self, i: int, seen: Floats, choice: int) -> None:
        """Environment `i` is at `seen` and will do `choice`."""
        row = self._open[i, self._counts[i]]
        row[: self.numbers] = seen
        row[-3], row[-2] = choice, 0.0
        self._counts[i] += 1

    def end(self, i: int, after: Floats, reward: float, terminated: bool, truncated: bool) -> None:
        """What that step of environment `i` gave; windows that are whole or cut become rows."""
        windows, count = self._open[i], self._counts[i]
        for k in range(count):
            windows[k, -2] += self._powers[count - 1 - k] * reward
        closed = count if terminated or truncated else count // self.n_step
        for k in range(closed):
            row = windows[k]
            row[self.numbers : 2 * self.numbers] = after
            row[-1] = 0.0 if terminated else self._powers[count - k]
            self.ring.next_row()[:] = row
        self._counts[i] = left = count - closed
        if left:
            windows[:left] = windows[closed:count]

    def sample(
        self, rng: np.random.Generator, shape: tuple[int, int], device: torch.device
    ) -> Batch:
        """Transitions drawn evenly from those kept."""
        return as_batch(torch.from_numpy(self.ring.sample(rng, shape)).to(device), self.numbers)

    def first_bad(self, since: int) -> int | None:
        """Number of the first row at or after `since` that holds NaN or infinity."""
        return self.ring.first_bad(since)

    def save_open(self) -> bytes:
        """The windows that are not whole yet."""
        return np.array(self._counts, "<i8").tobytes() + self._open.tobytes()

    def load_open(self, data: bytes) -> None:
        """Go on with what `save_open` gave, once the ring is loaded; empty: with new episodes."""
        envs = len(self._counts)
        self._counts = np.frombuffer(data, "<i8", envs).tolist() if data else [0] * envs
        if data:
            self._open.ravel()[:] = np.frombuffer(data, np.float32, offset=8 * envs)


def link(source: Path, target: Path) -> bool:
    """Hard-link, or False where it cannot be: another disk, no links there, source removed."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True
