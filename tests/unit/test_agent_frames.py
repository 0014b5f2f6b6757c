"""Replay memory of pictures: stacks as they were seen, out of frames kept once."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")
pytest.importorskip("gymnasium", reason="left out: gymnasium: not installed")

import tests.helpers.agents  # noqa: E402, F401  puts agents/ on the path

# isort: split
import frames  # noqa: E402
from options import Refused  # noqa: E402
from runtime import Fault  # noqa: E402

CPU = torch.device("cpu")
SIDE = 2


def memory(capacity: int, *, envs: int = 1, n_step: int = 1, gamma: float = 0.5) -> Any:
    return frames.Frames(
        capacity, (4, SIDE, SIDE), stacked=True, envs=envs, n_step=n_step, gamma=gamma
    )


class Player:
    """Environments that show a number of their own at each frame, and all their transitions.

    Episodes have 1 to 9 steps; they end for real or by a time limit.
    """

    def __init__(self, kept: Any, envs: int) -> None:
        self.kept, self.rng, self.shown = kept, np.random.default_rng(0), 0
        self.stacks: list[Any] = [None] * envs
        self.left = [0] * envs
        self.open: list[list[Any]] = [[] for _ in range(envs)]
        self.known: dict[tuple[int, ...], Any] = {}  # (stack, action) to the rest
        for i in range(envs):
            self._begin(i)

    def _frame(self) -> Any:
        self.shown += 1
        return np.frombuffer(np.array([self.shown], "<u4").tobytes(), np.uint8).reshape(SIDE, SIDE)

    def _begin(self, i: int) -> None:
        first = self._frame()
        self.stacks[i], self.left[i] = deque([first] * 4, maxlen=4), int(self.rng.integers(1, 10))

    def step_all(self) -> None:
        for i, stack in enumerate(self.stacks):
            action = int(self.rng.integers(1000))
            self.kept.begin(i, np.stack(stack), action)
            seen, reward = numbers(np.stack(stack)), float(self.rng.integers(100))
            stack.append(self._frame())
            self.left[i] -= 1
            terminated = self.left[i] == 0 and self.rng.random() < 0.5
            truncated = self.left[i] == 0 and not terminated
            self.kept.end(i, np.stack(stack), reward, terminated, truncated)
            self._expect(i, seen, action, reward, terminated, truncated)
            if not self.left[i]:
                self._begin(i)

    def _expect(
        self, i: int, seen: Any, action: int, reward: float, terminated: bool, truncated: bool
    ) -> None:
        gamma = self.kept.gamma
        for window in self.open[i]:
            window[2] += gamma ** window[3] * reward
            window[3] += 1
        self.open[i].append([seen, action, reward, 1])
        while self.open[i] and (terminated or truncated or self.open[i][0][3] == self.kept.n_step):
            before, chosen, total, steps = self.open[i].pop(0)
            discount = 0.0 if terminated else gamma**steps
            after = numbers(np.stack(self.stacks[i]))
            self.known[(*before, chosen)] = (after, total, discount)


def numbers(stack: Any) -> tuple[int, ...]:
    return tuple(np.ascontiguousarray(stack).reshape(4, 4).view("<u4").ravel().tolist())


def transitions(batch: Any) -> list[tuple[Any, ...]]:
    return [
        (numbers(s), numbers(a), int(c), float(r), float(d))
        for s, a, c, r, d in zip(
            batch.seen[0].numpy(), batch.after[0].numpy(), batch.choice[0],
            batch.reward[0], batch.discount[0], strict=True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize(("envs", "n_step", "capacity"), [(1, 1, 60), (3, 1, 97), (3, 3, 97)])
def test_what_is_drawn_was_seen_so_wherever_the_ring_stands(
    envs: int, n_step: int, capacity: int
) -> None:
    kept = memory(capacity, envs=envs, n_step=n_step)
    player, rng, drawn = Player(kept, envs), np.random.default_rng(1), set()
    for tick in range(200):
        player.step_all()
        if tick > 10 and tick % 7 == 0:
            for seen, after, action, reward, discount in transitions(
                kept.sample(rng, (1, 60), CPU)
            ):
                drawn.add(seen)
                assert player.known[(*seen, action)] == (after, reward, discount)
    assert kept.ring.count > 3 * capacity and len(drawn) > 150  # it went round, all of it drawn


def test_every_whole_transition_is_drawn_equally_often() -> None:
    kept = memory(40)
    player = Player(kept, 1)
    for _ in range(100):
        player.step_all()
    rows = np.arange(kept.ring.oldest, kept.ring.count)
    whole = int(kept.is_whole(rows).sum())
    assert 25 <= whole < 40
    drawn = transitions(kept.sample(np.random.default_rng(0), (1, 200 * whole), CPU))
    counts = np.unique([d[0][-1] for d in drawn], return_counts=True)[1]
    assert len(counts) == whole and counts.min() > 140 and counts.max() < 260


def test_first_stack_of_an_episode_is_its_first_frame_four_times() -> None:
    kept = memory(100)
    for episode in range(5):
        stack = deque([np.full((SIDE, SIDE), 10 * episode, np.uint8)] * 4, maxlen=4)
        for t in range(1, 4):
            kept.begin(0, np.stack(stack), 0)
            stack.append(np.full((SIDE, SIDE), 10 * episode + t, np.uint8))
            kept.end(0, np.stack(stack), 0.0, t == 3 and episode % 2 == 0, t == 3)
    assert kept.ring.count == 5 * 4  # each frame once
    batch = kept.sample(np.random.default_rng(0), (1, 300), CPU)
    seen, after = batch.seen[0, :, :, 0, 0], batch.after[0, :, :, 0, 0]
    assert {tuple(s) for s in (seen % 10).tolist()} == {(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 2)}
    assert (seen // 10 == seen[:, :1] // 10).all() and (after // 10 == seen // 10).all()
    ended = (after[:, -1] % 10 == 3) & (after[:, -1] // 10 % 2 == 0)
    assert ended.any() and torch.equal(batch.discount[0] == 0, ended)


def test_target_of_three_steps_is_known() -> None:
    kept = memory(60, n_step=3)
    stack = np.zeros((4, SIDE, SIDE), np.uint8)
    for reward in (1.0, 2.0, 4.0):
        kept.begin(0, stack, 7)
        kept.end(0, stack, reward, False, False)
    batch = kept.sample(np.random.default_rng(0), (1, 1), CPU)
    assert (batch.reward + batch.discount * 8.0).tolist() == [[4.0]]
    assert batch.choice.tolist() == [[[7]]]


@pytest.mark.parametrize("rounds", [20, 150])
def test_a_loaded_memory_goes_on_as_the_one_it_was_kept_from(tmp_path: Path, rounds: int) -> None:
    one = memory(97, envs=3, n_step=3)
    player = Player(one, 3)
    for _ in range(rounds):
        player.step_all()
    (tmp_path / "a").mkdir()
    files = one.ring.save(tmp_path / "a")
    other = memory(97, envs=3, n_step=3)
    other.ring.load(tmp_path / "a", files, one.ring.count)
    other.load_open(one.save_open())
    kept = one.sample(np.random.default_rng(2), (1, 50), CPU)
    again = other.sample(np.random.default_rng(2), (1, 50), CPU)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))
    # what comes after joins on to what was open
    for each in (one, other):
        each.begin(0, np.stack(player.stacks[0]), 5)
        each.end(0, np.full((4, SIDE, SIDE), 9, np.uint8), 3.0, False, False)
    assert (one.ring.rows == other.ring.rows).all() and (one._on == other._on).all()


def test_episodes_begun_anew_join_nothing_that_was_left_open(tmp_path: Path) -> None:
    one = memory(60)
    for value in (1, 2):
        one.begin(0, np.full((4, SIDE, SIDE), value, np.uint8), 0)
        one.end(0, np.full((4, SIDE, SIDE), value + 1, np.uint8), 0.0, False, False)
    one.load_open(b"")
    one.begin(0, np.full((4, SIDE, SIDE), 50, np.uint8), 0)
    one.end(0, np.full((4, SIDE, SIDE), 51, np.uint8), 0.0, False, False)
    batch = one.sample(np.random.default_rng(0), (1, 50), CPU)
    shown = [stacks[0, :, -1, 0, 0].tolist() for stacks in (batch.seen, batch.after)]
    pairs = set(zip(*shown, strict=True))
    assert pairs == {(1, 2), (2, 3), (50, 51)}


def test_a_picture_that_is_no_stack_is_kept_whole() -> None:
    kept = frames.Frames(20, (3, 5, 7), stacked=False, envs=1, n_step=1, gamma=0.5)
    first, second = (np.full((3, 5, 7), n, np.uint8) for n in (1, 2))
    kept.begin(0, first, 1)
    kept.end(0, second, 1.0, True, False)
    batch = kept.sample(np.random.default_rng(0), (2, 3), CPU)
    assert batch.seen.shape == (2, 3, 3, 5, 7) and (batch.seen == 1).all()
    assert (batch.after == 2).all() and (batch.discount == 0).all()


def test_a_reward_that_is_no_number_is_found() -> None:
    kept = memory(20)
    stack = np.zeros((4, SIDE, SIDE), np.uint8)
    for reward in (1.0, float("nan"), 2.0):
        kept.begin(0, stack, 0)
        kept.end(0, stack, reward, False, False)
    assert kept.first_bad(0) == 2 and kept.first_bad(3) is None


def test_drawing_where_nothing_is_whole_is_a_fault_and_no_endless_loop() -> None:
    kept, stack = memory(20, n_step=3), np.zeros((4, SIDE, SIDE), np.uint8)
    for steps in range(3):  # none at all, then windows that are open
        with pytest.raises(Fault, match="holds no whole transition"):
            kept.sample(np.random.default_rng(0), (1, 5), CPU)
        kept.begin(0, stack, 0)
        kept.end(0, stack, float(steps), False, False)
    assert kept.sample(np.random.default_rng(0), (1, 5), CPU).reward.shape == (1, 5)


def test_too_small_a_memory_is_refused() -> None:
    with pytest.raises(Refused, match="gives 9 frames a rank; it must be 10 or more"):
        memory(9)


MEASURED = """
import sys
sys.path.insert(0, "agents")
import frames, numpy as np
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
one = frames.Frames(10_001, (4, 84, 84), stacked=True, envs=1, n_step=1, gamma=0.99)
stack = np.random.default_rng(0).integers(256, size=(4, 84, 84)).astype(np.uint8)
before = resident()
for _ in range(10_000):
    one.begin(0, stack, 1)
    one.end(0, stack, 1.0, False, False)
print(resident() - before, one.bytes_per_frame, one.ring.size_bytes)
"""


def test_memory_grows_by_what_is_documented() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURED], timeout=60, check=True,
                          cwd=Path(frames.__file__).parents[1],
                          capture_output=True, text=True)  # fmt: skip
    grown, documented, said = (int(word) for word in done.stdout.split())
    assert documented == 7072 and "7,072 in memory" in (frames.__doc__ or "")
    assert said == 10_001 * documented
    assert 0.9 * 10_000 * documented < grown < 1.1 * 10_000 * documented


def test_a_checkpoint_costs_no_more_when_the_memory_is_larger(tmp_path: Path) -> None:
    """Bytes written, which are the cost: the rest is links."""
    written = {}
    for size in (3_000, 9_000):
        one = frames.Frames(size, (4, 84, 84), stacked=True, envs=1, n_step=1, gamma=0.99)
        one.ring.rows["frame"] = np.random.default_rng(0).integers(256, size=84)
        one.ring.count = size
        for name in ("a", "b"):
            folder = tmp_path / f"{size}{name}"
            folder.mkdir()
            if name == "b":
                one.ring.count += 100
            files = one.ring.save(folder)
            one.ring.kept_in(folder, files)
        new = [f for f in files if (folder / f).stat().st_nlink == 1]
        written[size] = sum(files[f].bytes for f in new)
        assert len(files) > 3
        assert written[size] <= 3 * one.ring.segment * 7068
    assert max(written.values()) < 12_000_000
