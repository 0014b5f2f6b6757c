"""Logging in to a worker by ssh: our own key, our own known_hosts, the user's ssh as the client.

    .runner/ssh/id_ed25519[.pub]   made once for a project; it opens this account's workers alone
    .runner/ssh/known_hosts        their host keys, told by the workers over conversations that are
                                   trusted already

The user's own keys and files take no part, and no agent is forwarded. ssh reaches the worker over a
conversation of ours (ProxyCommand), so nothing listens anywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.carriers import open_session
from runner.carriers.quoting import plain_line
from runner.errors import HostError, SpecError, WorkerError
from runner.fields import said
from runner.model import Host, Project

_KEY = re.compile(r"[a-z0-9@.-]{1,64} [A-Za-z0-9+/=]{20,16384}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.$-]{0,63}")
_LIMIT_S = 60.0
_KEYGEN_S = 30.0
_AUTHORIZE = """\
umask 077
d=$1 line=$2
[ -n "$d" ] || d=$HOME/.local/state/runner/keys
mkdir -p "$d" || exit 1
f=$d/authorized_keys
if command -v flock > /dev/null; then exec 9> "$d/lock" && flock -w 20 9 || exit 1; fi
[ -e "$f" ] || : > "$f" || exit 1
if ! grep -qxF -e "$line" "$f"; then
    { awk 1 "$f" && printf '%s\\n' "$line"; } > "$f.$$" && mv -f "$f.$$" "$f" || exit 1
fi
# public keys, which a worker of root's reads as another user
if [ "$(id -u)" = 0 ]; then chmod 0755 "$d" && chmod 0644 "$f"; fi
"""


@dataclass(frozen=True)
class Login:
    """How ssh gets into a worker."""

    host: str
    user: str
    alias: str
    key: Path
    known_hosts: Path
    stream: tuple[str, ...]
    """The argv of what carries ssh's bytes."""
    no_terminal: str | None = None
    """Why no session there can have a terminal."""


def own_key(folder: Path) -> tuple[Path, str]:
    """(private key, `ssh-ed25519 AAAA…`) of a project, made at first use. Raises SpecError."""
    path = folder / "id_ed25519"
    with _locked(folder / "lock"):
        if not path.is_file():
            _make_key(folder, path)
        path.chmod(0o600)
        public = path.with_name("id_ed25519.pub")
        words = public.read_text().split()[:2] if public.is_file() else []
        if not _KEY.fullmatch(" ".join(words)):
            told = _keygen(["-y", "-P", "", "-f", str(path)])
            words = told.split()[:2]
            if not _KEY.fullmatch(" ".join(words)):
                raise SpecError(f"{path} is no key; remove it, and another one is made")
            public.write_text(" ".join(words) + "\n")
    return path, " ".join(words)


def _make_key(folder: Path, path: Path) -> None:
    new = folder / "new"
    for name in (new, new.with_name("new.pub")):
        name.unlink(missing_ok=True)
    _keygen(["-q", "-t", "ed25519", "-N", "", "-C", "runner", "-f", str(new)])
    os.replace(new.with_name("new.pub"), path.with_name("id_ed25519.pub"))
    os.replace(new, path)


def _keygen(words: Sequence[str]) -> str:
    if shutil.which("ssh-keygen") is None:
        raise SpecError("there is no ssh-keygen here; it comes with OpenSSH's client")
    done = subprocess.run(
        ["ssh-keygen", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_KEYGEN_S,
        check=False,
    )
    if done.returncode != 0:
        told = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing was said"]
        raise SpecError(f"ssh-keygen failed: {told[-1]}")
    return done.stdout.decode("ascii", "replace")


def authorize(host: Host, project: Project, public: str) -> None:
    """Let the project's key log in to the account's workers on a host. Raises HostError.

    It goes into a file of our own there; the account's ~/.ssh/authorized_keys is never touched.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "-", f"{project.id}@{platform.node() or 'unknown'}")[:200]
    leases = os.environ.get("RUNNER_LEASES") if host.runtime == "local" else None
    folder = str(Path(leases).parent / "keys") if leases else ""
    line = f"{public} runner-project-{name}"
    with open_session(host) as session:
        done = session.run(["sh", "-c", _AUTHORIZE, "runner", folder, line], timeout_s=_LIMIT_S)
    if done.status != 0:
        told = done.error_text.splitlines() or ["nothing was said"]
        raise HostError(f"{host.name}: the key could not be added there: {told[-1]}")


def known_key(host: Host, told: object) -> str:
    """A host key as a worker told it. Raises WorkerError."""
    if not isinstance(told, str) or not _KEY.fullmatch(told):
        raise WorkerError(f"{host.name}: the worker's host key cannot be read")
    return told


def user_name(host: Host, told: object) -> str:
    """The user to log in as, as a worker told it. Raises WorkerError."""
    if not isinstance(told, str) or not _USER.fullmatch(told):
        raise WorkerError(f"{host.name}: the worker's user cannot be read")
    return told


def know(folder: Path, alias: str, key: str) -> Path:
    """The known_hosts file, in which this alias has this key and no other."""
    path = folder / "known_hosts"
    with _locked(folder / "lock"):
        lines = path.read_text().splitlines() if path.is_file() else []
        wanted = f"{alias} {key}"
        kept = [line for line in lines if line.split(" ", 1)[0] != alias]
        if wanted not in lines or len(kept) + 1 != len(lines):
            new = path.with_name(f"known_hosts.{os.getpid()}.part")
            new.write_text("".join(f"{line}\n" for line in [*kept, wanted]))
            os.replace(new, path)
    return path


def alias_of(host: Host) -> str:
    """What the worker is called in ssh's files."""
    return f"runner-{host.name}"


def stream_argv(project: Project, words: Sequence[str]) -> tuple[str, ...]:
    """The argv of our own command that carries ssh's bytes, wherever ssh is called."""
    # Python looks for `runner` in the current folder first, which may be anybody's
    own = [sys.executable, "-m", "runner", "ssh-stream", *words, f"--project={project.root}"]
    return ("sh", "-c", 'cd / && exec "$@"', "runner", *own)


def options(login: Login) -> list[tuple[str, str]]:
    """What ssh must be told, as lines of its configuration. Raises SpecError for a path that none
    of them can hold.
    """
    return [
        ("HostName", login.alias),
        ("User", login.user),
        # ssh expands % in all of these, and puts `exec` in front of the command
        ("ProxyCommand", plain_line(login.stream).replace("%", "%%")),
        ("ProxyUseFdpass", "no"),
        ("IdentityFile", _path(login.key)),
        ("IdentitiesOnly", "yes"),
        ("IdentityAgent", "none"),
        ("PreferredAuthentications", "publickey"),
        ("UserKnownHostsFile", _path(login.known_hosts)),
        ("GlobalKnownHostsFile", "/dev/null"),
        ("HostKeyAlias", login.alias),
        ("StrictHostKeyChecking", "yes"),
        ("UpdateHostKeys", "no"),
        ("CheckHostIP", "no"),
        ("ForwardAgent", "no"),
        ("ForwardX11", "no"),
        ("ServerAliveInterval", "15"),
    ]


def _path(path: Path) -> str:
    text = str(path)
    if any(sign in text for sign in '"\\\n\r\0') or not _encodable(text):
        raise SpecError(f"ssh cannot read a path with such signs: {said(text)}")
    return '"' + text.replace("%", "%%") + '"'


def _encodable(text: str) -> bool:
    with contextlib.suppress(UnicodeEncodeError):
        return bool(text.encode())
    return False


def config_block(login: Login) -> list[str]:
    """Lines for the user's ssh configuration."""
    lines = [f"Host {login.alias}"]
    return lines + [f"    {name} {value}" for name, value in options(login)]


def ssh_argv(login: Login, *, terminal: bool, command: Sequence[str]) -> list[str]:
    """The ssh that runs `command` in the worker, exactly as given, whatever shell its user has."""
    told = [f"-o{name}={value}" for name, value in options(login)]
    # the user's own configuration is for other machines
    argv = ["ssh", "-F", "/dev/null", "-t" if terminal else "-T", "-oLogLevel=ERROR"]
    return [*argv, *told, login.alias, "--", plain_line(command)]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SpecError(f"{path} cannot be made: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
