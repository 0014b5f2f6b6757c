"""A part of the worker program, run in memory by a Python that has nothing of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner import host_program
from runner.carriers import Session, open_session
from runner.errors import ProvisionError
from runner.model import Host


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with open_session(Host("box")) as opened:
        yield opened


def run(session: Session, module: str, python: str = sys.executable, **request: object) -> object:
    return host_program.run(session, "box", python, module, request, timeout_s=60)


def test_it_says_what_it_did_and_writes_nothing_else(session: Session, tmp_path: Path) -> None:
    told = run(session, "venv_down", key="venv-x", workspace=f"{tmp_path}/ws", purge=True)
    assert told == {"there": False, "removed": []}
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_has_its_kind_and_words(session: Session, tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.write_text("a file")
    request = {"digest": "d", "system": False, "lines": [], "env": {}, "key": "venv-x"}
    more = {"pin": "p", "default": True, "record": {}, "anew": False}
    with pytest.raises(host_program.Refusal) as caught:
        run(session, "venv_make", workspace=str(workspace), **request, **more)
    assert caught.value.kind == "workspace"
    assert str(workspace) in caught.value.said[0]
    assert list(tmp_path.iterdir()) == [workspace]


def test_one_that_breaks_off_is_told_in_a_line(session: Session) -> None:
    with pytest.raises(ProvisionError, match="broke off") as caught:
        run(session, "venv_down")
    assert caught.value.advice == ("KeyError: 'workspace'",)
    with pytest.raises(ProvisionError, match="/nowhere/python3"):
        run(session, "venv_down", python="/nowhere/python3")


def test_its_result_is_no_line_of_progress(session: Session, tmp_path: Path) -> None:
    lines: list[str] = []
    host_program.run(
        session,
        "box",
        sys.executable,
        "venv_down",
        {"key": "venv-x", "workspace": f"{tmp_path}/ws", "purge": False},
        timeout_s=60,
        on_line=lines.append,
    )
    assert lines == []
