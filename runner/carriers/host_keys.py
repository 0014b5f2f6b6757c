"""Host keys: which key a machine must show, and what to say when it shows another.

known_hosts is read by `ssh-keygen -F`, so hashed names, wildcards, ports, lists and `@revoked`
lines mean what they mean to OpenSSH. It is never written: a key that `runner host add` accepts is
pinned in the host file. A pin alone counts where there is one, but one that known_hosts contradict
or revoke is refused.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import functools
import hashlib
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from runner.carriers.ssh_config import Hop, Route, SshConfig
from runner.carriers.ssh_failures import way_text
from runner.errors import HostKeyError

_TYPE_NAMES = {
    "ssh-ed25519": "ED25519",
    "ssh-rsa": "RSA",
    "ssh-dss": "DSA",
    "sk-ssh-ed25519@openssh.com": "ED25519-SK",
    "sk-ecdsa-sha2-nistp256@openssh.com": "ECDSA-SK",
}
_PREFERRED = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)
_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
"""How a key of a type may sign; its own name unless said here."""


@dataclass(frozen=True)
class HostKey:
    """One public key."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """`SHA256:…`, as ssh-keygen shows it."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")
        return f"SHA256:{digest}"

    @property
    def type_name(self) -> str:
        """`ED25519`, `ECDSA` or `RSA`."""
        return _TYPE_NAMES.get(self.type) or (
            "ECDSA" if self.type.startswith("ecdsa") else self.type
        )

    @property
    def text(self) -> str:
        """`TYPE BASE64`, as host files and known_hosts hold it."""
        return f"{self.type} {base64.b64encode(self.blob).decode()}"

    @property
    def shown(self) -> str:
        """Type and fingerprint, for messages."""
        return f"{self.type_name} {self.fingerprint}"


@dataclass(frozen=True)
class KnownKey:
    """A key somewhere in known_hosts."""

    key: HostKey
    place: str
    """`FILE:LINE`"""
    name: str = ""
    """The name it was found by."""

    @property
    def removal(self) -> str:
        """The command that takes it out; for the owner of the file to type."""
        return shlex.join(["ssh-keygen", "-R", self.name, "-f", self.place.rpartition(":")[0]])


@dataclass(frozen=True)
class KnownKeys:
    """What the known_hosts files say of one destination."""

    good: tuple[KnownKey, ...] = ()
    revoked: tuple[KnownKey, ...] = ()
    authorities: bool = False
    """A certificate authority is trusted for this host."""


class Verdict(enum.Enum):
    """What a key that was shown is."""

    GOOD = "good"
    UNKNOWN = "not known"
    CHANGED = "not the known one"
    REVOKED = "revoked"


def parse_key(text: str) -> HostKey:
    """The key in `TYPE BASE64 [comment]`. Raises ValueError."""
    words = text.split()
    try:
        blob = base64.b64decode(words[1], validate=True)
        length = int.from_bytes(blob[:4], "big")
        inner = blob[4 : 4 + length].decode("ascii")
    except (IndexError, binascii.Error, UnicodeDecodeError) as error:
        raise ValueError("not a public key; it is of the form: ssh-ed25519 AAAA…") from error
    if inner != words[0]:
        raise ValueError(f"not a public key: it says {words[0]} and holds something else")
    return HostKey(words[0], blob)


def parse_found(text: str, path: str) -> tuple[list[KnownKey], list[KnownKey], bool]:
    """Good and revoked keys and whether there is an authority, in what `ssh-keygen -F` printed."""
    good: list[KnownKey] = []
    revoked: list[KnownKey] = []
    authority = False
    place = path
    for line in text.splitlines():
        if line.startswith("#"):
            number = re.search(r"line (\d+)", line)
            place = f"{path}:{number[1]}" if number else path
            continue
        words = line.split()
        mark = words.pop(0) if words and words[0].startswith("@") else ""
        try:
            known = KnownKey(parse_key(" ".join(words[1:3])), place)
        except ValueError:
            continue  # OpenSSH skips lines it cannot read
        if mark == "@revoked":
            revoked.append(known)
        elif mark == "@cert-authority":
            authority = True
        elif not mark:
            good.append(known)
    return good, revoked, authority


def read_known(config: SshConfig) -> KnownKeys:
    """What known_hosts say. The first name that has a key counts, `@revoked` counts under any."""
    good: list[KnownKey] = []
    revoked: list[KnownKey] = []
    authorities = False
    for name in config.key_names:
        found: list[KnownKey] = []
        for path in config.known_hosts:
            here, bad, authority = parse_found(_find(name, path), path)
            found += [dataclasses.replace(item, name=name) for item in here]
            revoked += bad
            authorities = authorities or authority
        good = good or found
    return KnownKeys(tuple(good), tuple(revoked), authorities)


def _find(name: str, path: str) -> str:
    """What `ssh-keygen -F` prints; of a file that is unchanged it is not asked twice for a name."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return _ask_keygen(name, path, None)
        state = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        return _ask_keygen_once(name, path, state) if found.st_size else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _ask_keygen(name: str, path: str, state: tuple[int, ...] | None) -> str:
    """state: tells one content of the file from another."""
    done = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=10,
    )
    return done.stdout.decode("utf-8", "replace")


_ask_keygen_once = functools.lru_cache(maxsize=1024)(_ask_keygen)


def key_types() -> tuple[str, ...]:
    """Types of host keys, the best first."""
    return _PREFERRED


def trusted_keys(hop: Hop, known: KnownKeys) -> tuple[HostKey, ...]:
    """The keys one of which the hop must show."""
    if hop.pinned is not None:
        return (parse_key(hop.pinned),)
    return tuple(item.key for item in known.good)


def judge(shown: HostKey, trusted: Sequence[HostKey], known: KnownKeys) -> Verdict:
    """What `shown` is, as OpenSSH would say."""
    if any(shown.blob == item.key.blob for item in known.revoked):
        return Verdict.REVOKED
    if any(shown.blob == key.blob for key in trusted):
        return Verdict.GOOD
    return Verdict.CHANGED if trusted else Verdict.UNKNOWN


def key_algorithms(trusted: Sequence[HostKey]) -> list[str]:
    """Signature algorithms to ask for, so that a host shows a key we can compare."""
    types = list(dict.fromkeys(key.type for key in trusted)) or list(_PREFERRED)
    return [name for kind in types for name in _ALGORITHMS.get(kind, (kind,))]


def check_pin(route: Route, hop: Hop, known: KnownKeys) -> None:
    """Refuses a pin that known_hosts revoke or contradict. Raises HostKeyError."""
    assert hop.pinned is not None
    pin = parse_key(hop.pinned)
    for item in known.revoked:
        if item.key.blob == pin.blob:
            raise HostKeyError(
                f"{route.host}: the key pinned in {hop.pinned_in} is revoked; nothing was sent",
                f"revoked  {pin.shown}",
                f"         by {item.place}",
            )
    against = contradicting(pin, known)
    if against:
        raise HostKeyError(
            f"{route.host}: {hop.pinned_in} and known_hosts name different keys; nothing was sent",
            f"pinned    {pin.shown}",
            f"          in {hop.pinned_in}, for {way_text(route, hop)}",
            *from_known_hosts(against),
            "one of them is old, or wrong: ask the machine's keeper. Which one it shows says:",
            f"  {_rekey(route)}",
        )


def contradicting(key: HostKey, known: KnownKeys) -> list[KnownKey]:
    """The known keys of the same type, if `key` is none of them."""
    same_type = [item for item in known.good if item.key.type == key.type]
    return [] if any(item.key.blob == key.blob for item in same_type) else same_type


def from_known_hosts(items: Sequence[KnownKey]) -> list[str]:
    """Lines that say which keys are known, and where."""
    return [
        line
        for item in items
        for line in (f"known     {item.key.shown}", f"          in {item.place}")
    ]


def _rekey(route: Route, *words: str) -> str:
    return shlex.join(["runner", "host", "rekey", route.host, *words])


def refusal(route: Route, hop: Hop, shown: HostKey, known: KnownKeys) -> HostKeyError | None:
    """Why `shown` is refused for the hop; None when it is good."""
    trusted = trusted_keys(hop, known)
    verdict = judge(shown, trusted, known)
    if verdict is Verdict.GOOD:
        return None
    seen = [f"shown     {shown.shown}", f"          by {way_text(route, hop)}"]
    if verdict is Verdict.UNKNOWN:
        return _unknown(route, hop, shown)
    if verdict is Verdict.REVOKED:
        place = next(item.place for item in known.revoked if item.key.blob == shown.blob)
        return HostKeyError(
            f"{route.subject(hop)}: HOST KEY REVOKED; nothing was sent",
            f"revoked   by {place}",
            *seen,
            "whoever shows a revoked key may be anyone; ask the machine's keeper",
        )
    expected = next((key for key in trusted if key.type == shown.type), trusted[0])
    return HostKeyError(
        f"{route.subject(hop)}: HOST KEY CHANGED; nothing was sent",
        f"expected  {expected.shown}",
        f"          from {_origin(hop, known, expected)}",
        *seen,
        "either the machine was installed anew or someone stands in between. Ask its",
        "keeper, not the machine. If it was:",
        *[f"  {line}" for line in _ways_out(route, hop, known, expected)],
    )


def _ways_out(route: Route, hop: Hop, known: KnownKeys, expected: HostKey) -> list[str]:
    """What to type when the new key is good."""
    if hop.pinned is not None:
        return [_rekey(route)]
    old = [item.removal for item in known.good if item.key.type == expected.type]
    return list(dict.fromkeys(old))


def _unknown(route: Route, hop: Hop, shown: HostKey) -> HostKeyError:
    by_hand = ["ssh", *(["-J", route.jump] if route.jump and hop is route.last else [])]
    return HostKeyError(
        f"{route.subject(hop)}: the host key is not known; nothing was sent",
        f"shown     {shown.shown}",
        f"          by {way_text(route, hop)}",
        "compare it with what the machine's keeper says. If it is the same:",
        *_ways_to_pin(route, hop, shown),
        "  " + shlex.join([*by_hand, *hop.target.typed]),
        "(ssh asks, and your known_hosts has it from then on)",
    )


def _ways_to_pin(route: Route, hop: Hop, shown: HostKey) -> list[str]:
    """Only the host's and the last jump's key have a place in the host's file."""
    pin = route.pin_name(hop)
    if pin is None:
        return []
    return [
        f"  {_rekey(route, '--fingerprint', shown.fingerprint)}",
        f"which pins it in hosts/{route.host}.toml, as by hand does",
        f'  {pin} = "{shown.text}"',
        "or:",
    ]


def _origin(hop: Hop, known: KnownKeys, key: HostKey) -> str:
    if hop.pinned is not None:
        return hop.pinned_in
    return next(item.place for item in known.good if item.key.blob == key.blob)
