"""For every way to write known_hosts our verdict is OpenSSH's own, on both carriers."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.carriers import open_carrier
from runner.carriers.host_keys import key_algorithms, parse_key, read_known
from runner.carriers.key_scan import scan_key
from runner.carriers.ssh_config import read_route
from runner.errors import AuthRefused, HostKeyError, RunnerError
from runner.model import Host
from tests.helpers.wait import wait_for
from tests.rig.operator import Operator
from tests.rig.rig import Rig

TYPES = ("ed25519", "ecdsa", "rsa")


@dataclass(frozen=True)
class ManyKeys:
    """An sshd with a key of each type, that lets nobody in."""

    port: int
    keys: dict[str, str]
    """`TYPE BASE64` by short type; `other-…` are keys it has not."""

    def line(self, key: str, name: str | None = None) -> str:
        return f"{name or f'[127.0.0.1]:{self.port}'} {self.keys[key]}\n"


@pytest.fixture(scope="module")
def many_keys(rig: Rig) -> Iterator[ManyKeys]:
    folder = rig.plain.folder / "many-keys"
    folder.mkdir(exist_ok=True)
    keys: dict[str, str] = {}
    for kind in TYPES:
        for name in (kind, f"other-{kind}"):
            path = folder / name
            path.unlink(missing_ok=True)
            make = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", path]
            subprocess.run(make, check=True)
            keys[name] = " ".join(path.with_suffix(".pub").read_text().split()[:2])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "config"
    host_keys = "".join(f"HostKey {folder / kind}\n" for kind in TYPES)
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\n{host_keys}PidFile none\nUsePAM no\n"
        "AuthenticationMethods publickey\nMaxStartups 200\n"
    )
    argv = rig.plain.inside(["/usr/sbin/sshd", "-D", "-e", "-f", config])
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens, 20, "sshd with many keys")
        yield ManyKeys(port, keys)
    finally:
        process.kill()
        process.wait()


def hashed(text: str, folder: Path) -> str:
    path = folder / "to-hash"
    path.write_text(text)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", path], check=True, capture_output=True)
    return path.read_text()


# name: (known_hosts of an sshd, whether its key is good)
CASES: dict[str, tuple[Callable[[ManyKeys, Path], str], bool]] = {
    "name and port": (lambda s, _: s.line("ed25519"), True),
    "hashed": (lambda s, folder: hashed(s.line("ed25519"), folder), True),
    "list": (lambda s, _: s.line("ed25519", f"x,[127.0.0.1]:{s.port},y"), True),
    "name without port": (lambda s, _: s.line("ed25519", "127.0.0.1"), True),
    "wildcard": (lambda s, _: s.line("ed25519", f"[127.*]:{s.port}"), True),
    "excluded": (lambda s, _: s.line("ed25519", f"![127.0.0.1]:{s.port},!127.0.0.1,*"), False),
    "right one second": (lambda s, _: s.line("other-ed25519") + s.line("ed25519"), True),
    "rsa alone": (lambda s, _: s.line("rsa"), True),
    "ecdsa alone": (lambda s, _: s.line("ecdsa"), True),
    "wrong rsa, right ed25519": (lambda s, _: s.line("other-rsa") + s.line("ed25519"), True),
    "another machine's": (lambda s, _: s.line("other-ed25519"), False),
    "another machine's ecdsa": (lambda s, _: s.line("other-ecdsa"), False),
    "another port's": (lambda s, _: s.line("ed25519", "[127.0.0.1]:1"), False),
    "nothing": (lambda s, _: "", False),
    "revoked": (lambda s, _: s.line("ed25519") + "@revoked " + s.line("ed25519"), False),
    "another revoked": (lambda s, _: s.line("ed25519") + "@revoked " + s.line("other-rsa"), True),
    "broken key before": (
        lambda s, _: f"[127.0.0.1]:{s.port} ssh-ed25519 AAAAbroken\n" + s.line("ed25519"),
        True,
    ),
    "garbage before": (lambda s, _: "\0\1 garbage\nx\n" + s.line("ed25519"), True),
    "authority for others": (
        lambda s, _: "@cert-authority *.lab " + s.keys["other-rsa"] + "\n" + s.line("ed25519"),
        True,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_is_that_of_openssh(me: Operator, many_keys: ManyKeys, case: str) -> None:
    make, good = CASES[case]
    me.known_hosts.write_text(make(many_keys, me.home))
    before = me.known_hosts.read_bytes()
    plain = me.ssh("-o", "StrictHostKeyChecking=yes", "-p", str(many_keys.port), "127.0.0.1")
    said = plain.stderr.decode()
    assert ("Permission denied" in said) == good and ("verification failed" in said) != good
    for transport in ("openssh", "fabric"):
        host = Host("h", ssh=f"ssh://127.0.0.1:{many_keys.port}", transport=transport)
        assert type(failure_of(host)) is (AuthRefused if good else HostKeyError), transport
    assert me.known_hosts.read_bytes() == before


def failure_of(host: Host) -> RunnerError | None:
    try:
        carrier = open_carrier(host, ["true"])
    except RunnerError as error:
        return error
    try:
        assert carrier.read(1) == b""
        return carrier.failure()
    finally:
        carrier.close()


def test_an_alias_is_the_name_the_key_is_known_by(me: Operator, many_keys: ManyKeys) -> None:
    me.ssh_config.write_text(
        f"Host box\n HostName 127.0.0.1\n Port {many_keys.port}\n HostKeyAlias Box-%h\n"
        + me.ssh_config.read_text()
    )
    for name, kind in (
        ("Box-%h", AuthRefused),
        ("Box-127.0.0.1", HostKeyError),
        (None, HostKeyError),
    ):
        me.known_hosts.write_text(many_keys.line("ed25519", name))
        for transport in ("openssh", "fabric"):
            assert type(failure_of(Host("h", ssh="box", transport=transport))) is kind


def test_a_key_revoked_under_the_bare_name_counts_through_fabric(
    me: Operator, many_keys: ManyKeys
) -> None:
    """OpenSSH does not look there once it has found the name with its port; we are stricter."""
    revoked = "@revoked " + many_keys.line("ed25519", "127.0.0.1")
    me.known_hosts.write_text(many_keys.line("ed25519") + revoked)
    host = Host("h", ssh=f"ssh://127.0.0.1:{many_keys.port}", transport="fabric")
    error = failure_of(host)
    assert isinstance(error, HostKeyError) and "REVOKED" in error.message


def test_an_authority_leaves_the_host_to_openssh(me: Operator, many_keys: ManyKeys) -> None:
    me.known_hosts.write_text("@cert-authority * " + many_keys.keys["other-rsa"] + "\n")
    host = Host("h", ssh=f"ssh://127.0.0.1:{many_keys.port}", transport="fabric")
    error = failure_of(host)
    assert error is not None and "@cert-authority" in error.message and error.status == 2


def test_a_scan_shows_the_kind_of_key_that_is_asked_for(me: Operator, many_keys: ManyKeys) -> None:
    route = read_route(Host("h", ssh=f"ssh://127.0.0.1:{many_keys.port}"))
    for kind in TYPES:
        wanted = parse_key(many_keys.keys[kind])
        assert scan_key(route, route.last, key_algorithms([wanted])) == wanted
    assert read_known(route.last.config).good == ()


def test_a_pin_of_another_type_than_known_is_no_contradiction(
    me: Operator, many_keys: ManyKeys
) -> None:
    me.known_hosts.write_text(many_keys.line("other-rsa"))
    for transport in ("openssh", "fabric"):
        host = Host(
            "h",
            ssh=f"ssh://127.0.0.1:{many_keys.port}",
            host_key=many_keys.keys["ecdsa"],
            transport=transport,
        )
        assert type(failure_of(host)) is AuthRefused
