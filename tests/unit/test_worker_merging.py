"""What several event files say together."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import merging
from eventfiles import EventFile, Room

from tests.helpers import event_writers
from tests.helpers.event_writers import scalar, start, version

Curve = list[tuple[int, float]]


def file(tmp_path: Path, name: str, *events: Any, begun: float = 1.0) -> EventFile:
    path = event_writers.write(tmp_path / name, version(begun), *events)
    made = EventFile(name)
    assert made.read(str(path), time.monotonic() + 60, Room(1000, 10_000))
    return made


def values(tag: str, *steps: int, wall: float, by: float = 1.0) -> list[Any]:
    """A scalar at each step, a second apart."""
    return [scalar(tag, step * by, step, wall + n) for n, step in enumerate(steps)]


def curves(*files: EventFile) -> dict[str, Curve]:
    rows = merging.points(merging.parts(files), 10_000, None, None)
    out: dict[str, Curve] = {}
    for step, metrics, _ in rows:
        for name, value in metrics.items():
            out.setdefault(name, []).append((step, value))
    return out


def last(*files: EventFile, metric: Any = None) -> dict[str, Any]:
    return merging.last(merging.parts(files), metric)


def test_a_later_file_wins_from_its_first_step_on(tmp_path: Path) -> None:
    first = file(
        tmp_path,
        "logs/a",
        *values("reward", 0, 10, 20, 30, wall=100),
        *values("eval/return", 15, 30, wall=100),
        begun=100,
    )
    second = file(tmp_path, "logs/b", *values("reward", 20, 25, wall=200, by=2), begun=200)
    for order in ((first, second), (second, first)):
        assert curves(*order) == {
            "reward": [(0, 0), (10, 10), (20, 40), (25, 50)],
            "eval/return": [(15, 15)],
        }
        assert last(*order) == {
            "step": 25,
            "metrics": {"eval/return": 15, "reward": 50},
            "t": 201.0,
        }


def test_begun_anew_in_another_folder_it_is_the_same_training(tmp_path: Path) -> None:
    """CleanRL names its folder by the time."""
    first = file(tmp_path, "work/runs/x__1", *values("r", 0, 10, 20, wall=100), begun=100)
    second = file(tmp_path, "work/runs/x__2", *values("r", 0, 5, wall=200, by=3), begun=200)
    assert curves(first, second) == {"r": [(0, 0), (5, 15)]}
    assert last(first, second)["step"] == 5


def test_a_file_of_other_metrics_takes_nothing_away(tmp_path: Path) -> None:
    train = file(tmp_path, "logs/a", *values("r", 0, 10, 20, 30, wall=100), begun=100)
    evals = file(tmp_path, "logs/b", *values("e", 10, 20, wall=101), begun=101)
    empty = file(tmp_path, "logs/c", begun=300)
    assert curves(train, evals, empty) == {
        "r": [(0, 0), (10, 10), (20, 20), (30, 30)],
        "e": [(10, 10), (20, 20)],
    }


def test_what_an_earlier_file_says_after_a_later_one_began_counts(tmp_path: Path) -> None:
    first = file(tmp_path, "logs/a", *values("r", 0, 10, 20, 30, wall=100), begun=100)
    second = file(tmp_path, "logs/b", *values("r", 10, wall=102.5, by=7), begun=102.5)
    assert curves(first, second) == {"r": [(0, 0), (10, 70), (30, 30)]}


def test_purged_steps_are_those_that_tensorboard_purges(tmp_path: Path) -> None:
    writer = event_writers.torch_writer(tmp_path)
    for step in range(0, 100, 5):
        writer.add_scalar("r", step, step)
        writer.add_scalar("e", step, step)
    writer.close()
    time.sleep(1.1)  # the name of a file holds its second
    writer = event_writers.torch_writer(tmp_path, purge_step=50)
    for step in range(55, 80, 5):
        writer.add_scalar("r", -step, step)
    writer.close()
    files = []
    for path in sorted(tmp_path.iterdir()):
        made = EventFile(f"logs/{path.name}")
        made.read(str(path), time.monotonic() + 60, Room(100, 1000))
        files.append(made)
    assert curves(*files) == event_writers.as_tensorboard_reads(tmp_path)
    assert last(*files)["step"] == 75


def test_a_writer_that_begins_anew_within_a_file(tmp_path: Path) -> None:
    one = file(
        tmp_path,
        "logs/a",
        *values("r", 0, 10, 20, wall=100),
        start(10, 150.0),
        *values("r", 10, wall=151, by=5),
    )
    assert curves(one) == {"r": [(0, 0), (10, 50)]}


def test_folders_below_give_their_metrics_with_their_path(tmp_path: Path) -> None:
    main = file(tmp_path, "work/runs/x/a", *values("r", 0, 10, wall=100))
    below = file(tmp_path, "work/runs/x/losses/train/b", *values("r", 0, 99, wall=100))
    assert curves(main, below) == {"r": [(0, 0), (10, 10)], "losses/train/r": [(0, 0), (99, 99)]}
    assert last(main, below)["step"] == 10, "that of the folder itself"


def test_folders_written_at_the_same_time_are_told_apart(tmp_path: Path) -> None:
    train = file(tmp_path, "logs/k/train/a", *values("loss", 0, 1, 2, wall=100))
    valid = file(tmp_path, "logs/k/validation/b", *values("loss", 0, 1, wall=100.5, by=9))
    other = file(tmp_path, "logs/k/more/c", *values("else", 0, wall=100))
    assert curves(train, valid, other) == {
        "train/loss": [(0, 0), (1, 1), (2, 2)],
        "validation/loss": [(0, 0), (1, 9)],
        "else": [(0, 0)],
    }
    apart = file(tmp_path, "work/a/a", *values("loss", 0, wall=101))
    assert {"logs/k/train/loss", "work/a/loss"} <= set(curves(train, apart, valid))


def test_names_and_numbers_of_points(tmp_path: Path) -> None:
    tags = ["charts/episodic_return", *(f"losses/{n}" for n in range(10))]
    steps = range(0, 50_000, 10)
    one = file(tmp_path, "logs/a", *(e for tag in tags for e in values(tag, *steps, wall=1)))
    found = merging.parts([one])

    def counts(rows: list[list[Any]]) -> dict[str, int]:
        return {tag: sum(tag in row[1] for row in rows) for tag in tags}

    many = counts(merging.points(found, 1000, None, None))
    assert 900 <= many.pop(tags[0]) <= 1001
    assert all(90 <= count <= 102 for count in many.values())
    chosen = counts(merging.points(found, 1000, None, tags[3]))
    assert 900 <= chosen[tags[3]] <= 1001 and chosen[tags[0]] < 110
    rows = merging.points(found, 100, [tags[1], "none"], None)
    assert (rows[0][0], rows[-1][0]) == (0, 49_990)
    assert {name for row in rows for name in row[1]} == {tags[1]}
    assert 90 <= len(rows) <= 101


def test_last_values_fit_into_a_record_and_the_metric_is_among_them(tmp_path: Path) -> None:
    names = [f"{n:03d}" + "é" * 20 for n in range(300)] + ["zzz/own", "reward"]
    one = file(tmp_path, "logs/a", *(scalar(name, 0.1, 5) for name in names))
    found = last(one, metric="zzz/own")["metrics"]
    assert list(found)[:2] == ["zzz/own", "reward"]
    assert found["reward"] == 0.1
    assert 10 < len(found) < 60


def test_nothing_says_nothing() -> None:
    assert last() == {"step": None, "metrics": {}, "t": None}
    assert curves() == {}


def test_any_files_are_merged_alike_in_any_order(tmp_path: Path) -> None:
    draw = random.Random(5)
    files = []
    for n in range(12):
        folder = draw.choice(["logs", "logs/a", "logs/b", "work/runs/x", "work/runs/x/y"])
        events: list[Any] = []
        for _ in range(draw.randrange(20)):
            wall = draw.uniform(0, 1000)
            if draw.random() < 0.1:
                events.append(start(draw.randrange(100), wall))
            else:
                events.append(scalar(draw.choice("rst"), draw.random(), draw.randrange(100), wall))
        files.append(file(tmp_path, f"{folder}/{n}", *events, begun=n))
    expected = curves(*files), last(*files)
    for _ in range(5):
        draw.shuffle(files)
        assert (curves(*files), last(*files)) == expected
