"""The ssh command: what every hop of every way is told."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from runner.carriers.ssh_command import ssh_argv
from runner.carriers.ssh_config import Hop, Route, SshConfig, Target

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
STRICT = {
    "-oBatchMode=yes",
    "-oStrictHostKeyChecking=yes",
    "-oUpdateHostKeys=no",
    "-oForwardAgent=no",
    "-oForwardX11=no",
    "-oPermitLocalCommand=no",
    "-oClearAllForwardings=yes",
    "-oNoHostAuthenticationForLocalhost=no",
}


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def hop(name: str, pinned: str | None = None, **settings: object) -> Hop:
    config = SshConfig(f"{name}.lab", 22, "drl", **settings)  # type: ignore[arg-type]
    return Hop(name, Target(name, "drl"), config, pinned, "hosts/x.toml")


def option(argv: list[str], name: str) -> str | None:
    found = [word for word in argv if word.startswith(f"-o{name}=")]
    return found[0].split("=", 1)[1] if found else None


def words_of_jump(argv: list[str]) -> set[str]:
    """The words of the ssh that makes the jump; quotes within them are sent as numbers."""
    command = (option(argv, "ProxyCommand") or "").replace("%%", "%")
    text = re.sub(r"\\0([0-7]{3})", lambda found: chr(int(found[1], 8)), command)
    if text != command:
        text = text.partition('"exec ')[2].rpartition('")"')[0]
    return set(shlex.split(text))


def test_every_hop_is_strict_and_forwards_nothing() -> None:
    argv = ssh_argv(Route("x", (hop("a"), hop("b"), hop("x"))))
    assert set(argv) >= STRICT
    assert words_of_jump(argv) >= STRICT
    inner = option(sorted(words_of_jump(argv)), "ProxyCommand")
    assert inner is not None and set(shlex.split(inner.replace("%%", "%"))) >= STRICT


def test_a_jump_is_an_ssh_of_ours_to_where_the_next_hop_is() -> None:
    argv = ssh_argv(Route("x", (hop("a"), hop("x"))))
    jump = shlex.split((option(argv, "ProxyCommand") or "").replace("%%", "%"))
    assert jump[0] == "ssh" and set(jump) >= STRICT
    assert jump[jump.index("-W") + 1] == "[x.lab]:22"
    assert jump[-4:] == ["-l", "drl", "--", "a"]
    assert argv[-4:] == ["-l", "drl", "--", "x"]


def test_without_a_jump_the_users_own_way_stands() -> None:
    assert option(ssh_argv(Route("x", (hop("x", proxy_command="nc h p"),))), "ProxyCommand") is None


def test_a_pin_alone_counts_for_its_hop() -> None:
    argv = ssh_argv(Route("x", (hop("x", pinned=KEY),)))
    file = Path(option(argv, "UserKnownHostsFile") or "")
    assert file.read_text() == f"* {KEY}\n"
    assert option(argv, "GlobalKnownHostsFile") == "/dev/null"
    assert option(ssh_argv(Route("x", (hop("x"),))), "UserKnownHostsFile") is None


def test_a_control_socket_of_the_users_own_is_left_to_them() -> None:
    assert option(ssh_argv(Route("x", (hop("x", own_control=True),))), "ControlPath") is None
    path = option(ssh_argv(Route("x", (hop("x"),))), "ControlPath")
    assert path is not None and len(path) < 100


def test_another_pin_or_configuration_is_another_connection() -> None:
    paths = {
        option(ssh_argv(Route("x", (each,))), "ControlPath")
        for each in (hop("x"), hop("x", pinned=KEY), hop("x", text="user other"))
    }
    assert len(paths) == 3


def test_only_options_this_ssh_knows_are_given() -> None:
    assert option(ssh_argv(Route("x", (hop("x"),))), "SessionType") is None
    knows = hop("x", options=frozenset({"sessiontype"}))
    assert option(ssh_argv(Route("x", (knows,))), "SessionType") == "default"
