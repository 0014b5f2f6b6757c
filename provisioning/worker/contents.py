"""Contents on their way in: a pack is taken apart, and what it brings kept by its digest."""

from __future__ import annotations

import hashlib
import os
import shutil
from typing import Dict, List, Mapping, Optional, Set

import records
import snapshot
from paths import Workspace

from runner import wire

SYNC_EACH = 256
"""Contents of one pack that are made durable one by one; more of them all at once."""


class BlobWriter:
    """Takes a pack and stores the contents in it that are not here yet.

    Written in a folder of its own, so that no two ever write one file, whatever pids they have.
    They get their names together, in `close`: a pack of a few contents has each made durable by
    itself, the writing out of all begun before any is waited for (300 small ones: 0.15 s, against
    0.28 s when each is waited for in turn). Many wait once for the whole file system (50,000: 0.5 s
    against 10 s), which may have to write out what others left in its memory, too.
    """

    def __init__(self, workspace: Workspace, sizes: Mapping[str, int]) -> None:
        """sizes: of each content that may come; nothing else is written, nor more of one."""
        self._workspace = workspace
        self._sizes = sizes
        self._unpacker = wire.Unpacker()
        self._folder = ""
        self._came: Set[str] = set()
        self._staged: Dict[str, str] = {}
        self._fd: Optional[int] = None
        self._digest = ""
        self._left = 0
        self._sum = hashlib.sha256()
        self.stored = 0

    def feed(self, data: bytes) -> None:
        """The next bytes of the pack. Raises BadTree when a content is not what it claims."""
        try:
            self._feed(data)
        except BaseException:
            self.abort()
            raise

    def _feed(self, data: bytes) -> None:
        for head, piece in self._unpacker.feed(data):
            if head is not None:
                self._open(*head)
            elif self._fd is not None:
                records.write_all(self._fd, piece)
                self._sum.update(piece)
                self._left -= len(piece)
            if self._left == 0 and self._fd is not None:
                self._finish()

    def close(self) -> None:
        """End of the pack: what came gets its name. Raises BadTree when it stops within a file."""
        try:
            if not self._unpacker.idle:
                raise snapshot.BadTree("the pack ended in the middle of a file")
            if self._staged:
                self._make_durable(list(self._staged.values()))
                folders = {os.path.dirname(self._workspace.blob(each)) for each in self._staged}
                for folder in folders:
                    os.makedirs(folder, exist_ok=True)
                for digest, path in self._staged.items():
                    os.rename(path, self._workspace.blob(digest))
                self._make_names_durable(folders)
                self.stored += len(self._staged)
                self._staged = {}
        finally:
            self.abort()

    def abort(self) -> None:
        """Drop what has no name yet."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""

    def _open(self, digest: str, size: int) -> None:
        if self._sizes.get(digest) != size:
            raise snapshot.BadTree(
                "content %s is not in the list, or not of that size" % digest[:12]
            )
        if digest in self._came:
            raise snapshot.BadTree("content %s came twice" % digest[:12])
        self._came.add(digest)
        if os.path.exists(self._workspace.blob(digest)):
            return  # sent unasked: its bytes are passed over
        if not self._folder:
            name = snapshot.STAGING + os.urandom(8).hex()
            self._folder = os.path.join(self._workspace.blobs, name)
            os.mkdir(self._folder, 0o700)
        path = os.path.join(self._folder, digest)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._digest, self._left, self._sum = digest, size, hashlib.sha256()

    def _finish(self) -> None:
        assert self._fd is not None
        if self._sum.hexdigest() != self._digest:
            raise snapshot.BadTree("content %s arrived damaged" % self._digest[:12])
        os.fchmod(self._fd, 0o444)
        os.close(self._fd)
        self._fd = None
        self._staged[self._digest] = os.path.join(self._folder, self._digest)

    def _make_durable(self, paths: List[str]) -> None:
        if len(paths) > SYNC_EACH:
            _sync_disk(self._folder)
            return
        fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
        try:
            for fd in fds:
                # begins to write it out, and waits for nothing
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for fd in fds:
                os.fdatasync(fd)
        finally:
            for fd in fds:
                os.close(fd)

    def _make_names_durable(self, folders: Set[str]) -> None:
        if len(self._staged) > SYNC_EACH:
            _sync_disk(self._folder)
            return
        for folder in (*folders, self._workspace.blobs):
            records.sync_folder(folder)


def _sync_disk(folder: str) -> None:
    """All that was written to the folder's file system is durable."""
    try:
        import ctypes

        syncfs = ctypes.CDLL(None, use_errno=True).syncfs
    except (ImportError, AttributeError):
        os.sync()
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if syncfs(fd):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), folder)
    finally:
        os.close(fd)
