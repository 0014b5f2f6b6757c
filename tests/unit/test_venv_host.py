"""A `venv` host read, made and taken away over a session: this machine, in a home of its own."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.carriers import open_session
from runner.errors import ProvisionError
from runner.model import Host, ImagePin
from runner.venv_host import VenvHost

PIN = ImagePin("small", "unused", "2.6.0", "none", "0", (), ("six==1.17.0",))


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VenvHost]:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # pip asks any rustc, and rustup's writes a file
    host = Host("box", runtime="venv", python=sys.executable)
    with open_session(host) as session:
        yield VenvHost(session, host, PIN, {PIN.name: PIN})


def make(there: VenvHost, *lines: str) -> str:
    """Without a package, since nothing is fetched here."""
    facts = there.look()
    plan = there.plan(facts, default=True, rebuild=False)
    said: list[str] = []
    bare = dataclasses.replace(plan, lines=lines)
    return there.make(facts, bare, anew=False, on_line=said.append)


def test_made_found_and_taken_away_with_nothing_else(there: VenvHost, tmp_path: Path) -> None:
    workspace = tmp_path / "runner"
    workspace.mkdir()
    workspace.chmod(0o755)
    (workspace / "thesis").write_text("mine")
    path = make(there)
    assert (Path(path) / "bin/python3").exists()
    assert workspace.stat().st_mode & 0o777 == 0o700
    facts = there.look()
    assert facts.whole == {Path(path).name}
    assert facts.links == {"current": Path(path).name, PIN.name: Path(path).name}
    assert there.plan(facts, default=True, rebuild=False).is_done
    (workspace / "runs").mkdir()
    assert there.take_away(facts, purge=False)["removed"] == ["records", "environment"]
    assert (workspace / "runs").exists()
    assert there.take_away(there.look(), purge=True)["removed"] == ["workspace"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["runner", "thesis"]
    assert workspace.stat().st_mode & 0o777 == 0o755


def test_one_whose_python_is_gone_is_made_anew_for_each_workspace(
    there: VenvHost, tmp_path: Path
) -> None:
    other = VenvHost(
        there._session, dataclasses.replace(there.host, workspace="~/two"), PIN, {PIN.name: PIN}
    )
    broken = make(there)
    assert make(other) == broken
    Path(broken, "bin/python3").unlink()
    facts = there.look()
    assert not facts.whole and there.plan(facts, default=True, rebuild=False).make
    path = make(there)
    # a run may live in what is left of the other
    assert path != broken and Path(path, "bin/python3").exists() and Path(broken).exists()
    assert other.plan(other.look(), default=True, rebuild=False).make
    assert make(other) == path
    assert other.plan(other.look(), default=True, rebuild=False).is_done
    assert not Path(broken).exists()
    assert there.plan(there.look(), default=True, rebuild=False).is_done


def test_what_was_half_made_goes_with_the_next_provision(there: VenvHost, tmp_path: Path) -> None:
    path = Path(make(there))
    assert there.look().unused == frozenset()
    half = path.with_name("half")
    (half / "tmp").mkdir(parents=True)
    facts = there.look()
    assert facts.unused == {"half"}
    lock = path.with_name("lock")
    with subprocess.Popen(
        ["flock", str(lock), "sh", "-c", "echo; read x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as maker:
        assert maker.stdin is not None and maker.stdout is not None
        maker.stdout.readline()
        assert there.tidy(facts) == 0 and half.exists()  # somebody makes it just now
        maker.stdin.write(b"\n")
        maker.stdin.close()
    assert there.tidy(facts) == 1 and not half.exists()
    assert path.exists() and there.look().unused == frozenset()


def test_a_workspace_that_cannot_be_made_is_told_and_nothing_is_left(
    there: VenvHost, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for workspace in ("~/file/x", "/proc/x"):
        there.host = dataclasses.replace(there.host, workspace=workspace)
        with pytest.raises(
            ProvisionError, match=r"box: its workspace .*/x cannot be made"
        ) as caught:
            make(there)
        assert "Errno" not in caught.value.message
        assert "workspace = " in caught.value.advice[-1]
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_pip_that_broke_is_told_in_a_line_and_nothing_stays(
    there: VenvHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ProvisionError, match="could not be made") as caught:
        make(there, "six; import os")
    assert "Invalid" in caught.value.advice[0], caught.value.advice
    assert [each.name for each in (tmp_path / ".local/state/runner/venvs").iterdir()] == ["lock"]


def test_without_a_python_nothing_can_be_done(there: VenvHost) -> None:
    there.host = dataclasses.replace(there.host, python="/nowhere/python3")
    facts = there.look()
    assert facts.pythons == ()
    with pytest.raises(ProvisionError, match="there is no Python"):
        there.take_away(facts, purge=False)
    with pytest.raises(ProvisionError, match="/nowhere/python3 is not there"):
        there.plan(facts, default=True, rebuild=False)
