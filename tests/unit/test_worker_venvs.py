"""Environments in an account: which is whole, which is used, which may go."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import venv_make
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


@pytest.mark.parametrize("how", ["dangling", "removed"])
def test_one_whose_python_is_gone_is_not_whole(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    python = state / "venvs/a/bin/python3"
    python.unlink()
    if how == "dangling":
        python.symlink_to(tmp_path / "base/python3.11")
    assert not venvs.is_whole(str(state / "venvs/a"))
    monkeypatch.setenv("RUNNER_VENV", str(state / "workers/venv-x"))
    with pytest.raises(venvs.Missing) as caught:
        venvs.python_for({"image": "one"})
    said = str(caught.value)
    assert (
        said.startswith("the environment of image one has lost its Python: ") and "\n" not in said
    )
    assert str(tmp_path / "base/python3.11" if how == "dangling" else python) in said
    assert said.endswith("provision it again")


def test_one_that_was_made_aside_serves_all_of_its_digest(state: Path) -> None:
    assert venvs.whole_of(str(state), "a") == str(state / "venvs/a")
    (state / "venvs/a/bin/python3").unlink()
    assert venvs.whole_of(str(state), "a") is None
    (state / "venvs/b").rename(state / "venvs/a-0123abcd")
    assert venvs.whole_of(str(state), "a") == str(state / "venvs/a-0123abcd")


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


def request_of(path: Path, **more: object) -> dict[str, Any]:
    return {"digest": path.name, "system": False, "lines": ["six==1"], "env": {}, **more}


def test_the_making_uses_no_folder_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "venvs/d", []

    def run(argv: list[str], env: dict[str, str], limit_s: float) -> tuple[int, list[str]]:
        assert Path(env["TMPDIR"]).is_dir()
        seen.append(env["TMPDIR"])
        (path / "bin").mkdir(exist_ok=True)
        return 0, []

    monkeypatch.setattr(venv_make, "_run", run)
    env = {"TMPDIR": str(tmp_path / "elsewhere")}
    venv_make._make_environment(str(path), request_of(path, env=env))
    assert seen == [str(path / "tmp")] * 2 and not (path / "tmp").exists()
    assert (path / venvs.MARK).exists()


@pytest.mark.parametrize(
    ("status", "said", "kind", "told"),
    [
        (
            -9,
            ["WARNING: Retrying (Retry(total=1)): /simple"],
            "pip",
            "pip was ended by signal 9 (SIGKILL)",
        ),
        (
            2,
            ["ERROR: Exception:", "Traceback (most recent call last):", '  File "x", line 1, in f']
            + ["    f()", "pip.InvalidRequirement: Expected a marker", "    six; import os"],
            "pip",
            "pip.InvalidRequirement: Expected a marker",
        ),
        (1, ["ERROR: No matching distribution found for six==1"], "no-package", "six==1"),
    ],
)
def test_why_pip_ended_is_told_and_nothing_stays(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    said: list[str],
    kind: str,
    told: str,
) -> None:
    path = tmp_path / "venvs/d"

    def run(argv: list[str], env: dict[str, str], limit_s: float) -> tuple[int, list[str]]:
        (path / "bin").mkdir(exist_ok=True)
        return (status, said) if "pip" in argv else (0, [])

    monkeypatch.setattr(venv_make, "_run", run)
    with pytest.raises(venv_make.Failed) as caught:
        venv_make._make_environment(str(path), request_of(path))
    assert (caught.value.kind, caught.value.said) == (kind, (told,))
    assert list((tmp_path / "venvs").iterdir()) == []


def test_one_at_a_time_makes_or_removes(state: Path) -> None:
    with venvs.locked(str(state)) as first, venvs.locked(str(state), 0.1) as second:
        assert (first, second) == (True, False)
