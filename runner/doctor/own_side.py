"""What the operator's own side is like: ssh, its keys, the agent, the home."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from runner.carriers import is_here
from runner.carriers.ssh_config import Route, have_ssh
from runner.doctor.answers import Here, KeyFile
from runner.model import Host

_ASK_S = 3.0


def read_here(host: Host, route: Route | None) -> Here:
    """The facts; route: the way to the host, None where there is none or it cannot be read."""
    home = _home_problem()
    if is_here(host) or route is None:
        return Here(has_ssh=have_ssh(), home_problem=home)
    config = route.last.config
    held = _held_by(config.agent)
    return Here(
        has_ssh=have_ssh(),
        keys=tuple(_read_key(path, held) for path in config.identity_files),
        identities_only=config.identities_only,
        agent_keys=len(held),
        home_problem=home,
    )


def _read_key(path: str, held: frozenset[str]) -> KeyFile:
    public = path if path.endswith(".pub") else path + ".pub"
    digest = _fingerprint(public) or _fingerprint(path)
    in_agent = digest is not None and digest in held
    try:
        mode = None if path.endswith(".pub") else stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        mode = None
    locked = mode is not None and _is_locked(path)
    return KeyFile(path, mode, locked=locked, in_agent=in_agent)


def _is_locked(path: str) -> bool:
    done = _ask(["ssh-keygen", "-y", "-P", "", "-f", path])
    return done is not None and done.returncode != 0 and b"passphrase" in done.stderr


def _fingerprint(path: str) -> str | None:
    done = _ask(["ssh-keygen", "-l", "-f", path]) if os.path.exists(path) else None
    words = done.stdout.split() if done is not None and done.returncode == 0 else []
    return words[1].decode("ascii", "replace") if len(words) > 1 else None


def _held_by(agent: str | None) -> frozenset[str]:
    """Fingerprints of the keys an agent holds."""
    done = _ask(["ssh-add", "-l"], {"SSH_AUTH_SOCK": agent}) if agent else None
    if done is None or done.returncode:
        return frozenset()
    rows = done.stdout.decode("utf-8", "replace").splitlines()
    return frozenset(words[1] for words in map(str.split, rows) if len(words) > 2)


def _ask(
    argv: Sequence[str], env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_S,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _home_problem() -> str | None:
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        return "HOME is not set" if not home else "HOME is no absolute path"
    try:
        with tempfile.TemporaryFile(dir=home):
            return None
    except OSError as error:
        return f"nothing can be written in the home ({error.strerror or error})"
