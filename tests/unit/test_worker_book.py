"""The dispatcher's book: one writer of state.json, and what is kept in memory."""

from __future__ import annotations

import os
from pathlib import Path

import book
import pytest
import records
from paths import RunPaths, Workspace


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    workspace = Workspace(str(tmp_path / "ws"))
    workspace.make()
    paths = workspace.run("cmd-1")
    os.makedirs(paths.resumes)
    records.write(paths.spec, {"id": "cmd-1", "accepted_at": 4.0})
    return paths


@pytest.fixture
def kept(run: RunPaths) -> book.Book:
    return book.Book(Workspace(os.path.dirname(os.path.dirname(run.folder))))


def test_a_new_run_gets_its_first_state_on_disk(run: RunPaths, kept: book.Book) -> None:
    found = kept.read("cmd-1")
    assert found is not None
    state = records.read(run.state)
    assert state is not None
    assert (state["state"], state["attempt"], state["submitted_at"]) == ("queued", 0, 4.0)
    assert os.path.exists(run.state + ".spare")
    assert kept.read("nobody") is None


def test_only_steps_of_the_state_machine_are_written(run: RunPaths, kept: book.Book) -> None:
    spec, state = kept.read("cmd-1") or ({}, {})
    with pytest.raises(ValueError, match="queued cannot become running"):
        kept.put(spec, state, state="running")
    assert (records.read(run.state) or {})["state"] == "queued"


def test_an_end_takes_its_secrets_with_it(run: RunPaths, kept: book.Book) -> None:
    os.makedirs(run.secrets)
    Path(run.secrets, "KEY").write_text("x")
    spec, state = kept.read("cmd-1") or ({}, {})
    kept.end(spec, state, {"kind": "dependency", "text": "t"})
    ended = records.read(run.state) or {}
    assert (ended["state"], ended["outcome"]) == ("ended", "skipped")
    assert ended["ended_at"] > 0
    assert not os.path.exists(run.secrets)
    assert not os.path.exists(run.state + ".spare")


def test_a_resumed_run_begins_its_counts_anew_but_not_its_attempts(
    run: RunPaths, kept: book.Book
) -> None:
    spec, state = kept.read("cmd-1") or ({}, {})
    kept.put(spec, state, state="starting", attempt=1, restarts_used=3, ran_s=50.0)
    kept.end(spec, state, {"kind": "exit", "text": "exit 1"})
    records.write(os.path.join(run.resumes, "1.json"), {})
    kept.resume(run, spec, state)
    again = records.read(run.state) or {}
    assert (again["state"], again["outcome"], again["cause"]) == ("queued", None, None)
    assert (again["attempt"], again["restarts_used"], again["ran_s"]) == (1, 0, 0.0)
    assert again["resumed"] == 1


def test_outcomes() -> None:
    kinds = [None, "cancelled", "dependency", "exit", "nan"]
    outcomes = [book.outcome_of(None if kind is None else {"kind": kind}) for kind in kinds]
    assert outcomes == ["done", "cancelled", "skipped", "failed", "failed"]
