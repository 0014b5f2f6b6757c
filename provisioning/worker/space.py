"""What files take on the disk, their removal, and who may be using the contents by digest.

Sizes are what the disk gives for them. A file with several names is one file: `Seen` counts it
where it is met first, `Freed` where its last name goes. No link is ever followed.

While a run is being made it may rely on contents that no run names yet: whoever makes one holds
`using_contents`, and only who holds `sweeping_contents` removes any.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import plain
import records
from paths import Workspace

BLOCK = 512
"""The unit of st_blocks, whatever the file system's own is."""
NO_INODES = "no inodes left: it has room for bytes, but for no more files"
DEEPEST = 10
"""Folders below each other before one is moved up, so that no path becomes too long to name."""
File = Tuple[int, int]


class Room(NamedTuple):
    """What the workspace's disk has left for this account."""

    total: int
    free: int
    files: Optional[int]
    """Inodes; None where the file system has no such limit."""


def room(workspace: Workspace) -> Room:
    """What is left now."""
    found = os.statvfs(workspace.root)
    files = found.f_favail if found.f_files else None
    return Room(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, files)


class Seen:
    """Counts files, each once."""

    def __init__(self) -> None:
        self._known: Set[File] = set()

    def count(self, top: str) -> int:
        """Bytes of the files in and below a folder that were not met before."""
        total = 0
        for _, found in plain.walk(top):
            if found.st_nlink > 1:
                file = (found.st_dev, found.st_ino)
                if file in self._known:
                    continue
                self._known.add(file)
            total += found.st_blocks * BLOCK
        return total


class Freed:
    """Counts what the removal of names gives back."""

    def __init__(self) -> None:
        self.bytes = 0
        self._names: Dict[File, List[int]] = {}

    def add(self, found: os.stat_result) -> None:
        """One name goes, or would go."""
        if stat.S_ISDIR(found.st_mode):
            return
        if found.st_nlink > 1 or self._names:
            names = self._names.setdefault((found.st_dev, found.st_ino), [0, found.st_nlink])
            names[0] += 1
            if names[0] < names[1]:
                return
        self.bytes += found.st_blocks * BLOCK

    def add_below(self, top: str) -> None:
        """All names in and below a folder, or the one of a file."""
        if not plain.is_folder(top):
            with contextlib.suppress(FileNotFoundError):
                self.add(os.lstat(top))
            return
        for _, found in plain.walk(top):
            self.add(found)


def remove(top: str, freed: Freed) -> None:
    """Remove a file, a link, or a folder with all that is below it; what is gone already is fine.

    A job may have nested folders deeper than a path can be long, and closed them.
    """
    with contextlib.suppress(FileNotFoundError):
        if plain.is_folder(top):
            _remove_folder(top, freed)
        else:
            found = os.lstat(top)
            os.unlink(top)
            freed.add(found)


def _remove_folder(top: str, freed: Freed) -> None:
    todo = [(top, 0)]
    emptied: List[str] = []
    while todo:
        folder, depth = todo.pop()
        with contextlib.suppress(FileNotFoundError):
            os.chmod(folder, 0o700)
            with os.scandir(folder) as found:
                entries = list(found)
            emptied.append(folder)
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    if not entry.is_dir(follow_symlinks=False):
                        file = entry.stat(follow_symlinks=False)
                        os.unlink(entry.path)
                        freed.add(file)
                    elif depth < DEEPEST:
                        todo.append((entry.path, depth + 1))
                    else:
                        todo.append((_moved_up(entry.path, top, len(emptied)), 1))
    for folder in reversed(emptied):
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(folder)


def _moved_up(folder: str, top: str, number: int) -> str:
    os.chmod(folder, 0o700)  # it is written to, since its `..` changes
    target = os.path.join(top, ".deep-%d-%s" % (number, os.urandom(8).hex()))
    os.rename(folder, target)
    return target


def age_s(found: os.stat_result, renamed: bool = True) -> float:
    """Seconds since a file was written or, with `renamed`, got its name."""
    return time.time() - (max(found.st_mtime, found.st_ctime) if renamed else found.st_mtime)


def _contents_lock(workspace: Workspace) -> str:
    return os.path.join(workspace.state, "contents.lock")


@contextlib.contextmanager
def using_contents(workspace: Workspace) -> Iterator[None]:
    """Nothing of blobs/ and trees/ goes away meanwhile; waits for a sweep that is under way."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    fd = os.open(_contents_lock(workspace), flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def sweeping_contents(workspace: Workspace) -> Iterator[bool]:
    """Whether contents may be removed now: False while somebody uses them."""
    fd: Optional[int] = records.try_lock_or_full(_contents_lock(workspace))
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)
