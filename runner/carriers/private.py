"""A folder only we can enter, for control sockets and the key files made for ssh.

sun_path holds 108 bytes and ssh adds 17 while it makes a socket, so the folder's path is short.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from runner.errors import HostError

_LONGEST = 70
"""Of the folder's path: 108 less 17 for ssh's own, 19 for `/` and a name of ours, and the NUL."""


def private_folder() -> Path:
    """The folder, made if need be. Raises HostError when someone else has taken its place."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if (
        runtime.startswith("/")
        and len(os.fsencode(runtime)) <= _LONGEST - 7
        and os.access(runtime, os.W_OK)
    ):
        folder = Path(runtime) / "runner"
    else:
        folder = Path(f"/tmp/runner-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise HostError(
                f"{folder} belongs to someone else; no socket is put there. Name another place:",
                "XDG_RUNTIME_DIR=~/.run runner …",
            ) from None
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    return folder


def socket_path(identity: str) -> Path:
    """Where the control socket lies; `identity`: all that makes a connection what it is."""
    return private_folder() / f"c-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def key_file(key: str) -> Path:
    """A known_hosts file that accepts `key` (`TYPE BASE64`) and nothing else, whatever the name."""
    text = f"* {key}\n"
    path = private_folder() / f"k-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if not path.is_file() or path.read_text() != text:
        new = path.with_name(f"{path.name}.{os.getpid()}.part")
        new.write_text(text)
        os.replace(new, path)
    return path
