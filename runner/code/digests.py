"""Digests of files read before, so that one that did not change is not read again.

A cache: it may be deleted at any time, and one that is damaged or of another version is not used.

    runner-digests/1 SHA256-OF-THE-REST
    {PATH: "size mtime_ns ctime_ns inode device sha256", …}

Nobody can set a file's ctime, so an edit of the same size with its mtime set back is noticed. But
two edits within one tick of the file system's clock have the same ctime; therefore a file is only
kept here when it was last changed clearly before the reading began (git's "racily clean"). The
time is the file system's own, for it may be another machine's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time

from runner.files import read_regular

MAGIC = b"runner-digests/1 "
TICK_NS = 2 * 10**9
"""No file system in use has a coarser clock."""
LEFTOVER_S = 3600
"""A temporary file that is older was left by a writer that is gone."""


class Digests:
    """What earlier readings found, for as long as it surely still holds."""

    def __init__(self, path: str | None) -> None:
        """path: the cache file; None: nothing is known, and nothing is kept."""
        self._path = path
        self._old = _read(path) if path else {}
        self._now: dict[str, str] = {}
        self._has_more = False
        self._clock_ns, self._device = self._look_at_clock()

    def known(self, name: str, stat: os.stat_result) -> str | None:
        """The digest of a file that is as it was when it was read."""
        entry = self._old.get(name)
        if entry is None or not entry.startswith(signs := _signs(stat)):
            return None
        self._now[name] = entry
        return entry[len(signs) :]

    def keep(self, name: str, stat: os.stat_result, digest: str) -> None:
        """Remember a file that was read since this was made. stat: of before it was read."""
        if stat.st_dev == self._device and stat.st_ctime_ns < self._clock_ns - TICK_NS:
            self._now[name] = _signs(stat) + digest
            self._has_more = True

    def save(self) -> None:
        """Write down what is known now; of two writers the last one wins."""
        if self._path is None or not (self._has_more or len(self._now) < len(self._old)):
            return
        body = json.dumps(self._now, separators=(",", ":")).encode("ascii")
        head = MAGIC + hashlib.sha256(body).hexdigest().encode("ascii") + b"\n"
        temporary = self._temporary()
        with contextlib.suppress(OSError):  # it would only have saved time
            try:
                with open(temporary, "xb") as file:
                    file.write(head + body)
                os.rename(temporary, self._path)
                _remove_leftovers(self._path)
            except OSError:
                os.unlink(temporary)
                raise

    def _look_at_clock(self) -> tuple[int, int]:
        """The file system's time now, and which file system; nothing is kept where it has none."""
        if self._path is None:
            return 0, -1
        temporary = self._temporary()
        try:
            os.makedirs(os.path.dirname(temporary), mode=0o700, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return 0, -1
        try:
            found = os.fstat(fd)
            return found.st_ctime_ns, found.st_dev
        finally:
            os.close(fd)
            os.unlink(temporary)

    def _temporary(self) -> str:
        return f"{self._path}.{os.getpid()}.{threading.get_ident()}.tmp"


def _remove_leftovers(path: str) -> None:
    folder, name = os.path.split(path)
    for entry in os.scandir(folder):
        if entry.name.startswith(f"{name}.") and entry.name.endswith(".tmp"):
            with contextlib.suppress(FileNotFoundError):
                if entry.stat().st_mtime < time.time() - LEFTOVER_S:
                    os.unlink(entry.path)


def _signs(stat: os.stat_result) -> str:
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino} {stat.st_dev} "


def _read(path: str) -> dict[str, str]:
    try:
        head, _, body = read_regular(path).partition(b"\n")
    except OSError:
        return {}
    if head != MAGIC + hashlib.sha256(body).hexdigest().encode("ascii"):
        return {}
    return dict(json.loads(body))
