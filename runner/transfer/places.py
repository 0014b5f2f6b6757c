"""Files below one folder, reached from its open descriptor: no link is followed on the way."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from runner.errors import SpecError
from runner.manifest import LocalFile

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_OPEN = 64
LONGEST_NAME = 255


class Places:
    """Names below `top`, made of plain components; use it as a context manager, from one thread.

    A folder among them that somebody replaced by a link, before or meanwhile, is never gone
    through. Raises SpecError for one, OSError for what else the system says.
    """

    def __init__(self, top: Path) -> None:
        self.top = top
        self._top_fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folders: dict[str, int] = {}

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *raised: object) -> None:
        self._close_folders()
        os.close(self._top_fd)

    def open(self, name: str, flags: int, mode: int = 0o644, *, make: bool = False) -> int:
        """A descriptor of the file itself; make: also the folders it lies in."""
        folder, leaf = self._folder_of(name, make)
        return os.open(leaf, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)

    def stat(self, name: str) -> os.stat_result | None:
        """What lies at a name itself, link or not; None if nothing does."""
        try:
            folder, leaf = self._folder_of(name)
            return os.stat(leaf, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                return None
            raise

    def look(self, name: str) -> LocalFile | None:
        """The same as what a plan compares."""
        found = self.stat(name)
        return None if found is None else LocalFile(found.st_size, found.st_mtime_ns)

    def rename(self, old: str, new: str) -> None:
        """Put a file into place, over what is there, making folders."""
        to, leaf = self._folder_of(new, make=True)
        at, name = self._folder_of(old)
        os.rename(name, leaf, src_dir_fd=at, dst_dir_fd=to)

    def unlink(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder, leaf = self._folder_of(name)
            os.unlink(leaf, dir_fd=folder)

    def remove_empty(self, name: str) -> bool:
        """Remove a folder that holds nothing."""
        try:
            folder, leaf = self._folder_of(name)
            os.rmdir(leaf, dir_fd=folder)
        except OSError:
            return False
        self._close_folders()
        return True

    def names(self, folder: str) -> list[str]:
        """What lies in a folder; empty if there is none."""
        try:
            return os.listdir(self._folder(folder, False))
        except FileNotFoundError:
            return []

    def write(self, name: str, data: bytes) -> None:
        """A small file whole or not at all, under a name no listing holds."""
        temporary = f".{name}.part"
        fd = self.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(fd, memoryview(data), 0)
        finally:
            os.close(fd)
        self.rename(temporary, name)

    def read(self, name: str, most: int) -> bytes:
        """What a small file holds; empty if it is not there."""
        try:
            fd = self.open(name, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return b""
        with os.fdopen(fd, "rb") as file:
            return file.read(most)

    @property
    def room(self) -> int:
        """Bytes that can be written here."""
        found = os.fstatvfs(self._top_fd)
        return found.f_bavail * found.f_frsize

    def _folder_of(self, name: str, make: bool = False) -> tuple[int, str]:
        folder, _, leaf = name.rpartition("/")
        return self._folder(folder, make), leaf

    def _folder(self, path: str, make: bool) -> int:
        if not path:
            return self._top_fd
        fd = self._folders.get(path)
        if fd is None:
            if len(self._folders) >= _MOST_OPEN:
                self._close_folders()
            outer, _, leaf = path.rpartition("/")
            # from the top down, each by its own name; those on the way stay open, too
            above = self._folder(outer, make)
            fd = self._folders[path] = self._enter(above, leaf, path, make)
        return fd

    def _enter(self, above: int, leaf: str, path: str, make: bool) -> int:
        if make:
            mode = 0o700 if leaf.startswith(".") and "/" not in path else 0o755
            with contextlib.suppress(FileExistsError):
                os.mkdir(leaf, mode, dir_fd=above)
        try:
            return os.open(leaf, _FOLDER, dir_fd=above)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            text = f"{self.top / path} is not a folder; move it away and pull again"
            raise SpecError(text) from None

    def _close_folders(self) -> None:
        for fd in self._folders.values():
            os.close(fd)
        self._folders.clear()


def can_be_named(name: str) -> bool:
    """Whether a file of this name can be made here."""
    parts = name.encode("utf-8", "surrogateescape").split(b"/")
    return all(len(part) <= LONGEST_NAME for part in parts)


def write_all(fd: int, data: memoryview, position: int) -> None:
    """All of the bytes at a position."""
    while data:
        count = os.pwrite(fd, data, position)
        data = data[count:]
        position += count
