"""Record files: written whole or not at all, read without surprise, locked by flock."""

from __future__ import annotations

import fcntl
import json
import os
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

import journal
import plain

FORMAT = 1
SPARE_BYTES = 4096
MAX_RECORD = 64 << 20
_USUAL = 64 * 1024
"""What is read at once: room for the largest is not made for each of thousands of small ones."""
MAX_LINE = 64 * 1024
"""Far above the 4 KiB a progress line may have."""


def read(path: str) -> Optional[Dict[str, Any]]:
    """The record in a file, or None when there is none or it is not one."""
    try:
        with open(plain.open_file(path), "rb") as file:
            data = file.read(_USUAL)
            if len(data) == _USUAL:
                data += file.read(MAX_RECORD - _USUAL)
        body = json.loads(data)
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def write(path: str, body: Dict[str, Any], sync: bool = True, spare: bool = True) -> None:
    """Replace the record atomically; on a full disk in the room kept for it, if allowed."""
    data = json.dumps(body, sort_keys=True).encode("ascii") + b"\n"
    temporary = "%s.tmp%d" % (path, os.getpid())
    try:
        _write_new(temporary, data, sync)
    except OSError as error:
        _unlink_quietly(temporary)
        kept = path + ".spare"
        if not journal.is_full(error) or not spare or not os.path.exists(kept):
            raise
        _overwrite(kept, data)
        temporary = kept
    os.rename(temporary, path)


def write_in_place(path: str, body: Dict[str, Any]) -> bool:
    """Replace the record; on a full disk in the room that the last one has, not atomically.

    Whether it is written: for a short record that who is to start must write, but can do without.
    """
    try:
        write(path, body, sync=False)
        return True
    except OSError as error:
        if not journal.is_full(error):
            raise
    data = json.dumps(body, sort_keys=True).encode("ascii") + b"\n"
    try:
        # a file has whole blocks
        if len(data) > max(SPARE_BYTES, os.stat(path).st_size):
            return False
        _overwrite(path, data)
    except OSError:
        return False
    return True


def write_new_bytes(path: str, data: bytes, mode: int = 0o644) -> None:
    """Write a file under a temporary name, make it durable, rename it into place."""
    temporary = "%s.tmp%d" % (path, os.getpid())
    try:
        _write_new(temporary, data, sync=True, mode=mode)
    except OSError:
        _unlink_quietly(temporary)
        raise
    os.rename(temporary, path)


def write_all(fd: int, data: bytes) -> None:
    """All of these bytes, however few the system takes at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def make_spare(path: str) -> None:
    """Reserve room for a record now, so that a full disk cannot keep it from being written."""
    _write_new(path + ".spare", b" " * SPARE_BYTES, sync=False)


def drop_spare(path: str) -> None:
    """Give the room back: the record will not change any more."""
    _unlink_quietly(path + ".spare")


def append_line(path: str, body: Dict[str, Any]) -> None:
    """Add one line for people to read; never the truth, so a failure is not an error."""
    line = json.dumps(dict(body, t=round(time.time(), 3)), sort_keys=True) + "\n"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError:
        return
    try:
        os.write(fd, line.encode("ascii"))
    except OSError:
        pass
    finally:
        os.close(fd)


def open_log(path: str) -> int:
    """A file to add words to; where there is no room to make it, one that swallows them."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        if not journal.is_full(error):
            raise
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def make_mark(path: str, link: str, donors: Iterable[str]) -> None:
    """Have a file of that name, whatever is in it, also where no inode is left.

    link: a file whose second name it may be. donors: files that can be done without, of which one
    gets the name where a second name takes an inode, too.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        return
    except OSError as error:
        if not journal.is_full(error):
            raise
        problem = error
    for give, source in [(os.link, link), *((os.rename, donor) for donor in donors)]:
        try:
            give(source, path)
            return
        except FileExistsError:
            return
        except OSError:
            continue
    raise problem


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def try_lock(path: str, how: int = fcntl.LOCK_EX) -> Optional[int]:
    """An open file that holds the lock, or None when another process does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def try_lock_or_full(path: str) -> Optional[int]:
    """The same for who makes room: where there is none for the lock's file nobody holds it, and
    an open file that locks nothing stands for it."""
    try:
        return try_lock(path)
    except OSError as error:
        if not journal.is_full(error):
            raise
        return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)


def wait_lock(
    path: str, limit_s: float, take: Callable[[str], Optional[int]] = try_lock
) -> Optional[int]:
    """The lock as soon as it is free, or None when it was not within the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        fd = take(path)
        if fd is not None or time.monotonic() > deadline:
            return fd
        time.sleep(0.02)


def is_locked(path: str, alone: bool = True) -> bool:
    """Whether some process holds the lock just now; `alone` False: also a shared one."""
    if not os.path.exists(path):
        return False
    # asking for a shared lock disturbs no one who asks in the same way
    fd = try_lock(path, fcntl.LOCK_SH if alone else fcntl.LOCK_EX)
    if fd is None:
        return True
    os.close(fd)
    return False


def read_lines(path: str, start: int = 0) -> Iterator[Tuple[int, Dict[str, Any]]]:
    """(offset behind the line, object) of each whole line of JSON from a byte offset on."""
    try:
        fd = plain.open_file(path)
    except OSError:
        return
    with open(fd, "rb") as file:
        file.seek(start)
        offset = start
        whole = True
        while line := file.readline(MAX_LINE):
            offset += len(line)
            ended = line.endswith(b"\n")
            mine, whole = whole and ended, ended
            if not mine:
                continue  # a piece of a line that is too long, or not yet ended
            try:
                body = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(body, dict):
                yield offset, body


def read_last_lines(path: str, most_bytes: int = 64 * 1024) -> List[Dict[str, Any]]:
    """The whole lines of JSON in the last bytes of a file, oldest first."""
    start = max(0, (plain.size(path) or 0) - most_bytes)
    return [body for _, body in read_lines(path, start)]


def _write_new(path: str, data: bytes, sync: bool, mode: int = 0o644) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    fd = os.open(path, flags, mode)
    try:
        write_all(fd, data)
        if sync:
            os.fsync(fd)
    finally:
        os.close(fd)


def _overwrite(spare: str, data: bytes) -> None:
    fd = os.open(spare, os.O_WRONLY | os.O_CLOEXEC)
    try:
        room = os.fstat(fd).st_size
        os.pwrite(fd, data + b" " * max(0, room - len(data)), 0)
        os.fsync(fd)
    finally:
        os.close(fd)


def _unlink_quietly(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
