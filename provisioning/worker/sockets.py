"""Where a worker's sockets lie: a folder of the owner's alone, with a short path.

The kernel takes no socket path over 107 bytes, so a workspace may be too deep for them. In a
container it is /run/runner, elsewhere a folder of /tmp: it has to outlive the log-in that started
the worker, as $XDG_RUNTIME_DIR does not, and what cleans /tmp spares a socket that is listened on.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from typing import Iterator, List

import byhand
from paths import Workspace

IN_CONTAINER = "/run/runner"
OF_IMAGE = "/opt/runner"
"""What no machine has but a container of the worker's image."""
SUPERVISOR = "supervisor"


class NoFolder(OSError):
    """There can be no folder for sockets; the text says why."""


def make(workspace: Workspace) -> str:
    """The folder, made if it is missing. Raises NoFolder."""
    why = ""
    for path in _candidates(workspace):
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            why = "%s: %s" % (path, error.strerror)
            continue
        if _is_ours(path):
            os.chmod(path, 0o700)
            return path
        why = "%s belongs to another user" % path
    raise NoFolder(why)


def find(workspace: Workspace, name: str = SUPERVISOR) -> str:
    """The path of a socket: where it is, or where it will be."""
    paths = [os.path.join(path, name + ".sock") for path in folders(workspace)]
    for path in paths:
        if os.path.exists(path):
            return path
    return paths[0] if paths else os.path.join(make(workspace), name + ".sock")


def own(workspace: Workspace) -> str:
    """Where a supervisord that starts now is to listen. Raises NoFolder."""
    return os.path.join(make(workspace), SUPERVISOR + ".sock")


def folders(workspace: Workspace) -> List[str]:
    """Those of it that are there: what is left when a worker was killed."""
    return [path for path in _candidates(workspace) if _is_ours(path)]


def connect(path: str, timeout_s: float = 10.0) -> socket.socket:
    """A connection to a socket. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.settimeout(timeout_s)
        made.connect(path)
        made.settimeout(None)
    except OSError:
        made.close()
        raise
    return made


def is_listening(path: str) -> bool:
    """Whether somebody takes connections there."""
    try:
        connect(path, 2.0).close()
    except OSError:
        return False
    return True


def _candidates(workspace: Workspace) -> Iterator[str]:
    if byhand.is_container() and os.path.isdir(OF_IMAGE):
        yield IN_CONTAINER
    digest = hashlib.sha256(os.fsencode(workspace.own)).hexdigest()[:12]
    for parent in ("/tmp", "/dev/shm"):  # the second has room when a disk has none
        yield "%s/runner-%d-%s" % (parent, os.getuid(), digest)


def _is_ours(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
