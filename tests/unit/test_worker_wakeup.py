from __future__ import annotations

import os
from pathlib import Path

import pytest
import wakeup
from paths import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(str(tmp_path))
    made.make()
    return made


def test_a_poke_outlives_the_dispatcher(workspace: Workspace) -> None:
    wakeup.poke(workspace, "b")
    wakeup.poke(workspace, "a")
    wakeup.poke(workspace, "a")
    assert wakeup.take_inbox(workspace) == ["a", "b"]
    assert wakeup.take_inbox(workspace) == []


def test_a_poke_wakes_whoever_listens(workspace: Workspace) -> None:
    os.mkfifo(workspace.wake)
    fifo = os.open(workspace.wake, os.O_RDWR | os.O_NONBLOCK)
    try:
        wakeup.poke(workspace, "a")
        assert os.read(fifo, 10) == b"x"
        # a full pipe is no reason to wait: whoever reads it looks at all there is
        with pytest.raises(BlockingIOError):
            while True:
                os.write(fifo, b"x" * 4096)
        wakeup.poke(workspace, "b")
        assert wakeup.take_inbox(workspace) == ["a", "b"]
    finally:
        os.close(fifo)


def test_a_poke_never_fails(tmp_path: Path) -> None:
    wakeup.poke(Workspace(str(tmp_path / "none")), "a")
