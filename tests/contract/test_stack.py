"""What a live run's ranks are doing, and what a worker that lies about it brings about."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from runner import wire
from runner.app import runs, stack
from runner.app.context import Context
from runner.app.reports import RankStack
from runner.errors import WorkerError, WrongState
from runner.model import Project
from tests.helpers.hostile_worker import hostile_host
from tests.helpers.local_worker import LocalWorker, Notes

WAITS = """
import os, time
def standing_here():
    print("on", flush=True)
    while not os.path.exists(os.environ["GATE"]): time.sleep(0.01)
standing_here()
"""


def test_a_live_run_shows_where_it_stands_and_goes_on(local_worker: LocalWorker) -> None:
    gate = local_worker.root / "gate"
    run = local_worker.python(WAITS, words=(f"env.GATE={gate}",))
    local_worker.until_logged(run, "on")
    found = stack.stack(local_worker.ctx, local_worker.ref(run))
    assert {row.rank for row in found.ranks} == {0}
    if found.problem is None:  # py-spy is there and may look
        assert any("standing_here" in row.text for row in found.ranks)
    assert all(row.pid is not None and os.path.exists(f"/proc/{row.pid}") for row in found.ranks)
    gate.touch()
    assert local_worker.wait(run).status.outcome == "done"
    with pytest.raises(WrongState):
        stack.stack(local_worker.ctx, local_worker.ref(run))


def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any]) -> Any:
    host = hostile_host(tmp_path, monkeypatch.setenv, {"stack": [(wire.REP, reply)]})
    ctx = Context(Project(tmp_path, "p", "p"), {"bad": host}, Notes())
    return stack.stack(ctx, runs.RunRef("a-1", "bad"))


@pytest.mark.parametrize("reply", [{}, {"ranks": 3}, {"ranks": [3]}, {"problem": "no py-spy"}])
def test_no_stack_at_all_is_an_error_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any]
) -> None:
    with pytest.raises(WorkerError, match="bad: no stack of a-1 could be read: ") as caught:
        answer(tmp_path, monkeypatch, reply)
    assert str(reply.get("problem", "")) in str(caught.value)
    assert caught.value.advice == ("runner why a-1", "runner tail a-1")


def test_odd_rows_are_made_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"rank": 1, "pid": 2**80, "text": 3}, {"rank": "x", "pid": 7, "text": "f"}]
    found = answer(tmp_path, monkeypatch, {"ranks": rows, "problem": 5})
    assert found.ranks == (RankStack(0, 7, "f"), RankStack(1, None, ""))
    assert found.problem == "5"
