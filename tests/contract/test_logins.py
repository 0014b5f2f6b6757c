"""Logging in: first contact, locked keys, odd shells, how often, and what is left of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.carriers import Carrier, open_carrier, open_session
from runner.carriers.host_keys import parse_key
from runner.carriers.session import ChildSession
from runner.model import Host
from tests.helpers.carried import go_through_a_proxy, logins, running, say
from tests.helpers.extra_sshd import extra_sshd
from tests.helpers.wait import wait_for
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig

BANNERS = {
    ".bashrc": "echo HELLO; printf x >&2; stty sane\n",
    ".profile": "echo PROFILE; printf y >&2\n",
    ".zshenv": "echo HELLO; printf x >&2\n",
    ".cshrc": "echo HELLO\nsetenv CSHRC read\n",
    ".config/fish/config.fish": "echo HELLO; echo x >&2; stty sane\n",
}


@pytest.fixture
def me(me: Operator) -> Operator:
    made = me.runner("init")
    assert made.returncode == 0, made.stderr.decode()
    return me


def add_host(me: Operator, name: str, target: str) -> None:
    (me.project / "hosts" / f"{name}.toml").write_text(f'ssh = "{target}"\n')


# what a script meets


def test_first_contact_in_a_script_is_refused_with_the_command_that_accepts(
    me: Operator, sshd: RigHost
) -> None:
    me.trust()
    add_host(me, "w", "rig-plain")
    done = me.runner("submit", "host=w", "--", "true", limit_s=40)
    said = done.stderr.decode()
    told = parse_key(sshd.host_key).fingerprint
    assert (done.returncode, done.stdout) == (3, b"") and told in said
    command = f"runner host rekey w --fingerprint {told}"
    assert f"\n    {command}\n" in said
    accepted = me.runner(*command.split()[1:], limit_s=40)
    assert accepted.returncode == 0, accepted.stderr.decode()
    assert sshd.host_key in (me.project / "hosts" / "w.toml").read_text()
    assert me.known_hosts.read_bytes() == b""
    after = me.runner("submit", "host=w", "--", "true", limit_s=40)
    assert b"host key" not in after.stderr  # now it gets as far as Docker, which this host has not


def test_a_locked_key_under_cron_is_named_in_seconds(me: Operator, sshd: RigHost) -> None:
    key = me.ssh_folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", key], check=True)
    add_host(me, "w", "rig-plain")
    bare = [f"{name}={me.env[name]}" for name in ("HOME", "PATH", "XDG_RUNTIME_DIR")]
    argv = ["env", "-i", *bare, sys.executable, "-m", "runner", "submit", "host=w", "--", "true"]
    done = me.run(argv, limit_s=40)
    assert done.returncode == 3
    assert b"id_ed25519 (locked by a passphrase, and no agent holds it)" in done.stderr


# login shells


@pytest.fixture
def noisy(sshd: RigHost) -> Iterator[RigHost]:
    """The host with start-up files of every shell that print."""
    passwd = sshd.folder / "etc" / "passwd"
    before = passwd.read_text()
    for name, text in BANNERS.items():
        path = sshd.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sshd.run(["chown", "-R", f"{sshd.user}:", sshd.home])
    try:
        yield sshd
    finally:
        passwd.write_text(before)
        for name in BANNERS:
            (sshd.home / name).unlink()


def read_until(carrier: Carrier, mark: bytes) -> bytes:
    """What comes after the mark, as far as it came with it."""
    data = b""
    while mark not in data:
        piece = carrier.read(1 << 16)
        assert piece, data
        data += piece
    return data.partition(mark)[2]


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "tcsh", "csh"])
def test_streams_are_exact_whatever_shell_the_account_has(
    me: Operator, noisy: RigHost, shell: str, transport: str
) -> None:
    path = Path("/usr/bin") / shell
    if not path.exists():
        pytest.skip(f"left out: {shell}: not installed")
    passwd = noisy.folder / "etc" / "passwd"
    passwd.write_text(passwd.read_text().replace(f"{noisy.home}:/bin/bash", f"{noisy.home}:{path}"))
    host = Host("h", ssh="rig-plain", transport=transport)
    data = os.urandom(300_000) + bytes(range(256))
    carrier = open_carrier(host, ["sh", "-c", "echo 'it'\\''s on'; exec cat"])
    got = read_until(carrier, b"it's on\n")
    carrier.write(data)
    carrier.close_write()
    while piece := carrier.read(1 << 16):
        got += piece
    assert got == data and carrier.failure() is None
    carrier.close()
    with open_session(host) as session:
        done = session.run(["sh", "-c", "cat; echo err >&2; exit 7"], input=data, timeout_s=30)
    assert (done.status, done.stdout, done.stderr) == (7, data, b"err\n")


def test_nothing_needs_sftp(me: Operator, sshd: RigHost, transport: str) -> None:
    with extra_sshd(sshd, "no-sftp", Subsystem="") as server:
        host = Host("h", ssh=server.target, host_key=sshd.host_key, transport=transport)
        assert say(host) == b"in\n"
        with open_session(host) as session:
            assert session.run(["cat"], input=b"x" * 100_000, timeout_s=20).stdout == b"x" * 100_000
        assert "subsystem" not in server.said()


# how many logins


def test_a_command_logs_in_once_through_a_gateway_and_the_next_not_at_all(
    me: Operator, rig: Rig
) -> None:
    add_host(me, "g", "rig-gpu")
    made = []
    for _ in range(2):
        before = logins(rig.login), logins(rig.gpu)
        done = me.runner("ps", "host=g", limit_s=60)
        # whether its Docker runs is another test's affair
        assert b"Docker does not run" in done.stderr or b"there is no worker" in done.stderr
        made.append((logins(rig.login) - before[0], logins(rig.gpu) - before[1]))
    assert made == [(1, 1), (0, 0)]


def test_the_users_own_connection_to_a_gateway_is_used(
    me: Operator, rig: Rig, sshd: RigHost
) -> None:
    """As where the gateway asks for a second factor, which nobody can give us."""
    own = f"Host rig-login\n ControlPath {me.home}/own\n ControlMaster no\n"
    me.ssh_config.write_text(own + me.ssh_config.read_text())
    master = me.popen([me.bin / "ssh", "-o", "ControlMaster=yes", "-N", "rig-login"])
    try:
        wait_for((me.home / "own").exists, 20, "the user's own connection")
        refused = "Host rig-login\n PubkeyAuthentication no\n"  # no new login succeeds
        me.ssh_config.write_text(refused + me.ssh_config.read_text())
        before = logins(rig.login)
        assert say(Host("h", ssh="rig-gpu")) == b"in\n"
        with open_session(Host("h", ssh="rig-gpu")) as session:
            assert isinstance(session, ChildSession)
            assert session.run(["true"], timeout_s=20).status == 0
        assert logins(rig.login) == before
    finally:
        master.kill()
        master.wait()


def test_ten_commands_leave_no_proxy_command_behind(
    me: Operator, sshd: RigHost, transport: str
) -> None:
    mark = f"runner-ten-{os.getpid()}"
    go_through_a_proxy(me, "rig-plain", mark)
    host = Host("h", ssh="rig-plain", transport=transport)
    assert [say(host) for _ in range(10)] == [b"in\n"] * 10
    assert running(mark) <= 1  # that of the one connection that is kept for 60 s
    for path in (me.runtime / "runner").glob("c-" + "?" * 16):
        subprocess.run([me.bin / "ssh", "-O", "exit", "-S", path, "x"], check=True)
    wait_for(lambda: running(mark) == 0, 10, "the proxy command to end")
