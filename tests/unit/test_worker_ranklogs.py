"""Whose file lies in a log's place: real files, and real processes as ranks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import processes
import pytest
import ranklogs
from paths import Workspace

from tests.helpers.wait import wait_for

LIMIT = 100_000
BIG = b"x" * 1_000_000


class Scene:
    """One rank's log, and `cat` as its rank: it writes what it is given."""

    def __init__(self, root: Path) -> None:
        paths = Workspace(str(root)).run("r-1")
        self.log = Path(paths.log(0))
        self.log.parent.mkdir(parents=True)
        self.events: list[dict[str, Any]] = []
        self.child: subprocess.Popen[bytes] | None = None
        self.logs = ranklogs.Logs(paths, 1, LIMIT, self.note, self.ranks)
        self.logs.begin()

    def note(self, event: str, **more: Any) -> None:
        self.events.append({"event": event, **more})

    def ranks(self) -> dict[int, int]:
        return {} if self.child is None else {0: self.child.pid}

    def start(self, out: Path | None = None) -> None:
        with open(out or self.log, "ab") as file:
            self.child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file)

    def say(self, data: bytes) -> None:
        assert self.child is not None
        assert self.child.stdin is not None
        size = self.own.st_size
        self.child.stdin.write(data)
        self.child.stdin.flush()
        wait_for(lambda: self.own.st_size == size + len(data), 5, "its output")

    @property
    def own(self) -> os.stat_result:
        assert self.child is not None
        return os.stat(f"/proc/{self.child.pid}/fd/1")

    def names(self) -> list[str]:
        return [event["event"] for event in self.events]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    if made.child is not None:
        made.child.kill()
        made.child.communicate()


def room(found: os.stat_result) -> int:
    return found.st_blocks * 512


def test_all_is_well(scene: Scene) -> None:
    scene.start()
    scene.say(b"a line")
    assert not scene.logs.look()
    assert scene.logs.problem is None
    assert scene.events == []
    scene.say(BIG)
    assert not scene.logs.look()
    assert room(scene.log.stat()) < LIMIT
    assert scene.names() == ["log-cut"]


def test_a_log_without_a_name_is_cut_through_its_rank(scene: Scene) -> None:
    scene.start()
    scene.log.unlink()
    scene.say(BIG)
    assert scene.logs.look()
    assert not scene.logs.look()
    assert scene.logs.problem is not None
    assert room(scene.own) < LIMIT
    assert scene.names() == ["log-gone", "log-cut"]


def test_a_log_that_is_moved_back_is_well_again(scene: Scene) -> None:
    scene.start()
    aside = scene.log.with_suffix(".old")
    scene.log.rename(aside)
    assert scene.logs.look()
    aside.rename(scene.log)
    assert scene.logs.look()
    assert scene.logs.problem is None


@pytest.mark.parametrize("alive", [True, False])
@pytest.mark.parametrize("way", ["link", "move", "symlink"])
def test_another_file_in_its_place_is_left_alone(
    scene: Scene, tmp_path: Path, way: str, alive: bool
) -> None:
    if alive:
        scene.start()
    theirs = tmp_path / "theirs"
    theirs.write_bytes(BIG)
    before = room(theirs.stat())
    scene.log.unlink()
    {"link": os.link, "move": os.rename, "symlink": os.symlink}[way](theirs, scene.log)
    scene.logs.look()
    assert room(scene.log.stat()) == before
    assert scene.log.read_bytes() == BIG
    assert scene.logs.problem is not None
    assert scene.names() == ["log-gone"] + ([] if alive else ["log-limit"])
    if not alive:
        assert scene.events[1]["text"] == (
            "rank 0: its log cannot be reached; log_limit is not kept"
        )


def test_a_rank_that_writes_elsewhere(scene: Scene, tmp_path: Path) -> None:
    scene.start(tmp_path / "elsewhere")
    scene.log.write_bytes(BIG)
    scene.logs.look()
    scene.logs.look()
    assert scene.log.read_bytes() == BIG
    assert [event.get("text") for event in scene.events] == [
        "rank 0: its output goes elsewhere; log_limit is not kept"
    ]


def test_a_log_with_another_name(scene: Scene, tmp_path: Path) -> None:
    scene.start()
    os.link(scene.log, tmp_path / "other")
    scene.say(BIG)
    scene.logs.look()
    assert scene.log.read_bytes() == BIG
    assert scene.names() == ["log-limit"]
    (tmp_path / "other").unlink()
    scene.logs.look()
    assert room(scene.log.stat()) < LIMIT


def test_a_rank_that_has_ended_is_cut_by_its_name(scene: Scene) -> None:
    scene.log.write_bytes(BIG)
    scene.logs.look()
    assert room(scene.log.stat()) < LIMIT


def test_a_log_that_is_cut_short_or_begun_anew(scene: Scene) -> None:
    scene.start()
    scene.say(b"x" * 1000)
    scene.logs.look()
    os.truncate(scene.log, 10)
    assert scene.logs.look()
    text = "rank-0.log was cut short while it ran, from 1000 to 10 bytes; what was in it is lost"
    assert scene.logs.problem == text
    scene.say(b"y" * 5000)
    assert not scene.logs.look()
    assert scene.logs.problem == text
    assert scene.names() == ["log-short"]


def test_a_rank_that_turned_to_a_new_file_of_that_name(scene: Scene) -> None:
    scene.start()
    scene.log.rename(scene.log.with_suffix(".1"))
    assert scene.child is not None
    scene.child.kill()
    scene.child.communicate()
    scene.start()
    assert scene.logs.look()
    assert scene.logs.problem is not None
    assert "was begun anew" in scene.logs.problem
    found = scene.log.stat()
    assert scene.logs.own == [(found.st_dev, found.st_ino)]
    assert scene.names() == ["log-anew"]


def test_what_is_no_file_is_set_aside(tmp_path: Path) -> None:
    paths = Workspace(str(tmp_path)).run("r-1")
    Path(paths.logs).mkdir(parents=True)
    Path(paths.log(0)).write_text("mine")
    os.mkfifo(paths.log(1))
    Path(paths.log(2)).mkdir()
    os.symlink("/etc/passwd", paths.log(3))
    Path(paths.log(3) + ".aside-1").mkdir()
    said = ranklogs.set_aside(paths, 5)
    assert [line.partition("aside as ")[2] for line in said] == [
        "rank-1.log.aside-1",
        "rank-2.log.aside-1",
        "rank-3.log.aside-2",
    ]
    assert ranklogs.set_aside(paths, 5) == []
    assert Path(paths.log(0)).read_text() == "mine"
    assert os.readlink(paths.log(3) + ".aside-2") == "/etc/passwd"


def test_the_ranks_of_an_agent() -> None:
    script = "for r in 0 1; do RANK=$r sleep 60 & done; FOO=1 sleep 60 & wait"
    child = subprocess.Popen(["sh", "-c", script], env={"PATH": os.environ["PATH"]})

    def both() -> dict[int, int] | None:
        found = ranklogs.children_by_rank(child.pid)
        return found if len(found) == 2 else None

    try:
        found = wait_for(both, 5, "two ranks")
        assert sorted(found or ()) == [0, 1]
    finally:
        for pid in processes.descendants([child.pid]):
            os.kill(pid, 9)
        child.wait()
