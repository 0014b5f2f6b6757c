"""The worker's sshd: keys only, its own host key, nothing of the host's or the image's.

Each session is an `sshd -i` on the stream of a client (streams.py): no port is open anywhere. An
image run by hand has it listen instead. It runs as the worker's own user and lets in no other.

Who may log in is written in KEYS/authorized_keys: on the host for all workers of the account, in a
container read-only. The host key lies in the workspace, so it stays the same over containers.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import stat
import subprocess
from typing import List, Mapping, Optional, Tuple

import byhand
import paths
import plain
import records
import sockets
from paths import Workspace

FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin", "/usr/bin", "/usr/local/bin")
IN_CONTAINER = "/etc/runner/keys"
BY_HAND = "/run/runner/keys"
_LOCK_S = 10.0
_PRIVSEP = "/run/sshd"
_CONFIG = """\
AddressFamily any
PidFile none
UsePAM no
PermitRootLogin {root}
PasswordAuthentication no
KbdInteractiveAuthentication no
HostbasedAuthentication no
PubkeyAuthentication yes
AuthenticationMethods publickey
StrictModes {strict}
PermitUserEnvironment no
PermitUserRC no
X11Forwarding no
AllowAgentForwarding no
PermitTunnel no
GatewayPorts no
AllowTcpForwarding local
PermitOpen 127.0.0.1:* localhost:* [::1]:*
AllowStreamLocalForwarding no
MaxAuthTries 6
LoginGraceTime 30
ClientAliveInterval 30
ClientAliveCountMax 4
PrintMotd no
PrintLastLog no
LogLevel INFO
AllowUsers {user}
HostKey {host_key}
AuthorizedKeysFile {keys}
Subsystem sftp internal-sftp
SetEnv {variables}
"""


class CannotLogIn(Exception):
    """No session can be served here; the text says why."""


def missing() -> Optional[str]:
    """Why there is no sshd here, and what installs it; else None."""
    if program("sshd") is None or program("ssh-keygen") is None:
        what = "this image has no sshd; provision the host again"
        return what if byhand.is_container() else "no sshd here; install it: openssh-server"
    return None


def no_terminal() -> Optional[str]:
    """Why no session can have a terminal here, else None.

    sshd gives a terminal to the group `tty`, which only root may where it is not of that group
    already: then sshd ends the connection.
    """
    try:
        group = grp.getgrnam("tty").gr_gid
        main, side = os.openpty()
    except (KeyError, OSError):
        return None  # the one is well, the other sshd says itself
    try:
        given = os.fstat(side).st_gid
    finally:
        os.close(main)
        os.close(side)
    if os.getuid() == 0 or given == group or group in (os.getegid(), *os.getgroups()):
        return None
    return "/dev/pts is mounted without gid=%d there, so its sshd may give out none" % group


def program(name: str) -> Optional[str]:
    """Where a program of OpenSSH is; sshd must be started by its whole path."""
    return shutil.which(name, path=os.pathsep.join(FOLDERS))


def command(
    workspace: Workspace, env: Mapping[str, str], folder: str, extra: str = ""
) -> List[str]:
    """The argv of an sshd that serves one session on its stdin and stdout.

    env: what the session sees. folder: where its configuration goes. Raises CannotLogIn, OSError.
    """
    why = missing()
    if why is not None:
        raise CannotLogIn(why)
    keys = keys_file()
    why = problem(keys)
    if why is not None:
        raise CannotLogIn(why)
    if os.getuid() == 0:
        # of sshd's own; a machine where it never ran as a service lacks it
        os.makedirs(_PRIVSEP, mode=0o755, exist_ok=True)
    text = configuration(workspace, env, host_key(workspace), keys) + extra
    path = os.path.join(folder, "sshd_config")
    records.write_new_bytes(path, os.fsencode(text), mode=0o600)
    return [str(program("sshd")), "-i", "-e", "-f", path]


def command_by_hand(
    workspace: Workspace, env: Mapping[str, str], address: Optional[str], port: int
) -> List[str]:
    """The argv of an sshd that listens. Raises CannotLogIn, OSError."""
    text = "Port %d\nListenAddress %s\n" % (port, address or "127.0.0.1")
    argv = command(workspace, env, sockets.make(workspace), text)
    return [argv[0], "-D", *argv[2:]]


def configuration(
    workspace: Workspace, env: Mapping[str, str], host_key_path: str, keys: str
) -> str:
    """sshd_config; no text of it is a user's but paths and variables, which are quoted."""
    container = byhand.is_container()
    return _CONFIG.format(
        # the account of a rented machine may be root itself
        root="prohibit-password" if os.getuid() == 0 else "no",
        # elsewhere `problem` has looked; sshd would refuse a home that the user's group may write
        strict="yes" if container else "no",
        user=pwd.getpwuid(os.getuid()).pw_name,
        host_key=quoted(host_key_path),
        keys=quoted(keys.replace("%", "%%")),
        variables=" ".join(
            quoted("%s=%s" % (name, value)) for name, value in sorted(session_variables(env))
        ),
    )


def session_variables(env: Mapping[str, str]) -> List[Tuple[str, str]]:
    """What a session is given: sshd takes none of ours by itself.

    A login shell's profile may set PATH anew; RUNNER_PATH is what it was (`make_profile`).
    """
    own = ("USER", "LOGNAME", "SHELL", "MAIL", "TERM", "PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME")
    found = [
        (name, value)
        for name, value in env.items()
        if name not in own
        and re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", name)
        # one line each, and no NUL could be here
        and "\n" not in value
        and "\r" not in value
    ]
    return [*found, ("RUNNER_PATH", env.get("PATH", os.defpath))]


def quoted(text: str) -> str:
    """One word of sshd_config."""
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')


def make_profile(home: str) -> None:
    """Have login shells find what jobs find: /etc/profile sets PATH anew."""
    names = (".bash_profile", ".bash_login", ".profile")
    if any(os.path.lexists(os.path.join(home, name)) for name in names):
        return
    text = "# made by the runner; yours to change\n"
    text += 'if [ -n "$RUNNER_PATH" ]; then PATH=$RUNNER_PATH; export PATH; fi\n'
    text += 'if [ -n "$BASH" ] && [ -f ~/.bashrc ]; then . ~/.bashrc; fi\n'
    records.write_new_bytes(os.path.join(home, ".profile"), text.encode("ascii"))


# -- the host key -----------------------------------------------------------------------------


def host_key(workspace: Workspace) -> str:
    """The private host key, made at first use; its public half lies beside it. Raises OSError."""
    folder = os.path.join(workspace.state, "ssh")
    path = os.path.join(folder, "host_ed25519")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chmod(folder, 0o700)
    if not _is_filled(path):
        lock = records.wait_lock(os.path.join(folder, "lock"), _LOCK_S)
        try:
            if not _is_filled(path):
                _make_host_key(folder, path)
        finally:
            if lock is not None:
                os.close(lock)
    if stat.S_IMODE(os.stat(path).st_mode) != 0o600:
        os.chmod(path, 0o600)  # a backup that was put back; sshd would refuse it
    return path


def public_host_key(workspace: Workspace) -> str:
    """`ssh-ed25519 AAAA…`. Raises CannotLogIn, OSError."""
    argv = [str(program("ssh-keygen")), "-y", "-P", "", "-f", host_key(workspace)]
    asked = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    words = asked.stdout.decode("ascii", "replace").split()
    if asked.returncode != 0 or len(words) < 2:
        said = asked.stderr.decode("utf-8", "replace").strip().splitlines() or ["it says nothing"]
        raise CannotLogIn("its host key %s cannot be read: %s" % (argv[-1], said[-1]))
    return " ".join(words[:2])


def _make_host_key(folder: str, path: str) -> None:
    temporary = os.path.join(folder, "new")
    for end in ("", ".pub"):
        if os.path.exists(temporary + end):
            os.unlink(temporary + end)
    argv = [str(program("ssh-keygen")), "-q", "-t", "ed25519", "-N", "", "-C", "runner-worker"]
    made = subprocess.run(
        [*argv, "-f", temporary], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if made.returncode != 0:
        raise CannotLogIn("no host key: %s" % made.stderr.decode("utf-8", "replace").strip())
    os.rename(temporary + ".pub", path + ".pub")
    os.rename(temporary, path)


def _is_filled(path: str) -> bool:
    return bool(plain.size(path))


# -- who may log in ---------------------------------------------------------------------------


def keys_folder() -> str:
    """Where authorized_keys lies, as seen from here."""
    if byhand.is_so():
        return BY_HAND
    if byhand.is_container():
        return IN_CONTAINER
    # beside the leases: one for all workers of the account
    return os.path.join(os.path.dirname(paths.find_leases(dict(os.environ))), "keys")


def keys_file() -> str:
    """Who may log in."""
    return os.path.join(keys_folder(), "authorized_keys")


def problem(path: str) -> Optional[str]:
    """Why nobody could or should log in by these keys, else None."""
    try:
        found = os.stat(path)
        folder = os.stat(os.path.dirname(path))
    except OSError:
        return "no key may log in: %s is not there" % path
    if found.st_size == 0:
        return "no key may log in: %s is empty" % path
    for each, name in ((folder, os.path.dirname(path)), (found, path)):
        if each.st_uid not in (0, os.getuid()) or each.st_mode & 0o022:
            return "%s belongs to uid %d with mode %o: others could add keys" % (
                *(name, each.st_uid),
                stat.S_IMODE(each.st_mode),
            )
    return None


def is_authorized(path: str, key: str) -> bool:
    """Whether a line of it lets this key (`TYPE BASE64`) in."""
    try:
        with open(plain.open_file(path), encoding="utf-8", errors="surrogateescape") as file:
            return any(line.split()[:2] == key.split() for line in file.read().splitlines())
    except OSError:
        return False
