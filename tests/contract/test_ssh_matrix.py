"""Every option that `ssh HOST` honours, and every way to write known_hosts: `ssh` by hand beside
both carriers, at a real sshd.

With `RUNNER_SSH_DOCUMENT=FILE` the tables of that file (docs/ssh.md) are written anew.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runner.carriers.fabric_link import NotHonoured
from runner.carriers.host_keys import parse_key
from runner.errors import AuthRefused, HostKeyError, RunnerError, Unreachable
from runner.model import Host
from tests.contract import test_host_keys
from tests.helpers.become import become
from tests.helpers.carried import PROXY, hang_up, read_all
from tests.helpers.extra_sshd import ExtraSshd, extra_sshd, free_port
from tests.helpers.wait import wait_for
from tests.rig.operator import Operator
from tests.rig.rig import Rig

DOCUMENT = Path(__file__).parents[2] / "docs" / "ssh.md"
# what a session is, told by itself: account, both ends, the key that opened it, its environment
REPORT = [
    "sh",
    "-c",
    'set -- $SSH_CONNECTION; echo "$(id -un) $1 $3:$4 $(cut -d" " -f3 "$SSH_USER_AUTH" | head -1)'
    ' MATRIX=$MATRIX_A"',
]


@dataclass(frozen=True)
class Seen:
    """What came of one `ssh HOST`: the session, or why there was none."""

    verdict: str
    """`in`, or `auth`, `hostkey`, `unreachable`, `configuration`, `not honoured`."""
    told: tuple[str, ...] = ()
    hops: tuple[str, ...] = ()
    """The keys that opened the jumps, in their order."""
    reason: str = ""

    @property
    def same(self) -> tuple[object, ...]:
        """What must be the same by every way."""
        return self.verdict, self.told, self.hops


class Lab:
    """The keys, the two sshd and the operator's files of one test."""

    def __init__(self, folder: Path, target: ExtraSshd, jump: ExtraSshd) -> None:
        self.folder = folder
        self.user = target.host.user
        self.target, self.jump = target, jump
        self.port, self.other_port = ports_of(target)
        self.hop, self.other_hop = ports_of(jump)
        self.key = {
            "".join(path.read_text().split()[1:2]): path.stem for path in folder.glob("*.pub")
        }
        self.prints = {
            parse_key(path.read_text()).fingerprint: path.stem
            for path in folder.glob("*.pub")
            if "-cert" not in path.name
        }
        self.home = f"~/..{folder}"  # ssh takes ~ from the account and not from HOME

    def use(self, me: Operator) -> None:
        """The operator of the next test."""
        self.me = me
        self.me.known_hosts.write_text(self.known())

    def __getitem__(self, name: str) -> str:
        return str(self.folder / name)

    def line(self, port: int, key: str = "host", name: str = "127.0.0.1") -> str:
        """A line of known_hosts."""
        text = " ".join((self.folder / f"{key}.pub").read_text().split()[:2])
        return f"[{name}]:{port} {text}\n"

    def known(self) -> str:
        """Every key that is shown anywhere."""
        names = ("127.0.0.1", "::1", "localhost")
        ports = {self.port: "host", self.other_port: "host", self.hop: "hop", self.other_hop: "hop"}
        return "".join(self.line(p, key, name) for p, key in ports.items() for name in names)

    def write_open(self, name: str) -> str:
        """A copy of a key that others may read."""
        path = self.write("open", (self.folder / name).read_text())
        Path(path).chmod(0o644)
        return path

    def write(self, name: str, text: str) -> str:
        """A file of the operator's; its path."""
        path = self.me.home / name
        path.write_text(text)
        path.chmod(0o600)
        return str(path)

    def configure(self, lines: str) -> None:
        """The user's ssh configuration: these lines, then what all cases share."""
        self.me.ssh_config.write_text(
            f"{lines}\n"
            f"Host box\n HostName 127.0.0.1\n Port {self.port}\n User {self.user}\n"
            f"Host hop\n HostName 127.0.0.1\n Port {self.hop}\n User {self.user}\n"
            f"Host hop2\n HostName 127.0.0.1\n Port {self.other_hop}\n User {self.user}\n"
            f"Host *\n IdentityFile {self['k1']}\n IdentitiesOnly yes\n"
            f" UserKnownHostsFile {self.me.known_hosts}\n GlobalKnownHostsFile none\n"
        )

    # what is compared

    def by_hand(self, target: str) -> Seen:
        """What `ssh TARGET` makes of it."""
        before = len(self.jump.said())
        done = self.me.ssh(target, shlex.join(REPORT), limit_s=30, env=agent_environment())
        said = done.stderr.decode("utf-8", "replace")
        if done.returncode == 0:
            return Seen("in", self._told(done.stdout), self._opened(before))
        return Seen(verdict_of(said), reason=said)

    def by_carrier(self, target: str, transport: str) -> Seen:
        """What we make of it."""
        before = len(self.jump.said())
        try:
            out = read_all(Host("h", ssh=target, transport=transport), REPORT)
        except NotHonoured as error:
            return Seen("not honoured", reason=error.message)
        except RunnerError as error:
            kinds = {AuthRefused: "auth", HostKeyError: "hostkey"}
            verdict = kinds.get(type(error), "configuration")
            verdict = "unreachable" if isinstance(error, Unreachable) else verdict
            return Seen(verdict, reason="\n".join([error.message, *error.advice]))
        return Seen("in", self._told(out), self._opened(before))

    def _told(self, out: bytes) -> tuple[str, ...]:
        words = out.decode().split()
        return tuple(self.key.get(word, word) for word in words)

    def _opened(self, before: int) -> tuple[str, ...]:
        """The keys that opened the jump since then."""
        lines = self.jump.said()[before:].splitlines()
        accepted = [line.split()[-1] for line in lines if line.startswith("Accepted publickey")]
        return tuple(self.prints.get(word, word) for word in accepted)


def agent_environment() -> dict[str, str]:
    names = ("SSH_AUTH_SOCK", "MATRIX_A", "KEYS")
    return {name: os.environ[name] for name in names if name in os.environ}


def verdict_of(said: str) -> str:
    """What ssh's last words say."""
    if "Host key verification failed" in said or "REVOKED" in said:
        return "hostkey"
    if "Permission denied" in said or "Too many authentication" in said:
        return "auth"
    if "Bad configuration" in said or "terminating" in said:
        return "configuration"
    return "unreachable"


def ports_of(sshd: ExtraSshd) -> tuple[int, int]:
    """Its two ports; the second is the first and one more thousand."""
    return sshd.port, sshd.port + 1000 if sshd.port < 60000 else sshd.port - 1000


def keygen(path: Path, *words: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-N", "", "-C", "", "-f", path, *words], check=True)


def sign(folder: Path, key: str, *words: str) -> None:
    argv = ["ssh-keygen", "-q", "-s", folder / "ca", "-I", key, *words, folder / f"{key}.pub"]
    subprocess.run(argv, check=True)


@pytest.fixture(scope="module")
def made(rig: Rig) -> Iterator[Lab]:
    folder = rig.plain.folder / "matrix"
    folder.mkdir(exist_ok=True)
    for left in folder.iterdir():
        left.unlink()
    (folder / "k1").write_bytes((rig.paths.keys / "id_ed25519").read_bytes())
    (folder / "k1").chmod(0o600)
    (folder / "k1.pub").write_bytes((rig.paths.keys / "id_ed25519.pub").read_bytes())
    for name in ("k2", "k3", "k4", "host", "hop", "ca"):
        keygen(folder / name, "-t", "ed25519")
    for number in range(8):
        keygen(folder / f"decoy{number}", "-t", "ed25519")
    sign(folder, "k3", "-n", rig.plain.user)
    (folder / "k3-plain").write_bytes((folder / "k3").read_bytes())  # no certificate beside it
    (folder / "k3-plain").chmod(0o600)
    sign(folder, "host", "-h", "-n", "127.0.0.1,localhost,Box")
    opens = "".join((folder / f"{name}.pub").read_text() for name in ("k1", "k2"))
    (folder / "opens").write_text(opens)
    (folder / "opens").chmod(0o644)
    shared = {
        "AuthorizedKeysFile": str(folder / "opens"),
        "StrictModes": "no",
        # the ordinary exchange costs 0.15 s more each time
        "KexAlgorithms": "curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256",
    }
    one, two = free_port(), free_port()

    def port(number: int) -> str:
        other = number + 1000 if number < 60000 else number - 1000
        return f"{number}\nPort {other}"

    target_options = {
        **shared,
        "HostKey": f"{folder}/host\nHostCertificate {folder}/host-cert.pub",
        "ListenAddress": "127.0.0.1\nListenAddress ::1",
        "TrustedUserCAKeys": f"{folder}/ca.pub",
        "ExposeAuthInfo": "yes",
        "MaxAuthTries": "2",
        "AcceptEnv": "MATRIX_*",
    }
    jump_options = {**shared, "HostKey": f"{folder}/hop", "AllowTcpForwarding": "yes"}
    with (
        extra_sshd(rig.plain, "matrix-target", one, Port=port(one), **target_options) as target,
        extra_sshd(rig.plain, "matrix-jump", two, Port=port(two), **jump_options) as jump,
    ):
        yield Lab(folder, target, jump)


@pytest.fixture
def lab(made: Lab, operator: Operator, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made.use(become(operator, monkeypatch))
    yield made
    hang_up(operator)


@pytest.fixture(scope="module")
def agent(made: Lab) -> Iterator[str]:
    """An agent with eight keys that open nothing, and k2 as the ninth."""
    path = made.folder / "agent"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(path.exists, 10, "the agent")
        keys = [made[name] for name in (*(f"decoy{n}" for n in range(8)), "k2")]
        env = {**os.environ, "SSH_AUTH_SOCK": str(path)}
        subprocess.run(["ssh-add", "-q", *keys], check=True, env=env)
        yield str(path)
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Case:
    """One row: what the user's configuration says, and what must come of it."""

    config: Callable[[Lab], str]
    verdict: str = "in"
    key: str = "k1"
    hops: tuple[str, ...] = ()
    port: str = "port"
    shows: tuple[str, ...] = ()
    """Further words of the session's report."""
    target: str = "box"
    fabric: str = ""
    """The option that Fabric names, where it cannot honour it."""
    by_hand: bool = True
    """Whether ssh by hand does the same; where not, we are stricter, or undisturbed."""
    remark: str = ""
    agent: bool = False
    env: dict[str, str] = field(default_factory=dict)
    said: str = ""
    """Words that the reason must hold."""


def box(lines: str) -> Callable[[Lab], str]:
    """A block of the host's own with these lines."""
    return lambda lab: f"Host box\n {lines}\n"


OPTIONS: dict[str, Case] = {
    "Host, HostName, Port, User": Case(
        lambda lab: f"Host x\n HostName 127.0.0.1\n Port {lab.other_port}\n User {lab.user}\n",
        target="x", port="other_port",
    ),
    "HostName with %h": Case(
        lambda lab: f"Host 127\n HostName %h.0.0.1\n Port {lab.port}\n User {lab.user}\n",
        target="127",
    ),
    "Port": Case(lambda lab: f"Host box\n Port {lab.other_port}\n", port="other_port"),
    "User": Case(box("User nobody"), "auth"),
    "ssh://USER@HOST:PORT": Case(lambda lab: "", target="ssh://{user}@127.0.0.1:{port}"),
    "IdentityFile": Case(lambda lab: f"Host box\n IdentityFile {lab['k2']}\n", key="k2"),
    "IdentityFile ~/…": Case(lambda lab: f"Host box\n IdentityFile {lab.home}/k2\n", key="k2"),
    "IdentityFile with %d": Case(
        lambda lab: f"Host box\n IdentityFile %d/..{lab['k2']}\n", key="k2"
    ),
    "IdentityFile with %h %p %r %u %n": Case(
        lambda lab: f"Host box\n IdentityFile {lab.me.home}/k-%h-%p-%r-%u-%n\n", key="k2"
    ),
    "IdentityFile with ${VAR}": Case(
        lambda lab: "Host box\n IdentityFile ${KEYS}/k2\n", key="k2", env={"KEYS": "{folder}"}
    ),
    "IdentityFile KEY.pub": Case(
        lambda lab: f"Host box\n IdentityFile {lab['k2.pub']}\n", key="k2", agent=True,
        remark="picks the agent's key",
    ),
    "IdentityFile that is not there": Case(
        lambda lab: f"Host box\n IdentityFile {lab.folder}/none\n"
    ),
    "IdentityFile that others may read": Case(
        lambda lab: f"Host box\n IdentityFile {lab.write_open('k2')}\n",
        remark="not used; the next one is",
    ),
    "IdentitiesOnly yes": Case(
        lambda lab: f"Host box\n IdentityFile {lab['k2']}\n", key="k2", agent=True,
        remark="of nine keys in the agent one is offered",
    ),
    "IdentitiesOnly no": Case(
        lambda lab: f"Host box\n IdentitiesOnly no\n IdentityFile {lab['k2']}\n", key="k2",
        agent=True, remark="the listed key of the agent first",
    ),
    "IdentitiesOnly no, no key listed": Case(
        lambda lab: f"Host box\n IdentitiesOnly no\n IdentityFile {lab['k4']}\n",
        "auth", agent=True, remark="too many keys for the server",
    ),
    "IdentityAgent": Case(
        lambda lab: f"Host box\n IdentityAgent {lab.folder}/agent\n IdentityFile {lab['k2.pub']}\n",
        key="k2", remark="also where SSH_AUTH_SOCK is not set",
    ),
    "IdentityAgent none": Case(
        lambda lab: f"Host box\n IdentityAgent none\n IdentityFile {lab['k2.pub']}\n", agent=True
    ),
    "CertificateFile": Case(
        lambda lab: f"Host box\n IdentityFile {lab['k3-plain']}\n"
        f" CertificateFile {lab['k3-cert.pub']}\n",
        key="k3-cert", fabric="CertificateFile",
    ),
    "KEY-cert.pub beside IdentityFile": Case(
        lambda lab: f"Host box\n IdentityFile {lab['k3']}\n", key="k3-cert",
    ),
    "HostKeyAlias": Case(
        lambda lab: "Host box\n HostKeyAlias Box\n UserKnownHostsFile "
        + lab.write("known", lab.line(lab.port).replace(f"[127.0.0.1]:{lab.port}", "Box")) + "\n"
    ),
    "HostKeyAlias that is not known": Case(box("HostKeyAlias Nobody"), "hostkey"),
    "UserKnownHostsFile, several": Case(
        lambda lab: f"Host box\n UserKnownHostsFile {lab.write('empty', '')} {lab.me.known_hosts}\n"
    ),
    "UserKnownHostsFile with ~, %h %p, ${VAR}": Case(
        lambda lab: f"Host box\n UserKnownHostsFile ${{KEYS}}/none ~/..{lab.me.home}/known-%h-%p\n",
        env={"KEYS": "{folder}"},
    ),
    "UserKnownHostsFile that is not there": Case(
        lambda lab: f"Host box\n UserKnownHostsFile {lab.folder}/none\n", "hostkey"
    ),
    "UserKnownHostsFile none": Case(box("UserKnownHostsFile none"), "hostkey"),
    "GlobalKnownHostsFile": Case(
        lambda lab: "Host box\n UserKnownHostsFile none\n"
        f" GlobalKnownHostsFile {lab.me.known_hosts}\n"
    ),
    "Include with a pattern, nested": Case(
        lambda lab: f"Include {lab.me.home}/conf-*\n", key="k2",
    ),
    "Match host, Match exec": Case(
        lambda lab: 'Host box\n HostName 127.0.0.1\nMatch host 127.* exec "test %n = box"\n'
        f' IdentityFile {lab["k2"]}\nMatch exec false\n Port {lab.other_port}\n',
        key="k2",
    ),
    "Match originalhost, user, localuser": Case(
        lambda lab: f"Match originalhost box user {lab.user} localuser root\n"
        f" IdentityFile {lab['k2']}\nMatch originalhost box localuser root\n"
        f" Port {lab.other_port}\n",
        port="other_port",
    ),
    "Match final": Case(
        lambda lab: f"Host f\n HostName 127.0.0.1\n User {lab.user}\n"
        f"Match final host 127.0.0.1\n Port {lab.other_port}\n",
        target="f", port="other_port",
    ),
    "ProxyJump": Case(box("ProxyJump hop"), hops=("k1",)),
    "ProxyJump, a chain": Case(box("ProxyJump hop,hop2"), hops=("k1", "k1")),
    "ProxyJump USER@HOST:PORT": Case(
        lambda lab: f"Host box\n ProxyJump {lab.user}@127.0.0.1:{lab.other_hop}\n", hops=("k1",)
    ),
    "ProxyJump none over a jump for all": Case(
        lambda lab: "Host box\n ProxyJump none\nHost * !hop\n ProxyJump hop\n"
    ),
    "ProxyJump: the jump's own block": Case(
        lambda lab: f"Host box\n ProxyJump j\nHost j\n HostName 127.0.0.1\n"
        f" Port {lab.other_hop}\n User {lab.user}\n IdentityFile {lab['k2']}\n",
        hops=("k2",),
    ),
    "ProxyJump: a jump with a jump": Case(
        lambda lab: "Host box\n ProxyJump hop2\nHost hop2\n ProxyJump hop\n", hops=("k1", "k1")
    ),
    "ProxyJump: wrong key of the jump": Case(
        lambda lab: "Host box\n ProxyJump hop\nHost hop\n UserKnownHostsFile "
        + lab.write("wrong", lab.line(lab.hop, "host")) + "\n",
        "hostkey", said="(the jump)",
    ),
    "ProxyJump: the jump refuses": Case(
        lambda lab: "Host box\n ProxyJump nobody@hop\n", "auth", said="(the jump)"
    ),
    "ProxyJump: the host refuses": Case(
        lambda lab: "Host box\n ProxyJump hop\n User nobody\n", "auth", said="refused for nobody"
    ),
    "ProxyCommand with shell syntax, %h %p": Case(
        lambda lab: 'Host box\n ProxyCommand sh -c "exec python3 '
        + lab.write("proxy.py", PROXY) + ' %h %p 2>/dev/null"\n'
    ),
    "ProxyCommand that fails": Case(box("ProxyCommand false"), "unreachable"),
    "ControlPath": Case(
        lambda lab: f"Host box\n ControlPath {lab.me.home}/own-%C\n", fabric="ControlPath",
        remark="your own connection is used; lanes of a pull have theirs",
    ),
    "ConnectTimeout": Case(
        box("HostName 198.51.100.7\n ConnectTimeout 1"), "unreachable"
    ),
    "AddressFamily inet6": Case(
        box("HostName ::1\n AddressFamily inet6"), shows=("::1",)
    ),
    "AddressFamily inet": Case(box("HostName ::1\n AddressFamily inet"), "unreachable"),
    "BindAddress": Case(box("BindAddress 127.0.0.9"), shows=("127.0.0.9",)),
    "BindInterface": Case(box("BindInterface lo"), fabric="BindInterface"),
    "CanonicalizeHostname": Case(
        box("CanonicalizeHostname yes\n CanonicalizeFallbackLocal yes"),
        fabric="CanonicalizeHostname",
    ),
    "KnownHostsCommand": Case(
        lambda lab: f"Host box\n UserKnownHostsFile none\n KnownHostsCommand /bin/cat "
        f"{lab.me.known_hosts}\n",
        fabric="KnownHostsCommand",
    ),
    "RevokedHostKeys": Case(
        lambda lab: f"Host box\n RevokedHostKeys {lab['host.pub']}\n", "hostkey",
        fabric="RevokedHostKeys",
    ),
    "VerifyHostKeyDNS": Case(box("VerifyHostKeyDNS ask"), fabric="VerifyHostKeyDNS"),
    "@cert-authority, a host certificate": Case(
        lambda lab: "Host box\n UserKnownHostsFile " + lab.write(
            "known", "@cert-authority [127.0.0.1]:* " + lab.line(0, "ca").split(" ", 1)[1]
        ) + "\n",
        fabric="@cert-authority",
    ),
    "PreferredAuthentications without publickey": Case(
        box("PreferredAuthentications password"), "auth", fabric="PreferredAuthentications"
    ),
    "PubkeyAuthentication no": Case(
        box("PubkeyAuthentication no"), "auth", fabric="PubkeyAuthentication"
    ),
    "HostbasedAuthentication": Case(
        box("HostbasedAuthentication yes"), fabric="HostbasedAuthentication"
    ),
    "PubkeyAcceptedAlgorithms": Case(
        box("PubkeyAcceptedAlgorithms rsa-sha2-512"), "auth", fabric="pubkeyacceptedalgorithms"
    ),
    "Ciphers": Case(box("Ciphers aes256-ctr"), fabric="ciphers"),
    "MACs": Case(box("MACs hmac-sha2-512"), fabric="macs"),
    "KexAlgorithms": Case(box("KexAlgorithms curve25519-sha256"), fabric="kexalgorithms"),
    "HostKeyAlgorithms": Case(box("HostKeyAlgorithms ssh-ed25519"), fabric="hostkeyalgorithms"),
    "Compression": Case(box("Compression yes"), remark="Fabric does not compress"),
    "SendEnv": Case(box("SendEnv MATRIX_*"), shows=("MATRIX=sent",), env={"MATRIX_A": "sent"}),
    "SetEnv": Case(box("SetEnv MATRIX_A=set"), shows=("MATRIX=set",)),
    "IgnoreUnknown": Case(box("IgnoreUnknown Frob*\n Frobnicate yes")),
    "an option this ssh does not know": Case(
        box("Frobnicate yes"), "configuration", said="frobnicate",
        remark="ssh's own words are told",
    ),
    "LogLevel, VisualHostKey": Case(box("LogLevel DEBUG3\n VisualHostKey yes")),
    "ForwardAgent, ForwardX11, LocalForward, Tunnel": Case(
        box("ForwardAgent yes\n ForwardX11 yes\n LocalForward 127.0.0.1:1 x:1\n"
            " ExitOnForwardFailure yes\n Tunnel yes"),
        by_hand=False, remark="never done",
    ),
    "RemoteCommand, RequestTTY": Case(
        box("RemoteCommand echo other\n RequestTTY force"), by_hand=False, remark="never done"
    ),
    "StdinNull, ForkAfterAuthentication, SessionType": Case(
        box("StdinNull yes\n ForkAfterAuthentication yes\n SessionType none"),
        by_hand=False, remark="never done",
    ),
    "PermitLocalCommand, LocalCommand": Case(
        box("PermitLocalCommand yes\n LocalCommand kill $PPID"), by_hand=False, remark="never done"
    ),
    "StrictHostKeyChecking no": Case(
        box("StrictHostKeyChecking no\n UserKnownHostsFile none"), "hostkey", by_hand=False,
        remark="never accepted unasked",
    ),
    "NoHostAuthenticationForLocalhost": Case(
        box("NoHostAuthenticationForLocalhost yes\n UserKnownHostsFile none"), "hostkey",
        by_hand=False, remark="always checked",
    ),
}  # fmt: skip

KNOWN: dict[str, tuple[Callable[[Lab], str], str]] = {
    "lines that end in CRLF": (lambda lab: lab.line(lab.port).replace("\n", "\r\n"), "in"),
    "no end of line": (lambda lab: lab.line(lab.port).rstrip(), "in"),
    "blanks and a comment around it": (
        lambda lab: "# mine\n\n \t" + lab.line(lab.port).rstrip() + "  me@home\n", "in"
    ),
    "`@revoked` of the name with its port": (
        lambda lab: lab.line(lab.port) + "@revoked " + lab.line(lab.port), "hostkey"
    ),
    "`@revoked *`": (
        lambda lab: lab.line(lab.port) + "@revoked * " + lab.line(0).split(" ", 1)[1], "hostkey"
    ),
    "`@cert-authority` of another authority": (
        lambda lab: "@cert-authority * " + lab.line(0, "k4").split(" ", 1)[1], "hostkey"
    ),
    "an unknown mark": (lambda lab: "@mark " + lab.line(lab.port), "hostkey"),
    "the key of the other port alone": (lambda lab: lab.line(lab.other_port), "hostkey"),
}  # fmt: skip
ROWS: dict[str, tuple[str, str]] = {}
"""What came of each option, for the document: by OpenSSH, by Fabric."""


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_means_what_it_means_to_ssh(
    lab: Lab, agent: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = OPTIONS[name]
    lay_files(lab)
    lab.configure(case.config(lab))
    for variable, value in case.env.items():
        monkeypatch.setenv(variable, value.format(folder=lab.folder))
    if case.agent:
        monkeypatch.setenv("SSH_AUTH_SOCK", agent)
    target = case.target.format(user=lab.user, port=lab.port)
    openssh, fabric = (lab.by_carrier(target, way) for way in ("openssh", "fabric"))
    check(lab, case, openssh)
    if case.by_hand:
        hand = lab.by_hand(target)
        assert (hand.verdict, hand.told) == (openssh.verdict, openssh.told), hand.reason
        if hand.verdict == "in":
            assert hand.hops == openssh.hops
    if case.fabric:
        assert fabric.verdict == "not honoured" and case.fabric in fabric.reason, fabric
    else:
        check(lab, case, fabric)
        assert fabric.same == openssh.same
    ROWS[name] = row_of(case)


def lay_files(lab: Lab) -> None:
    """The files that some cases name."""
    data = Path(lab["k2"]).read_text()
    lab.write(f"k-127.0.0.1-{lab.port}-{lab.user}-root-box", data)
    lab.write(f"known-127.0.0.1-{lab.port}", lab.line(lab.port))
    lab.write("conf-a", f"Match host box\n Include {lab.me.home}/inner\n")
    lab.write("inner", f"IdentityFile {lab['k2']}\n")


def check(lab: Lab, case: Case, seen: Seen) -> None:
    """What the case says came."""
    assert seen.verdict == case.verdict, seen.reason
    if case.verdict == "in":
        user, _, place, key, _ = seen.told
        assert (user, key) == (lab.user, case.key)
        assert place.endswith(f":{getattr(lab, case.port)}")
        assert seen.hops == case.hops
        for word in case.shows:
            assert word in " ".join(seen.told)
    else:
        assert case.said in seen.reason


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_hosts_line_means_what_it_means_to_ssh(lab: Lab, name: str) -> None:
    make, verdict = KNOWN[name]
    lab.configure("")
    lab.me.known_hosts.write_bytes(make(lab).encode())
    before = lab.me.known_hosts.read_bytes()
    seen = [lab.by_hand("box").verdict]
    for transport in ("openssh", "fabric"):
        found = lab.by_carrier("box", transport)
        named = found.verdict == "not honoured" and "@cert-authority" in found.reason
        seen.append(verdict if named and transport == "fabric" else found.verdict)
    assert seen == [verdict] * 3
    assert lab.me.known_hosts.read_bytes() == before


def row_of(case: Case) -> tuple[str, str]:
    """The document's words."""
    if not case.by_hand:
        return case.remark, case.remark
    words = "as ssh" + (f"; {case.remark}" if case.remark else "")
    return words, "names it; `auto` takes OpenSSH" if case.fabric else "the same"


# the document


def known_rows() -> dict[str, str]:
    """Each way to write known_hosts, and whether the key is good then."""
    here = {name: "good" if verdict == "in" else "refused" for name, (_, verdict) in KNOWN.items()}
    cases = test_host_keys.CASES.items()
    return {**{name: "good" if good else "refused" for name, (_, good) in cases}, **here}


def tables(rows: dict[str, tuple[str, str]]) -> dict[str, str]:
    """The document's tables by their names."""
    options = ["| option | OpenSSH carrier | Fabric carrier |", "|---|---|---|"]
    options += [f"| {name} | {one} | {other} |" for name, (one, other) in rows.items()]
    known = ["| known_hosts holds | the key is |", "|---|---|"]
    known += [f"| {name} | {verdict} |" for name, verdict in known_rows().items()]
    return {"options": "\n".join(options), "known_hosts": "\n".join(known)}


def with_tables(text: str, rows: dict[str, tuple[str, str]]) -> str:
    """The document with its tables, which stand between comments, written anew."""
    for name, table in tables(rows).items():
        head, begin, rest = text.partition(f"<!-- {name}: written by test_ssh_matrix.py -->\n")
        _, end, tail = rest.partition(f"\n<!-- end of {name} -->")
        text = f"{head}{begin}{table}{end}{tail}"
    return text


@pytest.fixture(scope="module", autouse=True)
def document() -> Iterator[None]:
    yield
    path = os.environ.get("RUNNER_SSH_DOCUMENT")
    if path and set(ROWS) == set(OPTIONS):
        text = Path(path).read_text()
        Path(path).write_text(with_tables(text, {name: ROWS[name] for name in OPTIONS}))


def test_the_document_says_what_was_seen() -> None:
    text = DOCUMENT.read_text()
    rows = {name: row_of(case) for name, case in OPTIONS.items()}
    assert with_tables(text, rows) == text
    assert all(table in text for table in tables(rows).values())
