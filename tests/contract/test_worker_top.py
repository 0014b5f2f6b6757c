"""What the worker tells `top` of cards, slots and runs, and what it does not read twice."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpus
import paths
import pytest
import records
from verbs import top

from tests.helpers.wait import wait_for
from tests.rig.gpus import FakeGpus, place_tool


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpus]:
    made = FakeGpus(tmp_path / "gpus")
    made.set_cards(2)
    place_tool(tmp_path / "bin", made.folder)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def workspace(tmp_path: Path) -> paths.Workspace:
    made = paths.Workspace(str(tmp_path / "ws"))
    made.make()
    return made


def put(workspace: paths.Workspace, run: str, state: str, **told: Any) -> None:
    of = workspace.run(run)
    os.makedirs(of.folder, exist_ok=True)
    records.write(of.spec, {"id": run, "accepted_at": 1.0, "project": {"id": "p-1"}})
    records.write(of.state, {"state": state, "attempt": 1, **told})


def names(workspace: paths.Workspace) -> list[str]:
    return [spec["id"] for spec, _ in top._recent(workspace)]


def test_runs_that_live_and_those_that_ended_just_now(
    workspace: paths.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    put(workspace, "a", "running")
    put(workspace, "b", "ended", outcome="done", ended_at=now - top.RECENT_S - 1)
    put(workspace, "c", "ended", outcome="done", ended_at=now)
    put(workspace, "d", "queued")
    put(workspace, "e", "ended", outcome="failed")
    monkeypatch.setattr(top, "_ended", {})
    assert names(workspace) == ["a", "c", "d"]
    read = []
    real = top.view.read_pair
    monkeypatch.setattr(
        top.view, "read_pair", lambda of: read.append(os.path.basename(of.folder)) or real(of)
    )
    assert names(workspace) == ["a", "c", "d"]
    assert sorted(read) == ["a", "c", "d"], "what ended long ago is not read again"
    # somebody resumed one, and the dispatcher has taken up another
    os.makedirs(workspace.run("b").resumes)
    Path(workspace.run("b").resumes, "1.json").write_text("{}")
    put(workspace, "e", "running")
    assert names(workspace) == ["a", "b", "c", "d", "e"]
    os.rename(workspace.run("a").folder, f"{workspace.root}/away")
    assert names(workspace) == ["b", "c", "d", "e"]


def test_how_busy_cards_are(machine: FakeGpus) -> None:
    load = top.Load()
    load.look()
    assert [(card["index"], card["load_percent"]) for card in load.cards] == [(0, 0), (1, 0)]
    assert load.problem is None and load.at is not None
    at = load.at
    load.look()
    assert load.at == at, "nvidia-smi is not asked each time"


def test_a_card_that_does_not_tell_its_load() -> None:
    text = "0, GPU-8f, 81920, 3, 550.54.15, [N/A], NVIDIA H100, two\n"
    (card,) = gpus.parse(text, with_load=True)
    assert (card["load_percent"], card["name"]) == (None, "NVIDIA H100, two")
    assert (
        gpus.parse("0, GPU-8f, 81920, 3, 550.54.15, 97 %, H100", with_load=True)[0]["load_percent"]
        == 97
    )


def test_an_nvidia_smi_that_hangs_holds_up_nobody(
    machine: FakeGpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = top.Load()
    load.look()
    monkeypatch.setattr(top, "WAIT_S", 0.2)
    load._pause_s = 0.0
    machine.slow_down(60)
    load.look()
    assert load._query is not None and len(load.cards) == 2, "the last answer stands"
    load.look()
    load._query.give_up()
    wait_for(load._is_over, 10, "its end")


def test_an_nvidia_smi_that_fails_is_said(machine: FakeGpus) -> None:
    machine.fail("Failed to initialize NVML")
    load = top.Load()
    load.look()
    assert (load.problem, load.cards) == ("nvidia-smi exits 255", [])


def test_no_nvidia_smi_is_no_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    load = top.Load()
    load.look()
    assert (load.problem, load.cards) == (None, []) and load.at is not None
