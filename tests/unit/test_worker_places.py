"""Which worker of a workspace a run belongs to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import config
import places
import pytest
import records
from paths import Workspace


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "ws"


def known(image: str, generation: int) -> config.Config:
    return config.Config("w-1", "docker", image=image, generation=generation)


def make(root: Path, image: str, generation: int) -> Workspace:
    seen = Workspace(str(root), f"{image}.{generation}")
    seen.make()
    places.register(seen, known(image, generation))
    return seen


@pytest.fixture
def held(root: Path) -> Iterator[list[int]]:
    """Locks that stand for what lives."""
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)


def test_the_highest_generation_is_the_active_one(root: Path) -> None:
    first, *_ = (make(root, "a", number) for number in (1, 2, 10))
    make(root, "b", 3)
    found = places.find_all(first)
    assert [place.name for place in found] == ["a.1", "a.2", "a.10", "b.3"]
    assert places.active(found, "a") == places.Place("a.10", "a", 10)
    assert places.active(found, "c") is None


def test_what_no_worker_wrote_is_no_place(root: Path) -> None:
    first = make(root, "a", 1)
    (root / ".runner/places/half").mkdir()
    (root / ".runner/places/odd").mkdir()
    (root / ".runner/places/odd/place.json").write_text('{"image": 1, "generation": "x"}')
    assert [place.name for place in places.find_all(first)] == ["a.1"]


def test_a_worker_that_is_alone_owns_all(root: Path) -> None:
    alone = Workspace(str(root))
    alone.make()
    home = places.Home(alone, config.Config("w-1", "local"))
    assert home.is_active
    assert not home.look()
    assert home.owns({"worker_image": "a"}, {"state": "running", "place": "b.1"})
    assert places.queue_of(alone, {"worker_image": "a"}) is alone


def test_each_owns_what_is_for_its_image(root: Path) -> None:
    home = places.Home(make(root, "a", 1), known("a", 1))
    assert home.owns({"worker_image": "a"}, None)
    assert home.owns({"image": "a", "worker_image": "b"}, {"state": "queued"})
    assert not home.owns({"image": "b", "worker_image": "a"}, None)
    assert home.owns({}, None), "a run of before there were images"
    assert home.owns({"worker_image": "b"}, {"state": "running", "place": "a.1"})
    assert not home.owns({"worker_image": "a"}, {"state": "running", "place": "b.1"})


def test_a_new_one_begins_when_the_old_one_has_let_go(root: Path, held: list[int]) -> None:
    old = make(root, "a", 1)
    of_old = places.Home(old, known("a", 1))
    for path in (old.keeper_lock, old.dispatcher_lock):
        lock = records.try_lock(path)
        assert lock is not None
        held.append(lock)
    new = make(root, "a", 2)
    of_new = places.Home(new, known("a", 2))
    queued = {"worker_image": "a"}
    # at no time is it both's
    assert of_old.owns(queued, None)
    assert not of_new.owns(queued, None)
    assert not of_new.is_superseded
    assert of_old.look()
    assert of_old.is_superseded
    assert not of_old.owns(queued, None)
    assert of_new.look()
    assert of_new.owns(queued, None)
    live = {"state": "running", "place": "a.1"}
    assert of_old.owns(queued, live)
    assert not of_new.owns(queued, live)
    # its container is gone
    while held:
        os.close(held.pop())
    assert of_new.look()
    assert of_new.owns(queued, live)
    of_new.clear({"a.1"})
    assert os.path.isdir(old.own)
    of_new.clear(set())
    assert not os.path.exists(old.own)


def test_where_a_runs_processes_are(root: Path) -> None:
    here = make(root, "a", 2)
    make(root, "a", 1)
    make(root, "b", 1)
    live = {"state": "running", "place": "a.2"}
    assert places.elsewhere(here, live) is None
    told = places.elsewhere(here, dict(live, place="a.1"))
    assert told == {"image": "a", "generation": 1, "active": False}
    told = places.elsewhere(here, dict(live, place="b.1"))
    assert told == {"image": "b", "generation": 1, "active": True}
    assert places.elsewhere(here, {"state": "ended", "place": "b.1"}) is None
    assert places.elsewhere(here, {"state": "running"}) is None
