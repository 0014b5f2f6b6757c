"""A `venv` host read, made and taken away over a session: this machine, in a home of its own."""

from __future__ import annotations

import dataclasses
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


def make(there: VenvHost) -> str:
    """Without a package, since nothing is fetched here."""
    facts = there.look()
    plan = there.plan(facts, default=True, rebuild=False)
    lines: list[str] = []
    bare = dataclasses.replace(plan, lines=())
    return there.make(facts, bare, anew=False, on_line=lines.append)


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


def test_without_a_python_nothing_can_be_done(there: VenvHost) -> None:
    there.host = dataclasses.replace(there.host, python="/nowhere/python3")
    facts = there.look()
    assert facts.pythons == ()
    with pytest.raises(ProvisionError, match="there is no Python"):
        there.take_away(facts, purge=False)
    with pytest.raises(ProvisionError, match="/nowhere/python3 is not there"):
        there.plan(facts, default=True, rebuild=False)
