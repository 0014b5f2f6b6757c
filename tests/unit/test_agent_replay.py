"""Replay memory: a ring of rows, and segments that later checkpoints link."""

from __future__ import annotations

import errno
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="left out: torch: not installed")
np = pytest.importorskip("numpy", reason="left out: numpy: not installed")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "agents"))

import replay  # noqa: E402
from checkpoint import StoredFile, digest_file  # noqa: E402
from options import Refused  # noqa: E402


def fill(ring: replay.Replay, rows: int) -> None:
    """Rows that hold their own number twice."""
    for _ in range(rows):
        number = ring.count
        ring.next_row()[:] = number


def save(ring: replay.Replay, folder: Path) -> dict[str, StoredFile]:
    folder.mkdir()
    files = ring.save(folder)
    ring.kept_in(folder, files)
    return files


def loaded(ring: replay.Replay, folder: Path, files: dict[str, StoredFile]) -> replay.Replay:
    copy = replay.Replay(ring.capacity, ring.width)
    copy.load(folder, files, ring.count)
    return copy


@pytest.fixture(autouse=True)
def _short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "SEGMENT", 8)


def test_ring_keeps_the_newest_rows_and_draws_from_all_of_them() -> None:
    ring = replay.Replay(10, 2)
    ring.rows[:] = -1
    fill(ring, 4)
    assert set(ring.sample(np.random.default_rng(0), (500,))[:, 0]) == set(range(4))
    fill(ring, 21)
    drawn = ring.sample(np.random.default_rng(0), (50, 20))
    assert drawn.shape == (50, 20, 2) and set(drawn[..., 0].ravel()) == set(range(15, 25))


def test_drawn_rows_are_copies() -> None:
    ring = replay.Replay(10, 2)
    fill(ring, 10)
    drawn = ring.sample(np.random.default_rng(0), (5,))
    kept = drawn.copy()
    fill(ring, 10)
    assert (drawn == kept).all()


@pytest.mark.parametrize("capacity", [16, 20, 100])
def test_what_was_saved_comes_back_wherever_the_ring_stands(tmp_path: Path, capacity: int) -> None:
    ring = replay.Replay(capacity, 2)
    for number, more in enumerate([3, 5, 1, 14, 2, 40, 7]):
        fill(ring, more)
        folder = tmp_path / str(number)
        files = save(ring, folder)
        assert files == {path.name: digest_file(path) for path in folder.iterdir()}
        for path in folder.iterdir():
            first, end = (int(part) for part in path.stem.split("-")[2:])
            assert np.fromfile(path, "<f4")[::2].tolist() == list(range(first, end))
        copy = loaded(ring, folder, files)
        assert copy.count == ring.count and (copy.rows == ring.rows).all()


def test_full_segments_are_linked_and_the_filling_one_is_written_anew(tmp_path: Path) -> None:
    ring = replay.Replay(100, 2)
    fill(ring, 20)
    first = save(ring, tmp_path / "a")
    assert sorted(first) == [
        "replay-rank0-000000000-000000008.bin",
        "replay-rank0-000000008-000000016.bin",
        "replay-rank0-000000016-000000020.bin",
    ]
    before = {name: (tmp_path / "a" / name).read_bytes() for name in first}
    fill(ring, 10)
    second = save(ring, tmp_path / "b")
    shared = {n for n in second if n in first and (tmp_path / "a" / n).samefile(tmp_path / "b" / n)}
    assert shared == set(sorted(first)[:2])
    assert before == {name: (tmp_path / "a" / name).read_bytes() for name in first}


def test_a_resumed_ring_links_what_it_was_loaded_from(tmp_path: Path) -> None:
    ring = replay.Replay(100, 2)
    fill(ring, 20)
    copy = loaded(ring, tmp_path / "a", save(ring, tmp_path / "a"))
    save(copy, tmp_path / "b")
    name = "replay-rank0-000000000-000000008.bin"
    assert (tmp_path / "a" / name).samefile(tmp_path / "b" / name)


def test_an_earlier_checkpoint_that_was_removed_is_not_needed(tmp_path: Path) -> None:
    ring = replay.Replay(20, 2)
    fill(ring, 19)
    save(ring, tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    fill(ring, 9)  # the first segment is gone, the second half overwritten
    files = save(ring, tmp_path / "b")
    assert (loaded(ring, tmp_path / "b", files).rows == ring.rows).all()


@pytest.mark.parametrize("capacity", [16, 20, 100])
def test_what_was_written_ahead_is_linked_and_comes_back(tmp_path: Path, capacity: int) -> None:
    ring = replay.Replay(capacity, 2)
    (tmp_path / "replay-rank0.tmp").mkdir()
    (tmp_path / "replay-rank0.tmp" / "old").write_bytes(b"of a killed attempt")
    ring.write_ahead(tmp_path)
    for number, more in enumerate([3, 5, 1, 14, 2, 40, 10]):
        fill(ring, more)
        for one in ring._written.values():
            one.result(10)
        ahead = [path.stat().st_ino for path in (tmp_path / "replay-rank0.tmp").iterdir()]
        assert len(ahead) <= capacity // 8 + 1  # what no checkpoint will hold goes
        folder = tmp_path / str(number)
        files = save(ring, folder)
        assert files == {path.name: digest_file(path) for path in folder.iterdir()}
        copy = loaded(ring, folder, files)
        assert copy.count == ring.count and (copy.rows == ring.rows).all()
        assert not any((tmp_path / "replay-rank0.tmp" / name).exists() for name in files)
    assert ahead and set(ahead) <= {path.stat().st_ino for path in folder.iterdir()}
    del ring, copy
    assert not (tmp_path / "replay-rank0.tmp").exists()


def test_a_disk_that_fails_ahead_fails_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> StoredFile:
        raise OSError(errno.ENOSPC, "no room")

    ring = replay.Replay(100, 2)
    ring.write_ahead(tmp_path)
    monkeypatch.setattr(replay, "write_file", full)
    fill(ring, 9)
    with pytest.raises(OSError, match="no room"):
        save(ring, tmp_path / "a")


def test_first_bad_row_is_named_by_its_number() -> None:
    ring = replay.Replay(10, 2)
    fill(ring, 17)
    assert ring.first_bad(0) is None
    ring.rows[13 % 10, 1] = np.inf
    ring.rows[15 % 10, 0] = np.nan
    assert (ring.first_bad(0), ring.first_bad(14), ring.first_bad(16)) == (13, 15, None)


def test_memory_that_cannot_be_had_is_refused_at_once() -> None:
    with pytest.raises(Refused, match="takes 80 TB, .* lower buffer_size"):
        replay.Replay(10**12, 20)


def test_a_disk_without_room_for_its_checkpoints_is_told_at_once(tmp_path: Path) -> None:
    ring = replay.Replay(4, 2)
    ring.check_disk(tmp_path / "made")
    assert (tmp_path / "made").is_dir()
    ring.size_bytes = 10**18
    with pytest.raises(Refused, match=r"over 1000 PB when it is full; .* lower buffer_size"):
        ring.check_disk(tmp_path)


def test_missing_segments_are_noticed(tmp_path: Path) -> None:
    ring: Any = replay.Replay(20, 2)
    fill(ring, 19)
    files = save(ring, tmp_path / "a")
    del files["replay-rank0-000000008-000000016.bin"]
    with pytest.raises(Refused, match="8 transitions of the replay memory are missing"):
        loaded(ring, tmp_path / "a", files)


@pytest.mark.parametrize("terminated", [True, False])
def test_windows_are_cut_at_ends_and_stay_within_their_environment(terminated: bool) -> None:
    kept = replay.Windows(20, 1, envs=2, n_step=3, gamma=0.5)
    for t in range(1, 3):  # the first environment's episode has two steps, the second goes on
        for i in range(2):
            kept.begin(i, np.full(1, 10 * i + t, np.float32), t)
            end = i == 0 and t == 2
            kept.end(i, np.full(1, 10 * i + t + 1, np.float32), t, end and terminated, end)
    value = [0.0, 0.0] if terminated else [0.25, 0.5]
    assert kept.ring.count == 2
    assert kept.ring.rows[:2].tolist() == [[1, 3, 1, 2, value[0]], [2, 3, 2, 2, value[1]]]
