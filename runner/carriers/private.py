"""A folder only we can enter, for control sockets and the key files made for ssh.

sun_path holds 108 bytes and ssh adds 17 while it makes a socket, so the folder's path is short.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import threading
from pathlib import Path

from runner.errors import HostError

_LONGEST = 70
"""Of the folder's path: 108 less 17 for ssh's own, 19 for `/` and a name of ours, and the NUL."""
_ANOTHER = "mkdir -pm 700 ~/.run && XDG_RUNTIME_DIR=~/.run runner …"


def private_folder() -> Path:
    """The folder, made if need be. Raises HostError when it cannot be, or is not ours."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if _suits(runtime):
        with contextlib.suppress(OSError):  # it says that it can be written, and it cannot
            return _closed(Path(runtime) / "runner")
    folder = Path(f"/tmp/runner-{os.getuid()}")
    try:
        return _closed(folder)
    except OSError as error:
        raise HostError(
            f"{folder} cannot be made ({error.strerror}); sockets need a place:", _ANOTHER
        ) from None


def _suits(runtime: str) -> bool:
    """Whether sockets can lie there; ssh reads % and blanks and quotes in a path as its own."""
    return (
        len(runtime) <= _LONGEST - 7
        and re.fullmatch(r"/[A-Za-z0-9/._@+=,:-]*", runtime) is not None
        and os.access(runtime, os.W_OK)
    )


def _closed(folder: Path) -> Path:
    """The folder, for us alone. Raises HostError when something else is in its place, OSError."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise HostError(
                f"{folder} is no folder of yours, someone else may have put it there;"
                " no socket is. Name another place:",
                _ANOTHER,
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
        new = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
        new.write_text(text)
        os.replace(new, path)
    return path
