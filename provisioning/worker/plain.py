"""Looking at files that a job may have replaced: never follow, never wait, never without end.

A job can put a link, a pipe or a device where its log, a checkpoint or its progress file lies. Here
only plain files are opened, links are not followed, and a number is only one when it can be shown.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Any, Iterator, List, Optional, Tuple

NUMBER_LIMIT = 1 << 63
_OURS = frozenset({errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.EIO})


def open_file(path: str) -> int:
    """An open plain file. Raises FileNotFoundError for everything that is not one."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except OSError as error:
        # out of descriptors or memory is our trouble, not the file's
        if error.errno in _OURS:
            raise
        raise FileNotFoundError(error.errno, "no plain file", path) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FileNotFoundError(0, "no plain file", path)
    return fd


def size(path: str) -> Optional[int]:
    """Bytes of a plain file; None for anything else."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def is_folder(path: str) -> bool:
    """Whether it is a folder itself, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def walk(top: str) -> Iterator[Tuple[str, os.stat_result]]:
    """(path below `top`, lstat) of all that is no folder, however deep; no link is followed."""
    todo: List[str] = [""] if is_folder(top) else []
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(os.path.join(top, folder)) as found_here:
                entries = sorted(found_here, key=lambda item: item.name)
        except OSError:
            continue  # it went, or lies too deep for a name
        inner = []
        for entry in entries:
            path = os.path.join(folder, entry.name) if folder else entry.name
            try:
                found = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(found.st_mode):
                inner.append(path)
            else:
                yield path, found
        todo += reversed(inner)


def is_number(value: Any) -> bool:
    """Whether a foreign value is a number that can be shown and counted with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -NUMBER_LIMIT < value < NUMBER_LIMIT
