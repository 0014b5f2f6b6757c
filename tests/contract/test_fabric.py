"""What only Fabric is for: where there is no ssh client."""

from __future__ import annotations

import socket
import subprocess

import pytest

from runner.carriers import open_carrier, open_session
from runner.carriers.fabric import FabricCarrier, FabricSession
from runner.carriers.fabric_link import NotHonoured
from runner.errors import AuthRefused, HostKeyError
from runner.model import Host
from tests.helpers.wait import wait_for
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator


def test_without_an_ssh_client_a_pinned_host_is_reached(
    me: Operator, sshd: RigHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", me.without_ssh()["PATH"])
    target = f"ssh://{sshd.user}@{sshd.spec.address}:{sshd.spec.port}"
    host = Host("h", ssh=target, host_key=sshd.host_key)
    carrier = open_carrier(host, ["echo", "in"])
    assert isinstance(carrier, FabricCarrier) and carrier.read(10) == b"in\n"
    carrier.close()
    with open_session(host) as session:
        assert isinstance(session, FabricSession)
        assert session.run(["echo", "in"], timeout_s=20).text == "in"
    with pytest.raises(HostKeyError, match="not known"):
        open_carrier(Host("h", ssh=target), ["true"])


def connections(sshd: RigHost) -> int:
    return sshd.sshd_log.read_text().count("Connection from")


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("CertificateFile ~/.ssh/id-cert.pub", "CertificateFile=~/.ssh/id-cert.pub"),
        ("RevokedHostKeys /etc/krl", "RevokedHostKeys=/etc/krl"),
        ("MACs hmac-sha2-512", "macs=hmac-sha2-512"),
        ("ControlPath ~/.ssh/cm-%C", "ControlPath"),
    ],
)
def test_what_cannot_be_honoured_is_named_before_anything_is_sent(
    me: Operator, sshd: RigHost, lines: str, name: str
) -> None:
    me.ssh_config.write_text(f"Host *\n {lines}\n" + me.ssh_config.read_text())
    before = connections(sshd)
    with pytest.raises(NotHonoured) as caught:
        open_session(Host("h", ssh="rig-plain", transport="fabric"))
    assert name in caught.value.message and caught.value.status == 2
    assert connections(sshd) == before


def test_a_key_that_is_gone_is_named(me: Operator, sshd: RigHost) -> None:
    key = me.home / ".ssh/id_ed25519"
    public = subprocess.run(["ssh-keygen", "-y", "-f", key], capture_output=True, check=True).stdout
    key.with_suffix(".pub").write_bytes(public)
    key.unlink()
    with pytest.raises(AuthRefused, match="id_ed25519 .the file is gone, only its .pub") as caught:
        open_session(Host("h", ssh="rig-plain", transport="fabric"))
    assert caught.value.advice[-1].startswith("put the key file back")


def test_a_login_that_asks_for_more_than_a_key_is_told(me: Operator, sshd: RigHost) -> None:
    config = sshd.folder / "two-factors"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = (sshd.folder / "sshd_config").read_text()
    text = text.replace(f"Port {sshd.spec.port}", f"Port {port}").replace("/run/sshd.pid", "none")
    text = text.replace(
        "AuthenticationMethods publickey", "AuthenticationMethods publickey,password"
    )
    config.write_text(text.replace("PasswordAuthentication no", "PasswordAuthentication yes"))
    argv = sshd.inside(["/usr/sbin/sshd", "-D", "-f", config, "-E", sshd.folder / "two.log"])
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens, 20, "sshd with two factors")
        host = Host(
            "h",
            ssh=f"ssh://{sshd.user}@127.0.0.1:{port}",
            host_key=sshd.host_key,
            transport="fabric",
        )
        with pytest.raises(AuthRefused) as caught:
            open_session(host)
        assert "the host asks for more than a key" in caught.value.advice
    finally:
        process.kill()
        process.wait()
