"""What doctor finds on the operator's own side, with real keys and a real agent."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.carriers.ssh_config import Hop, Route, SshConfig, Target
from runner.doctor.own_side import read_here
from runner.model import Host

HOST = Host("gpu1", ssh="drl@gpu1")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for tool in ("ssh-keygen", "ssh-agent", "ssh-add"):
        if shutil.which(tool) is None:
            pytest.skip(f"left out: {tool}: not installed")
    folder = Path(tempfile.mkdtemp(prefix="dh-"))  # short, for the agent's socket
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    try:
        yield folder
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


@pytest.fixture
def agent(home: Path) -> Iterator[str]:
    socket = str(home / "agent")
    child = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            if os.path.exists(socket):
                break
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.05)
        yield socket
    finally:
        child.terminate()
        child.wait()


def make_key(path: Path, passphrase: str = "") -> str:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", path.name, "-f", str(path)]
    subprocess.run(argv, check=True)
    return str(path)


def route(*files: str, agent: str | None = None, only: bool = False) -> Route:
    config = SshConfig("gpu1", 22, "drl", identity_files=files, agent=agent, identities_only=only)
    return Route("gpu1", (Hop("gpu1", Target("gpu1", "drl"), config),))


def test_modes_passphrases_and_what_the_agent_holds(home: Path, agent: str) -> None:
    plain, locked = make_key(home / "plain"), make_key(home / "locked", "secret")
    held, half = make_key(home / "held"), make_key(home / "half")
    os.chmod(plain, 0o644)
    for path in (held, half):
        subprocess.run(
            ["ssh-add", "-q", path], env={**os.environ, "SSH_AUTH_SOCK": agent}, check=True
        )
    os.unlink(half)
    found = read_here(HOST, route(plain, locked, held, f"{half}.pub", agent=agent, only=True))
    assert found.has_ssh and found.identities_only and found.agent_keys == 2
    assert [(key.mode, key.locked, key.in_agent) for key in found.keys] == [
        (0o644, False, False),
        (0o600, True, False),
        (0o600, False, True),
        (None, False, True),
    ]


def test_without_an_agent_or_with_one_that_is_gone(home: Path) -> None:
    locked = make_key(home / "locked", "secret")
    for where in (None, str(home / "gone")):
        found = read_here(HOST, route(locked, agent=where))
        assert found.agent_keys == 0
        assert [(key.locked, key.in_agent) for key in found.keys] == [(True, False)]


def test_what_is_no_key_at_all_breaks_nothing(home: Path) -> None:
    junk, folder = home / "junk", home / "folder"
    junk.write_bytes(b"\x00\xff not a key")
    folder.mkdir()
    found = read_here(HOST, route(str(junk), str(folder), str(home / "missing")))
    assert [key.path for key in found.keys] == [str(junk), str(folder), str(home / "missing")]
    assert found.keys[2].mode is None
    assert not any(key.in_agent for key in found.keys)


def test_this_machine_needs_no_keys(home: Path) -> None:
    assert read_here(Host("local", runtime="local"), None).keys == ()


def test_a_home_where_nothing_can_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_here(HOST, None).home_problem is None
    for value, words in (("", "not set"), ("here", "no absolute path"), ("/proc", "written")):
        monkeypatch.setenv("HOME", value)
        assert words in str(read_here(HOST, None).home_problem)
    assert not list(home.iterdir())
