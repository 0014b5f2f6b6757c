"""What only OpenSSH's client does: one connection for many commands, the user's own sockets."""

from __future__ import annotations

import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runner.carriers import open_carrier, open_session
from runner.carriers.session import ChildSession
from runner.model import Host
from tests.helpers.carried import logins, say
from tests.helpers.wait import wait_for
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator

HOST = Host("h", ssh="rig-plain", transport="openssh")


def test_commands_share_one_login_through_a_socket_of_ours(me: Operator, sshd: RigHost) -> None:
    before = logins(sshd)
    for _ in range(3):
        assert say(HOST) == b"in\n"
    with open_session(HOST) as session:
        assert session.run(["true"], timeout_s=20).status == 0
    assert logins(sshd) - before == 1
    (path,) = (p for p in (me.runtime / "runner").glob("c-*") if p.suffix != ".lock")
    assert (me.runtime / "runner").stat().st_mode & 0o777 == 0o700
    subprocess.run([me.bin / "ssh", "-O", "exit", "-S", path, "x"], check=True)


def test_a_socket_of_the_users_own_is_used(me: Operator, sshd: RigHost) -> None:
    path = me.home / "own"
    own = f"Host rig-plain\n ControlPath {path}\n ControlMaster no\n"
    me.ssh_config.write_text(own + me.ssh_config.read_text())
    master = me.popen([me.bin / "ssh", "-o", "ControlMaster=yes", "-N", "rig-plain"])
    try:
        wait_for(path.exists, 20, "the user's own connection")
        before = logins(sshd)
        assert say(HOST) == b"in\n"
        with open_session(Host("h", ssh="rig-plain")) as session:
            assert isinstance(session, ChildSession)
            assert session.run(["true"], timeout_s=20).status == 0
        assert logins(sshd) == before
        assert not list((me.runtime / "runner").glob("c-*"))
    finally:
        master.kill()
        master.wait()


def test_local_commands_of_the_configuration_are_not_run(me: Operator, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    lax = f"Host *\n PermitLocalCommand yes\n LocalCommand touch {ran}\n RemoteCommand false\n"
    me.ssh_config.write_text(lax + me.ssh_config.read_text())
    assert say(HOST) == b"in\n"
    assert not ran.exists()


def test_a_closed_stream_leaves_no_program_behind(me: Operator, sshd: RigHost) -> None:
    carrier = open_carrier(HOST, ["sh", "-c", "echo on; exec cat runner-mark -"])
    assert carrier.read(10) == b"on\n"
    carrier.close()

    def is_gone() -> bool:
        return not [row for row in sshd.processes() if "runner-mark" in row[2]]

    wait_for(is_gone, 10, "the program to end")


def test_twenty_commands_at_once_all_succeed_at_a_server_of_ordinary_limits(
    me: Operator, sshd: RigHost
) -> None:
    config = sshd.folder / "ordinary"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = (sshd.folder / "sshd_config").read_text()
    text = text.replace(f"Port {sshd.spec.port}", f"Port {port}").replace("/run/sshd.pid", "none")
    config.write_text(text.replace("MaxStartups 200", "MaxStartups 10:30:100"))
    argv = sshd.inside(["/usr/sbin/sshd", "-D", "-f", config, "-E", sshd.folder / "ordinary.log"])
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens, 20, "sshd")
        host = Host("h", ssh=f"ssh://{sshd.user}@127.0.0.1:{port}", host_key=sshd.host_key)
        with ThreadPoolExecutor(20) as pool:
            assert list(pool.map(say, [host] * 20)) == [b"in\n"] * 20
    finally:
        process.kill()
        process.wait()
