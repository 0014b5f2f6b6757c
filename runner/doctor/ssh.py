"""The way to the host: ssh, keys and their modes, the agent, what sshd asks of the home (pure)."""

from __future__ import annotations

import os.path
import shlex
from collections.abc import Iterator

from runner.doctor.answers import KeyFile, Seen
from runner.doctor.findings import Check, fault, note, ok
from runner.errors import AuthRefused, HostKeyError, ProvisionError

_OTHERS = 0o077
_WRITE = 0o022


def judge(seen: Seen) -> Iterator[Check]:
    """Nothing of ssh is looked at where the host is this machine."""
    if seen.here.home_problem is not None:
        yield note(
            "home", "ssh", f"here: {seen.here.home_problem}", "set HOME to a folder of yours"
        )
    if seen.is_here:
        if seen.error is not None:
            yield _failed(seen)
        return
    if not seen.here.has_ssh:
        yield note(
            "ssh-client", "ssh", "there is no ssh client here; its configuration is not read",
            "install OpenSSH's client; until then all goes over Fabric",
        )  # fmt: skip
    troubles = list(_keys(seen))
    if seen.error is None:
        yield ok("login", "ssh", "ssh")
        yield ok("host-key", "ssh", "host key")
        yield ok("sftp", "ssh", "sftp (not needed)")
        yield from _permissions(seen)
    yield from troubles
    explained = isinstance(seen.error, AuthRefused) and any(c.state == "fault" for c in troubles)
    if seen.error is not None and not explained:
        yield _failed(seen)


def _failed(seen: Seen) -> Check:
    """There was no session; the error says why, in its own words."""
    error = seen.error
    assert error is not None
    text = error.message.removeprefix(f"{seen.host.name}: ")
    fix = tuple(error.advice)
    if isinstance(error, HostKeyError):
        return fault("host-key", "ssh", text, *fix)
    if isinstance(error, AuthRefused):
        fix += (
            "if it is there already: sshd takes it only where nobody else may write to home, .ssh"
            f" and the file; {seen.there}:",
            "  chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys",
        )
    elif isinstance(error, ProvisionError):
        return fault("answer", "ssh", text, *fix)
    return fault("login", "ssh", text, *(fix or (f"try by hand: {_by_hand(seen)}",)))


def _by_hand(seen: Seen) -> str:
    jump = ["-J", seen.host.jump] if seen.host.jump else []
    return shlex.join(["ssh", *jump, str(seen.host.ssh)])


def _keys(seen: Seen) -> Iterator[Check]:
    refused = isinstance(seen.error, AuthRefused)
    make = fault if refused else note
    usable = 0
    for key in seen.here.keys:
        if key.mode is not None and key.mode & _OTHERS and not key.in_agent:
            yield make(
                "key-mode", "ssh",
                f"{key.path} is open to others (mode {key.mode:04o}); ssh does not use it so",
                f"  chmod 600 {shlex.quote(key.path)}",
            )  # fmt: skip
        elif key.mode is not None and key.locked and not key.in_agent:
            if refused:
                yield fault(
                    "key-locked", "ssh", f"{_name(key)} has a passphrase, and no agent holds it",
                    f"  ssh-add {shlex.quote(key.path)}",
                )  # fmt: skip
        else:
            usable += not (key.locked or key.mode is None)
    by_agent = [key for key in seen.here.keys if key.in_agent]
    others = 0 if seen.here.identities_only else seen.here.agent_keys
    if seen.error is None and not usable and (by_agent or others):
        what = _name(by_agent[0]) if by_agent else "the key"
        yield note(
            "agent", "ssh", f"{what} is used through the agent, which cron does not have",
            "for schedules, name a key file without a passphrase in the ssh config (IdentityFile)",
        )  # fmt: skip
    elif seen.error is None:
        yield ok("keys", "ssh", "keys")


def _name(key: KeyFile) -> str:
    return os.path.basename(key.path)


def _permissions(seen: Seen) -> Iterator[Check]:
    """What StrictModes asks: nobody but the owner and root may write on the way to the keys."""
    names = ("home", ".ssh", ".ssh/authorized_keys")
    open_ones = []
    for name, line in zip(names, seen.lines("modes"), strict=False):
        mode, _, uid = line.partition(" ")
        if not (mode.isascii() and mode.isdigit() and len(mode) < 6):
            continue
        strange = seen.facts is not None and uid not in ("0", str(seen.facts.uid))
        if int(mode, 8) & _WRITE or strange:
            open_ones.append(name)
    if open_ones:
        yield note(
            "strict-modes", "ssh",
            f"others may write to {' and '.join(open_ones)}; most sshd refuse a key then",
            f"{seen.there}:", "  chmod go-w ~ ~/.ssh ~/.ssh/authorized_keys",
        )  # fmt: skip
    elif seen.lines("modes"):
        yield ok("strict-modes", "ssh", "permissions of .ssh")
