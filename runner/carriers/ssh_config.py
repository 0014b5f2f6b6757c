"""What the operator's ssh configuration says of a host, as `ssh -G` reads it.

`ssh -G` follows Include, Match and every default, but leaves `~` and %-tokens of identity files,
proxy commands as written; they are expanded here as ssh does. Each jump host has a
configuration of its own, so a way to a host is a `Route`: one `Hop` after the other.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.carriers.base import CONNECT_TIMEOUT_S
from runner.carriers.ssh_values import Tokens, agent_socket, existing_paths, sent_environment
from runner.errors import HostError, SpecError
from runner.model import Host

_READ_S = 20
"""`ssh -G` runs the user's `Match exec` commands; a hanging one must not hang us."""
_MAX_HOPS = 8
_HARMLESS: Mapping[str, frozenset[str]] = {
    "canonicalizehostname": frozenset({"no", "false", "none"}),
    "gssapiauthentication": frozenset({"no", "yes"}),
    "hostbasedauthentication": frozenset({"no"}),
    "verifyhostkeydns": frozenset({"no", "false"}),
    "certificatefile": frozenset({"none"}),
    "knownhostscommand": frozenset({"none"}),
    "pkcs11provider": frozenset({"none"}),
    "revokedhostkeys": frozenset({"none"}),
    "bindinterface": frozenset({"none"}),
    "proxyusefdpass": frozenset({"no"}),
    "pubkeyauthentication": frozenset({"yes", "true", "unbound", "host-bound"}),
}
"""Options paramiko cannot honour, and the values with which they ask for nothing."""
_NAMES = {
    "canonicalizehostname": "CanonicalizeHostname",
    "hostbasedauthentication": "HostbasedAuthentication",
    "verifyhostkeydns": "VerifyHostKeyDNS",
    "certificatefile": "CertificateFile",
    "knownhostscommand": "KnownHostsCommand",
    "pkcs11provider": "PKCS11Provider",
    "revokedhostkeys": "RevokedHostKeys",
    "bindinterface": "BindInterface",
    "proxyusefdpass": "ProxyUseFdpass",
    "pubkeyauthentication": "PubkeyAuthentication",
}
_ALGORITHMS = ("ciphers", "macs", "kexalgorithms", "hostkeyalgorithms", "pubkeyacceptedalgorithms")


@dataclass(frozen=True)
class Target:
    """A destination, split: what goes to ssh as `-l USER -p PORT -- NAME`."""

    name: str
    user: str | None = None
    port: int | None = None

    @property
    def words(self) -> list[str]:
        """The end of an ssh command line."""
        user = ["-l", self.user] if self.user else []
        port = ["-p", str(self.port)] if self.port else []
        return [*user, *port, "--", self.name]

    @property
    def typed(self) -> list[str]:
        """The same as people type it."""
        port = ["-p", str(self.port)] if self.port else []
        return [*port, f"{self.user}@{self.name}" if self.user else self.name]


@dataclass(frozen=True)
class SshConfig:
    """The settings for one destination, with tokens expanded."""

    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...] = ()
    """Those that exist, or whose public half does, in ssh's order."""
    identities_only: bool = False
    agent: str | None = None
    """Path of the agent's socket; None when there is none to ask."""
    host_key_alias: str | None = None
    known_hosts: tuple[str, ...] = ()
    proxy_jump: str | None = None
    proxy_command: str | None = None
    own_control: bool = False
    """The user's configuration names a control socket of its own."""
    connect_timeout_s: int = CONNECT_TIMEOUT_S
    address_family: str = "any"
    bind_address: str | None = None
    not_honoured: tuple[str, ...] = ()
    """Options set there that paramiko cannot honour."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What SendEnv and SetEnv have a session begin with, if the server takes it."""
    options: frozenset[str] = frozenset()
    """Names of the options this ssh knows."""
    text: str = field(default="", repr=False)
    """All that `ssh -G` said; tells whether two configurations are the same."""

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names under which known_hosts may have this host's key, the first that has any counts."""
        if self.host_key_alias:
            return (self.host_key_alias,)
        if self.port == 22:
            return (self.hostname,)
        return (f"[{self.hostname}]:{self.port}", self.hostname)


@dataclass(frozen=True)
class Hop:
    """One machine on the way, and the key it must show if the host file pins one."""

    label: str
    """What to call it: the host's name, or the jump as written."""
    target: Target
    config: SshConfig
    pinned: str | None = None
    pinned_in: str = ""
    """The file the pin is from."""

    @property
    def address(self) -> str:
        """Where it is, for messages."""
        return f"{self.config.hostname} port {self.config.port}"


@dataclass(frozen=True)
class Route:
    """The way to a host: its jumps, then itself."""

    host: str
    hops: tuple[Hop, ...]
    jump: str | None = None
    """The host file's own jump, as written."""

    @property
    def last(self) -> Hop:
        """The host itself."""
        return self.hops[-1]

    def subject(self, hop: Hop) -> str:
        """What an error about a hop begins with."""
        return self.host if hop is self.last else f"{self.host}: {hop.label} (the jump)"

    def pin_name(self, hop: Hop) -> str | None:
        """What the host's file calls the pin of a hop; None for one that cannot be pinned."""
        from_end = len(self.hops) - self.hops.index(hop)
        return {1: "host_key", 2: "jump_key"}.get(from_end)


def parse_target(text: str, *, with_port: bool = False) -> Target:
    """A destination as ssh takes it: `name`, `user@name`, `ssh://user@name:port`.

    with_port: `user@name:port` too, as `-J` and ProxyJump have it. Raises SpecError.
    """
    rest, uri = (text[6:].rstrip("/"), True) if text.startswith("ssh://") else (text, False)
    user, at, name = rest.rpartition("@")
    port = None
    match = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*):([0-9]{1,5})", name)
    if (uri or with_port) and match:
        name, port = match[1], int(match[2])
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    good = name and (user or not at) and not re.search(r"[^!-~]|[\"'`$\\;&<>|(){}/]", name)
    good = good and not re.search(r"[^!-~]|[\"'`$;&<>|(){}]", user)
    if (
        not good
        or name.startswith("-")
        or user.startswith("-")
        or port not in (None, *range(1, 65536))
    ):
        raise SpecError(
            f"{text!r} is not an ssh destination; write NAME, USER@NAME or ssh://USER@NAME:PORT"
        )
    return Target(name, user or None, port)


def parse_jumps(text: str) -> tuple[Target, ...]:
    """The hops of a ProxyJump value, first one first. Raises SpecError."""
    return tuple(parse_target(part.strip(), with_port=True) for part in text.split(","))


def have_ssh() -> bool:
    """Whether there is an ssh client to ask and to use."""
    return shutil.which("ssh") is not None


def read_route(host: Host, *, many: bool = False) -> Route:
    """The way to `host`: the jump of its file, else what the ssh configuration says.

    many: it is one of many read at once, which may share what is said of a jump for a moment.
    Raises SpecError for a bad destination, HostError when ssh cannot read its configuration.
    """
    assert host.ssh is not None
    source = host.source.name if host.source else host.name
    target = parse_target(host.ssh)
    config = read_config(target)
    chain = host.jump or config.proxy_jump
    read = _read_shared if many else read_config
    jumps = _read_jumps(parse_jumps(chain), read, depth=0) if chain else []
    if jumps and host.jump_key:
        last = jumps[-1]
        jumps[-1] = Hop(last.label, last.target, last.config, host.jump_key, f"hosts/{source}")
    own = Hop(host.name, target, config, host.host_key, f"hosts/{source}" if host.host_key else "")
    return Route(host.name, (*jumps, own), host.jump)


def _read_jumps(
    chain: Sequence[Target], read: Callable[[Target], SshConfig], *, depth: int
) -> list[Hop]:
    if depth + len(chain) > _MAX_HOPS:
        raise HostError(
            f"{chain[0].name}: more than {_MAX_HOPS} jumps; does one lead back to itself?"
        )
    first, *others = (Hop(target.name, target, read(target)) for target in chain)
    before = first.config.proxy_jump
    more = _read_jumps(parse_jumps(before), read, depth=depth + len(chain)) if before else []
    return [*more, first, *others]


_SHARED_S = 2.0
_shared: dict[tuple[Target, str, str], tuple[float, SshConfig]] = {}
_shared_lock = threading.Lock()


def _read_shared(target: Target) -> SshConfig:
    """What was read of a jump a moment ago: 50 hosts behind one would ask 50 times, at once."""
    key = (target, os.environ.get("PATH", ""), os.environ.get("HOME", ""))
    with _shared_lock:
        until, config = _shared.get(key, (0.0, None))
        if config is None or time.monotonic() > until:
            config = read_config(target)
            _shared[key] = (time.monotonic() + _SHARED_S, config)
        return config


def read_config(target: Target) -> SshConfig:
    """What ssh would use for `target`. Raises HostError with ssh's own words when it cannot."""
    if not have_ssh():
        return _without_ssh(target)
    try:
        done = subprocess.run(
            ["ssh", "-G", "-T", *target.words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_READ_S,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as error:
        raise HostError(f"{target.name}: ssh -G gave no answer for {_READ_S} s") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise HostError(f"{target.name}: ssh cannot read its configuration", *said[:5])
    return parse_config(done.stdout.decode("utf-8", "replace"), target.name, os.environ)


def baseline_options() -> Mapping[str, tuple[str, ...]]:
    """What this ssh does without any configuration, to tell which algorithms a user has chosen."""
    with _baseline_lock:
        return _read_baseline(shutil.which("ssh") or "ssh")


_baseline_lock = threading.Lock()


@functools.cache
def _read_baseline(ssh: str) -> Mapping[str, tuple[str, ...]]:
    done = subprocess.run(
        [ssh, "-F", "none", "-G", "-T", "--", "nowhere"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_READ_S,
    )
    return _options(done.stdout.decode("utf-8", "replace"))


def chosen_algorithms(config: SshConfig, baseline: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Which lists of algorithms the user has set; paramiko has lists of its own."""
    said = _options(config.text)
    return [
        f"{name}={said[name][0]}"
        for name in _ALGORITHMS
        if name in said and said[name] != baseline.get(name)
    ]


def _options(text: str) -> dict[str, tuple[str, ...]]:
    said: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        said[key.lower()] = (*said.get(key.lower(), ()), value)
    return said


def parse_config(text: str, name: str, environ: Mapping[str, str]) -> SshConfig:
    """The settings in what `ssh -G` printed for the destination `name`. Looks which files exist."""
    said = _options(text)

    def one(key: str, default: str = "none") -> str:
        return said.get(key, (default,))[0]

    def chosen(key: str) -> str | None:
        return None if one(key).lower() == "none" else one(key)

    missing = [
        f"{_NAMES.get(key, key)}={value}"
        for key, harmless in _HARMLESS.items()
        for value in said.get(key, ())
        if value.lower() not in harmless
    ]
    methods = one("preferredauthentications", "publickey")
    if "publickey" not in methods.split(","):
        missing.append(f"PreferredAuthentications={methods}")
    tokens = Tokens(
        name,
        one("hostname", name),
        one("port", "22"),
        one("user", ""),
        chosen("hostkeyalias"),
        environ,
    )
    identities = [tokens.expand(path, missing) for path in said.get("identityfile", ())]
    agent = one("identityagent", "SSH_AUTH_SOCK")
    timeout = one("connecttimeout")
    known = existing_paths(one("userknownhostsfile", "")) + existing_paths(
        one("globalknownhostsfile", "")
    )
    return SshConfig(
        hostname=one("hostname", name),
        port=int(one("port", "22")),
        user=one("user", ""),
        identity_files=tuple(
            path
            for path in identities
            if path and (os.path.exists(path) or os.path.exists(path + ".pub"))
        ),
        identities_only=one("identitiesonly") == "yes",
        agent=agent_socket(agent, tokens, missing, environ),
        # ssh takes this one as it is written (tried)
        host_key_alias=chosen("hostkeyalias"),
        known_hosts=tuple(path for path in known if os.path.exists(path)),
        proxy_jump=chosen("proxyjump"),
        proxy_command=tokens.expand(chosen("proxycommand"), missing)
        if chosen("proxycommand")
        else None,
        own_control=chosen("controlpath") is not None,
        connect_timeout_s=(int(timeout) if timeout.isdigit() else 0) or CONNECT_TIMEOUT_S,
        address_family=one("addressfamily", "any"),
        bind_address=chosen("bindaddress"),
        not_honoured=tuple(missing),
        environment=sent_environment(said, environ),
        options=frozenset(said),
        text=text,
    )


def _without_ssh(target: Target) -> SshConfig:
    """Only what the destination itself says, and the usual files: there is no ssh to ask."""
    home = Path.home() / ".ssh"
    names = ("id_ed25519", "id_ecdsa", "id_rsa")
    return SshConfig(
        hostname=target.name,
        port=target.port or 22,
        user=target.user or os.environ.get("USER") or os.environ.get("LOGNAME") or "",
        identity_files=tuple(str(home / name) for name in names if (home / name).exists()),
        agent=os.environ.get("SSH_AUTH_SOCK"),
    )
