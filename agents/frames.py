"""Replay memory of pictures: each frame is kept once, as bytes, and stacks are put together again.

A row is one frame an environment showed, with the action that led to it, what that gave, and how
many rows back the frame before it lies: 0 for the first of an episode, so that a walk back never
leaves the episode and repeats its first frame, as stacking does. Environments take turns in one
ring. A frame of 84×84 takes 7,068 bytes in checkpoints and 7,072 in memory (`bytes_per_frame`);
an episode of n steps has n + 1 of them, and that is all a transition takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from environments import Env, Facts
from numpy.typing import NDArray
from options import Refused
from replay import Batch, Replay, Windows
from runtime import Fault

GOES_ON, ENDED, CUT = range(3)  # the last two: a real end, and a time limit
Bytes = NDArray[np.uint8]
Rows = NDArray[np.int64]


class Frames:
    """Transitions over `n_step` steps of several environments, made from single frames.

    shape: of one observation; its first axis is a stack of the last frames when `stacked`, else
    the whole of it is one frame. Raises Refused: no room, or too little asked for.
    """

    def __init__(
        self, capacity: int, shape: tuple[int, ...], *, stacked: bool, envs: int, n_step: int,
        gamma: float, rank: int = 0,
    ) -> None:  # fmt: skip
        self.depth, self.frame = (shape[0], shape[1:]) if stacked else (1, shape)
        row = np.dtype(
            [("frame", "u1", self.frame), ("reward", "<f4"), ("back", "<i4"), ("action", "<i2"),
             ("end", "u1"), ("_", "u1")]
        )  # fmt: skip
        self.bytes_per_frame = row.itemsize + 4
        self.n_step, self.gamma = n_step, gamma
        # of each environment as many steps as one transition needs, were all episodes of one step
        least = 2 * envs * (self.depth + n_step)
        if capacity < least:
            raise Refused(f"buffer_size gives {capacity} frames a rank; it must be {least} or more")
        self.ring = Replay(capacity, row, rank=rank, beside=4)
        # how many rows on the next frame lies; follows from `back`, and so is in no checkpoint:
        # a row must not change once its segment is kept
        self._on = np.zeros(capacity, np.int32)
        self._newest = [-1] * envs  # row of the frame each environment shows; -1: a new episode
        self._choice = [0] * envs

    def begin(self, i: int, seen: Bytes, choice: int) -> None:
        """Environment `i` is at `seen` and will do `choice`."""
        self._choice[i] = choice
        if self._newest[i] < 0:
            self._add(i, seen, -1, 0.0, GOES_ON)

    def end(self, i: int, after: Bytes, reward: float, terminated: bool, truncated: bool) -> None:
        """What that step of environment `i` gave."""
        end = ENDED if terminated else CUT if truncated else GOES_ON
        self._add(i, after, self._choice[i], reward, end)
        if end:
            self._newest[i] = -1

    def _add(self, i: int, seen: Bytes, action: int, reward: float, end: int) -> None:
        number, before = self.ring.count, self._newest[i]
        row = self.ring.next_row()
        row["frame"] = seen[-1] if self.depth > 1 else seen.reshape(self.frame)
        row["reward"], row["action"], row["end"] = reward, action, end
        row["back"] = number - before if before >= 0 else 0
        self._on[number % self.ring.capacity] = 0
        if before >= 0:
            self._on[before % self.ring.capacity] = number - before
        self._newest[i] = number

    def sample(
        self, rng: np.random.Generator, shape: tuple[int, int], device: torch.device
    ) -> Batch:
        """Transitions drawn evenly from those that are whole: (updates, batch, depth, …) bytes.

        Raises Fault when there is none.
        """
        starts = np.empty(shape[0] * shape[1], np.int64)
        missing = np.arange(len(starts))
        none = not self.ring.count
        while len(missing) and not none:
            drawn = rng.integers(self.ring.oldest, self.ring.count, size=len(missing))
            starts[missing] = drawn
            broken = ~self.is_whole(drawn)
            missing = missing[broken]
            if broken.all():  # by chance, or for ever
                none = not self.is_whole(np.arange(self.ring.oldest, self.ring.count)).any()
        if none:
            raise Fault("no-transitions", "the replay memory holds no whole transition", step=-1)
        after, reward, discount, _ = self._window(starts)
        first = (starts + self._on[starts % self.ring.capacity]) % self.ring.capacity

        def tensor(numbers: NDArray[Any], *more: int) -> torch.Tensor:
            return torch.from_numpy(numbers).to(device).reshape(*shape, *more)

        pictures = (self.depth, *self.frame) if self.depth > 1 else self.frame
        return Batch(
            tensor(self._stacks(starts), *pictures),
            tensor(self._stacks(after), *pictures),
            tensor(self.ring.rows["action"][first].astype(np.int64), 1),
            tensor(reward),
            tensor(discount),
        )

    def is_whole(self, rows: Rows) -> NDArray[np.bool_]:
        """Whether a transition begins at each of these rows whose every frame is still kept."""
        back = self._back(rows)
        return self._window(rows)[3] & (back[:, 0] >= self.ring.oldest)

    def _window(self, starts: Rows) -> tuple[Rows, Any, Any, NDArray[np.bool_]]:
        """Row reached, sum of rewards, discount, and whether the window is whole; each (n,)."""
        capacity, rows = self.ring.capacity, self.ring.rows
        at, open_ = starts.copy(), np.ones(len(starts), bool)
        reward = np.zeros(len(starts), np.float32)
        discount = np.ones(len(starts), np.float32)
        steps = 0
        for _ in range(self.n_step):
            on = self._on[at % capacity]
            open_ &= on > 0
            at = at + np.where(open_, on, 0)
            reward += np.where(open_, discount * rows["reward"][at % capacity], 0)
            discount *= np.where(open_, np.float32(self.gamma), 1)
            steps += open_
        end = rows["end"][at % capacity]
        whole = (at > starts) & ((end != GOES_ON) | (steps == self.n_step))
        return at, reward, np.where(end == ENDED, np.float32(0), discount), whole

    def _back(self, rows: Rows) -> NDArray[np.int64]:
        """(n,) rows to the (n, depth) rows of their stacks, the oldest first.

        Numbers below the oldest row kept are not followed further.
        """
        found = np.empty((len(rows), self.depth), np.int64)
        found[:, -1] = rows
        for k in range(self.depth - 2, -1, -1):
            at = found[:, k + 1]
            kept = at >= self.ring.oldest
            found[:, k] = at - np.where(kept, self.ring.rows["back"][at % self.ring.capacity], 0)
        return found

    def _stacks(self, rows: Rows) -> Bytes:
        frames: Bytes = self.ring.rows["frame"][self._back(rows) % self.ring.capacity]
        return frames

    def first_bad(self, since: int) -> int | None:
        """Number of the first row at or after `since` whose reward is NaN or infinite."""
        return self.ring.first_bad(since, "reward")

    def save_open(self) -> bytes:
        """Where each environment is."""
        return np.array(self._newest, "<i8").tobytes()

    def load_open(self, data: bytes) -> None:
        """Go on with what `save_open` gave, once the ring is loaded; empty: with new episodes."""
        ring, envs = self.ring, len(self._newest)
        self._newest = np.frombuffer(data, "<i8").tolist() if data else [-1] * envs
        numbers = np.arange(ring.oldest, ring.count)
        back = ring.rows["back"][numbers % ring.capacity]
        before = numbers - back
        linked = (back > 0) & (before >= ring.oldest)
        self._on[:] = 0
        self._on[before[linked] % ring.capacity] = back[linked]


def memory_for(
    envs: Sequence[Env], facts: Facts, capacity: int, *, n_step: int, gamma: float, rank: int
) -> Windows | Frames:
    """Replay memory for what these environments show: pictures, or numbers. Raises Refused."""
    if not facts.image:
        return Windows(
            capacity, facts.numbers, envs=len(envs), n_step=n_step, gamma=gamma, rank=rank
        )
    stacked = isinstance(envs[0], gym.wrappers.FrameStackObservation)
    return Frames(
        capacity, facts.shape, stacked=stacked, envs=len(envs), n_step=n_step, gamma=gamma,
        rank=rank,
    )  # fmt: skip
