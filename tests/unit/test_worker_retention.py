from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import checkpoints
import pytest
import retention
from retention import plan

from tests.unit.test_worker_checkpoints import save


def described(*values: float | None) -> list[dict[str, Any]]:
    """Checkpoints c1, c2, … with these values of eval/return."""
    return [
        {"name": f"c{place}", "metrics": {} if value is None else {"eval/return": value}}
        for place, value in enumerate(values, 1)
    ]


TEN = described(1, 9, 2, 3, 4, 5, 6, 7, 8, 5)


@pytest.mark.parametrize(
    ("items", "keep", "best", "metric", "left"),
    [
        (TEN, 2, 1, None, ["c2", "c9", "c10"]),
        (TEN, 2, 1, "eval/return", ["c2", "c9", "c10"]),
        (TEN, 2, None, None, ["c9", "c10"]),
        (TEN, 1, 2, None, ["c2", "c9", "c10"]),
        (TEN, 2, 1, "no/such", ["c9", "c10"]),
        (TEN, None, 1, None, [f"c{n}" for n in range(1, 11)]),
        (TEN, 99, None, None, [f"c{n}" for n in range(1, 11)]),
        (TEN, 0, None, None, ["c10"]),
        (described(5, 5, 5, 1), 1, 1, None, ["c3", "c4"]),
        (described(None, None, None), 1, 1, None, ["c3"]),
        (described(float("nan"), 2, None), 1, 1, None, ["c2", "c3"]),
        ([], 2, 1, None, []),
    ],
)
def test_the_newest_and_the_best_stay(
    items: list[dict[str, Any]],
    keep: int | None,
    best: int | None,
    metric: str | None,
    left: list[str],
) -> None:
    dropped = plan(items, keep, best, metric)
    assert [item["name"] for item in items if item["name"] not in dropped] == left


def test_without_a_chosen_metric_the_first_known_one_counts() -> None:
    items = [
        {"name": "a", "metrics": {"reward": 1.0, "loss": 9.0}},
        {"name": "b", "metrics": {"reward": 2.0, "loss": 1.0}},
        {"name": "c", "metrics": {}},
    ]
    assert plan(items, 1, 1, None) == ["a"]
    assert plan(items, 1, 1, "loss") == ["b"]


def keeper(folder: Path, **spec: Any) -> retention.Keeper:
    said: list[str] = []
    return retention.Keeper(str(folder), spec, said.append)


def test_one_that_does_not_verify_neither_counts_nor_goes(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, f"step-{step}", step)
    (save(tmp_path, "step-4", 4) / "model.pt").write_bytes(b"")
    assert keeper(tmp_path, keep=1).enforce() == ["step-1", "step-2"]
    assert checkpoints.names(str(tmp_path)) == ["step-3", "step-4"]
    assert checkpoints.newest_good(str(tmp_path))[0] == str(tmp_path / "step-3")


def test_names_without_a_place_in_the_order_are_left_alone(tmp_path: Path) -> None:
    for name in ("best.pt", "last", "model_10.zip", "model_20.zip", "note.tmp", ".hidden-1"):
        (tmp_path / name).write_bytes(b"x")
    assert keeper(tmp_path, keep=1).enforce() == ["model_10.zip"]
    assert sorted(os.listdir(tmp_path)) == [
        ".hidden-1",
        "best.pt",
        "last",
        "model_20.zip",
        "note.tmp",
    ]


def test_a_file_that_checkpoints_share_is_read_once(tmp_path: Path) -> None:
    mine = keeper(tmp_path, keep=2)
    shared = save(tmp_path, "step-1", 1) / "model.pt"
    mine.enforce()
    found = shared.stat()
    shared.write_bytes(b"WEIGHTS")  # which shows only to who reads it again
    os.utime(shared, ns=(found.st_atime_ns, found.st_mtime_ns))
    for step in (2, 3):
        place = save(tmp_path, f"step-{step}", step)
        (place / "model.pt").unlink()
        os.link(shared, place / "model.pt")
        mine.enforce()
    assert checkpoints.names(str(tmp_path)) == ["step-2", "step-3"]
    assert keeper(tmp_path, keep=1).enforce() == []


def test_what_a_killed_removal_left_does_not_count_and_goes(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, f"step-{step}", step)
    (tmp_path / "step-1").rename(tmp_path / ".old-step-1")
    (tmp_path / ".old-file").write_bytes(b"x")
    assert checkpoints.names(str(tmp_path)) == ["step-2"]
    save(tmp_path, "step-1", 1)
    assert keeper(tmp_path, keep=1).enforce() == ["step-1"]
    assert sorted(os.listdir(tmp_path)) == [".old-file", "step-2"]
    checkpoints.remove_leftovers(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["step-2"]


def test_one_that_vanishes_does_not_count(tmp_path: Path) -> None:
    save(tmp_path, "step-1", 1)
    assert not keeper(tmp_path, keep=1)._is_good("step-2")


def test_a_pass_is_made_only_when_the_folder_changed(tmp_path: Path) -> None:
    mine = keeper(tmp_path, keep=1)
    for step in (1, 2):
        save(tmp_path, f"step-{step}", step)
    mine.finish(10)
    assert checkpoints.names(str(tmp_path)) == ["step-2"]
    mine.look()
    made = mine._pass
    assert made is not None
    made.join()
    mine.look()
    mine.look()
    later = mine._pass
    assert later is not None
    later.join()
    mine.look()
    assert mine._pass is later
    keeper(tmp_path).look()
