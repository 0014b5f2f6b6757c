"""Environments in an account: which is whole, which is used, which may go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import venvs


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """`~/.local/state/runner` with the environments `a` (of pin `one`), `b` and half-made `c`."""
    own = tmp_path / "workers/venv-x"
    (own / "pins").mkdir(parents=True)
    for name in "abc":
        (tmp_path / "venvs" / name / "bin").mkdir(parents=True)
        (tmp_path / "venvs" / name / "bin/python3").symlink_to(sys.executable)
        if name != "c":
            (tmp_path / "venvs" / name / venvs.MARK).write_text("{}")
    (own / "pins/one").symlink_to("../../../venvs/a")
    (own / "pins/half").symlink_to("../../../venvs/c")
    (own / "current").symlink_to("../../venvs/a")
    return tmp_path


def names(found: list[str]) -> list[str]:
    return [Path(path).name for path in found]


def test_a_run_gets_the_python_of_its_image(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert venvs.python_for({"image": "one"}) is None  # another runtime
    monkeypatch.setenv("RUNNER_VENV", str(state / "workers/venv-x"))
    monkeypatch.setenv("RUNNER_VENV_PIN", "one")
    assert venvs.python_for({}) == str(state / "venvs/a/bin/python3")
    assert venvs.image_for({}) == "one" and venvs.image_for({"image": "two"}) == "two"


@pytest.mark.parametrize("pin", ["half", "none"])
def test_an_environment_that_is_not_there_is_named(
    state: Path, monkeypatch: pytest.MonkeyPatch, pin: str
) -> None:
    monkeypatch.setenv("RUNNER_VENV", str(state / "workers/venv-x"))
    monkeypatch.setenv("RUNNER_VENV_PIN", pin)
    with pytest.raises(venvs.Missing, match=f"image {pin} is not there"):
        venvs.python_for({})


def test_what_no_worker_names_may_go_unless_a_process_is_in_it(state: Path) -> None:
    assert names(venvs.unused(str(state))) == ["b"]
    python = state / "venvs/b/bin/python3"
    argv = [python, "-c", "print(flush=True); input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdout.readline()  # until its program runs, a process shows no command line
        assert venvs.unused(str(state)) == []
        child.stdin.write(b"\n")
        child.stdin.flush()
    assert names(venvs.unused(str(state))) == ["b"]


def test_one_set_aside_is_whole_no_more_under_its_name(state: Path) -> None:
    aside = venvs.set_aside(str(state / "venvs/b"))
    assert not (state / "venvs/b").exists()
    assert names(venvs.unused(str(state))) == [Path(aside).name]
    venvs.remove(aside)
    assert venvs.unused(str(state)) == []


def test_one_at_a_time_makes_or_removes(state: Path) -> None:
    with venvs.locked(str(state)) as first, venvs.locked(str(state), 0.1) as second:
        assert (first, second) == (True, False)
