"""What the verbs are told of the queue."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import board
import pytest
import records
from paths import Workspace
from queueing import Queue, Waiting


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(str(tmp_path / "ws"))
    made.make()
    return made


def told(body: Any, run: str, at: float, state: Any = None, gone: Any = (), **spec: Any) -> Any:
    found = board.waits(
        body, {"id": run, "accepted_at": at, **spec}, state or {}, lambda other: other not in gone
    )
    return found["position"], found["waits"]


def test_it_is_written_when_something_changed(workspace: Workspace) -> None:
    queue, teller = Queue(), board.Board(workspace)
    queue.add(Waiting("a", 1.0, 0))
    queue.add(Waiting("b", 2.0, 0), ("a",))
    teller.show(queue, {"gpu": None, "cpu": {"kind": "slot"}})
    body = records.read(workspace.queue)
    assert body is not None
    assert body["lines"] == {"gpu": [], "cpu": [["a", 0, 1.0]]}
    assert (body["held"], body["heads"]["cpu"]) == ({"b": ["a"]}, {"kind": "slot"})
    os.unlink(workspace.queue)
    teller.show(queue, {"gpu": None, "cpu": {"kind": "slot"}})
    assert not os.path.exists(workspace.queue)
    teller.show(queue, {"gpu": None, "cpu": None})
    assert os.path.exists(workspace.queue)


def test_a_long_queue_is_told_of_once_a_second(workspace: Workspace) -> None:
    queue, teller = Queue(), board.Board(workspace)
    for number in range(board.SHORT + 2):
        queue.add(Waiting(f"r{number}", 1.0, 0))
    teller.show(queue, {"cpu": None})
    os.unlink(workspace.queue)
    queue.discard("r0")
    teller.show(queue, {"cpu": None})
    assert not os.path.exists(workspace.queue)


def test_where_a_run_stands_and_what_it_waits_for() -> None:
    head = {"kind": "slot", "holders": ["z"]}
    body = {
        "lines": {"cpu": [["a", 0, 1.0], ["b", 0, 2.0]], "gpu": []},
        "held": {"c": ["a"]},
        "heads": {"cpu": head, "gpu": None},
    }
    assert told(body, "a", 1.0) == (1, head)
    assert told(body, "b", 2.0) == (2, {"kind": "order", "behind": "a"})
    assert told(body, "b", 2.0, gone=("a",)) == (1, head)
    assert told(body, "c", 3.0) == (None, {"kind": "after", "runs": ["a"]})
    assert told(body, "g", 3.0, gpus=1) == (1, None)
    assert told({}, "a", 1.0) == (1, None)


def test_a_pause_and_what_holds_up_all_come_first() -> None:
    drained = {"kind": "drained", "since_at": 5.0}
    body = {"lines": {"cpu": [["a", 0, 1.0], ["b", 0, 2.0]]}, "heads": {"cpu": drained}}
    assert told(body, "b", 2.0) == (2, drained)
    until = time.time() + 30
    position, waits = told(body, "a", 1.0, {"not_before": until, "cause": {"text": "exit 1"}})
    assert (position, waits) == (1, {"kind": "pause", "until_at": until, "why": "exit 1"})


@pytest.mark.parametrize(
    ("waits", "words"),
    [
        ({"kind": "order", "behind": "a"}, "next after a"),
        ({"kind": "slot", "holders": ["b"]}, "waits for a slot"),
        ({"kind": "after", "runs": ["a", "b"]}, "after a, b"),
        ({"kind": "drained"}, "the host is drained"),
        ({"kind": "disk"}, "the disk is below its reserve"),
        ({"kind": "pause", "why": "exit 1"}, "pauses after: exit 1"),
        ({"kind": "gpus", "want": 1}, "waits for 1 GPU"),
        (
            {"kind": "gpus", "want": 2, "query_failed": "nvidia-smi exits 9"},
            "waits for 2 GPUs: nvidia-smi exits 9",
        ),
        (
            {
                "kind": "gpus",
                "want": 3,
                "holders": [{"run": "run-9"}, {"run": "run-8"}, {"run": "run-9"}],
                "strangers": [{"index": 2, "used_mib": 9000}, {"index": 3, "used_mib": None}],
            },
            "waits for 3 GPUs: run-8's, run-9's, GPU 2 is in use by others (9000 MiB), "
            "GPU 3 is in use by others",
        ),
        ({"kind": "error", "why": "no room"}, "no room"),
    ],
)
def test_why_a_run_waits(waits: dict[str, object], words: str) -> None:
    assert board.in_words(waits) == words
