"""Where a run's event files are, and reading on in them: cut, growing, damaged, hostile."""

from __future__ import annotations

import json
import math
import os
import random
import time
from pathlib import Path

import eventfiles
import pytest
from eventfiles import EventFile, Room
from paths import RunPaths, Workspace

from tests.helpers import event_writers
from tests.helpers.event_writers import scalar, version

ROOM = Room(100, 1000)
Points = dict[str, list[tuple[int, float]]]


def read(file: EventFile, path: Path, room: Room = ROOM) -> Points:
    assert file.read(str(path), time.monotonic() + 60, room)
    return points(file)


def points(file: EventFile) -> Points:
    return {tag: [(step, v) for step, _, v in series] for tag, series in file.series.items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with scalars in both spellings, a histogram and a picture."""
    import numpy as np

    folder = tmp_path_factory.mktemp("written")
    writer = event_writers.torch_writer(folder)
    for step in range(3):
        writer.add_scalar("a", step / 2, step)
        writer.add_scalar("b", step / 4, step, new_style=True)
    writer.add_histogram("h", np.arange(10.0), 1)
    writer.add_image("i", np.zeros((3, 4, 4), np.uint8), 1)
    writer.add_scalar("a", 9.0, 9)
    writer.close()
    (path,) = folder.iterdir()
    return path


def test_a_file_cut_at_any_byte_is_read_on_when_the_rest_has_come(
    written: Path, tmp_path: Path
) -> None:
    data = written.read_bytes()
    whole = read(EventFile("x"), written)
    assert whole == event_writers.as_tensorboard_reads(written.parent)
    path = tmp_path / "cut"
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        file = EventFile("x")
        before = read(file, path)
        assert all(found == whole[tag][: len(found)] for tag, found in before.items())
        assert file.trouble is None
        with open(path, "ab") as out:
            out.write(data[cut:])
        assert read(file, path) == whole


def test_a_file_that_grows_byte_by_byte(written: Path, tmp_path: Path) -> None:
    path, file = tmp_path / "grows", EventFile("x")
    path.write_bytes(b"")
    for byte in written.read_bytes():
        with open(path, "ab") as out:
            out.write(bytes([byte]))
        read(file, path)
    assert points(file) == read(EventFile("x"), written)
    assert (file.offset, file.trouble) == (path.stat().st_size, None)


def test_every_flipped_byte_costs_its_record_or_what_is_behind_it(
    written: Path, tmp_path: Path
) -> None:
    data, whole = written.read_bytes(), read(EventFile("x"), written)
    path, ended = tmp_path / "flipped", 0
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x55
        path.write_bytes(changed)
        file = EventFile("x")
        found = read(file, path)
        for tag, values in found.items():
            assert set(values) <= set(whole[tag]), "nothing is made up"
        if file.trouble and "not read behind" in file.trouble:
            ended += 1
        else:
            # what is no scalar is passed over whatever is in it
            assert sum(map(len, found.values())) >= sum(map(len, whole.values())) - 1
    assert ended == 12 * 10, "of ten records the twelve bytes that tell their length"


def test_a_damaged_length_is_looked_at_again_before_the_file_is_given_up(tmp_path: Path) -> None:
    path, file = tmp_path / "f", EventFile("x")
    event_writers.write(path, version(), scalar("a", 1.0, 1))
    good = path.read_bytes()
    path.write_bytes(good + bytes(12))
    assert read(file, path) == {"a": [(1, 1.0)]}
    assert file.problem is None
    with open(path, "r+b") as out:  # it was only not there yet
        out.seek(len(good))
        out.write(event_writers.write(tmp_path / "g", scalar("a", 2.0, 2)).read_bytes())
    assert read(file, path) == {"a": [(1, 1.0), (2, 2.0)]}
    offset = path.stat().st_size
    for _ in range(3):
        with open(path, "ab") as out:
            out.write(bytes(20))
        read(file, path)
    assert file.trouble == f"damaged at byte {offset}, and not read behind it"
    event_writers.write(path, scalar("a", 3.0, 3))
    assert read(file, path) == {"a": [(1, 1.0), (2, 2.0)]}


def test_hostile_lengths_cost_nothing(tmp_path: Path) -> None:
    event_writers.write(tmp_path / "f", version(), scalar("a", 1.0, 1))
    for length in (1 << 30, 1 << 62, (1 << 64) - 1):
        path, file = tmp_path / str(length), EventFile("x")
        good = (tmp_path / "f").read_bytes()
        path.write_bytes(good + event_writers.header(length) + b"xyz")
        assert read(file, path) == {"a": [(1, 1.0)]}
        assert (file.offset, file.trouble) == (len(good), None)
    hole = tmp_path / "hole"
    with open(hole, "wb") as out:
        out.truncate(1 << 40)
    assert read(EventFile("x"), hole) == {}


def test_large_records_are_passed_over_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = event_writers.write(tmp_path / "f", version(), scalar("a", 1.0, 1))
    with open(path, "ab") as out:
        out.write(event_writers.header(1 << 30))
        out.truncate(path.stat().st_size + 12 + (1 << 30) + 4)
    event_writers.write(path, scalar("a", 2.0, 2))
    asked: list[int] = []
    pread = os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        asked.append(size)
        return pread(fd, size, offset)

    monkeypatch.setattr(eventfiles.os, "pread", counted)
    assert read(EventFile("x"), path) == {"a": [(1, 1.0), (2, 2.0)]}
    assert sum(asked) <= 4 * eventfiles.CHUNK_BYTES


def test_no_more_is_kept_than_there_is_room_for(tmp_path: Path) -> None:
    events = [scalar(f"t{step % 20}", step, step) for step in range(2000)]
    path = event_writers.write(tmp_path / "f", version(), *events)
    found = read(EventFile("x"), path, Room(7, 10))
    assert len(found) == 7
    assert {len(values) for values in found.values()} <= set(range(10, 22))
    assert found["t3"][-1] == (1983, 1983.0)


def test_what_is_no_number_is_left_out(tmp_path: Path) -> None:
    events = [scalar("a", value, 5) for value in (math.nan, math.inf, 1.0)]
    events += [scalar("a", 2.0, -(1 << 63)), scalar("a", 3.0, 6, wall=math.nan)]
    path = event_writers.write(tmp_path / "f", version(math.inf), *events)
    file = EventFile("x")
    assert read(file, path) == {"a": [(5, 1.0), (6, 3.0)]}
    assert [wall for _, wall, _ in file.series["a"]] == [1005.0, 0.0]


def test_reading_ends_at_its_deadline_and_goes_on_later(tmp_path: Path) -> None:
    path = event_writers.write(tmp_path / "f", version(), scalar("a", 1.0, 1))
    file = EventFile("x")
    assert not file.read(str(path), time.monotonic() - 1, ROOM)
    assert points(file) == {}
    assert read(file, path) == {"a": [(1, 1.0)]}


def test_a_file_begun_anew_is_read_anew(tmp_path: Path) -> None:
    path, file = tmp_path / "f", EventFile("x")
    event_writers.write(path, version(), scalar("a", 1.0, 1), scalar("a", 2.0, 2))
    read(file, path)
    other = event_writers.write(tmp_path / "g", version(), scalar("b", 5.0, 1))
    os.replace(other, path)
    assert read(file, path) == {"b": [(1, 5.0)]}
    os.truncate(path, 0)
    assert read(file, path) == {}
    os.unlink(path)
    assert read(file, path) == {}


def test_packed_it_goes_on_where_it_was(written: Path, tmp_path: Path) -> None:
    data, whole = written.read_bytes(), read(EventFile("x"), written)
    path = tmp_path / "f"
    for cut in range(0, len(data), 37):
        path.write_bytes(data[:cut])
        file = EventFile("x")
        read(file, path)
        again = eventfiles.unpacked("x", json.loads(json.dumps(file.pack())))
        with open(path, "ab") as out:
            out.write(data[cut:])
        assert read(again, path) == whole


def test_damaged_packs_are_refused(written: Path) -> None:
    file = EventFile("x")
    read(file, written)
    good = file.pack()
    for key in good:
        for value in (None, "x", [], {"a": 1}, -1, float("inf"), [[1]]):
            try:
                made = eventfiles.unpacked("x", {**good, key: value})
            except ValueError:
                continue
            read(made, written)
    for body in (None, [], "x", {}):
        with pytest.raises(ValueError):
            eventfiles.unpacked("x", body)


def test_made_up_files_raise_nothing(written: Path, tmp_path: Path) -> None:
    draw, data = random.Random(11), written.read_bytes()
    path = tmp_path / "f"
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(draw.randrange(1, 6)):
            begin = draw.randrange(len(changed))
            changed[begin : begin + draw.randrange(8)] = draw.randbytes(draw.randrange(8))
            changed = changed or bytearray(b"x")
        path.write_bytes(changed)
        read(EventFile("x"), path)


# -- where they are -----------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    workspace = Workspace(str(tmp_path / "ws"))
    workspace.make()
    paths = workspace.run("r-1")
    for folder in (paths.logs, paths.code, paths.folder):
        os.makedirs(folder)
    return paths


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    return path


EVENTS = "events.out.tfevents.1764600000.host.1.0"


def test_they_are_found_in_the_logs_and_beside_the_code(run: RunPaths) -> None:
    logs, code = Path(run.logs), Path(run.code)
    for folder in (logs, logs / "tb/sub", code, code / "runs/CartPole__1", code / "any/a/b"):
        touch(folder / EVENTS)
    touch(code / "runs/other.txt")
    touch(code / "shipped" / EVENTS).chmod(0o444)
    touch(code / ".hidden" / EVENTS)
    touch(code / "wandb" / EVENTS)
    touch(code / "a/b/c/d/e/f/g" / EVENTS)
    found = eventfiles.find(run)
    assert sorted(found) == [
        f"{folder}/{EVENTS}"
        for folder in ("logs", "logs/tb/sub", "work/any/a/b", "work", "work/runs/CartPole__1")
    ]
    assert found[f"work/runs/CartPole__1/{EVENTS}"] == str(code / "runs/CartPole__1" / EVENTS)


def test_links_and_what_is_no_file_are_passed_over(run: RunPaths, tmp_path: Path) -> None:
    outside = touch(tmp_path / "outside" / EVENTS)
    logs = Path(run.logs)
    (logs / "folder").symlink_to(outside.parent)
    (logs / EVENTS).symlink_to(outside)
    os.mkfifo(logs / "tfevents-pipe")
    (logs / "tfevents-folder").mkdir()
    assert eventfiles.find(run) == {}
    file = EventFile("x")
    for name in (EVENTS, "tfevents-pipe", "tfevents-folder"):
        assert read(file, logs / name) == {}


def test_the_search_has_an_end_and_begins_where_they_likely_are(
    run: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eventfiles, "MOST_ENTRIES", 100)
    for n in range(200):
        touch(Path(run.code) / f"data{n % 4}" / f"{n}.bin")
    touch(Path(run.code) / "runs/a/b" / EVENTS)
    touch(Path(run.code) / "zoo" / EVENTS)
    assert list(eventfiles.find(run)) == [f"work/runs/a/b/{EVENTS}"]


def test_of_very_many_files_the_newest_are_taken(run: RunPaths) -> None:
    for n in range(eventfiles.MOST_FILES + 5):
        os.utime(touch(Path(run.logs) / f"tfevents.{n}"), (n, n))
    found = eventfiles.find(run)
    assert len(found) == eventfiles.MOST_FILES
    assert "logs/tfevents.4" not in found and "logs/tfevents.5" in found
