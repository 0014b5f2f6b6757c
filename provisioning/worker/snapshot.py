"""Snapshots on the worker: lists of trees, and a run's own copy of its code.

The order makes a cut harmless: contents (temporary, checked, renamed: `contents.py`), then the
tree's list, then the copy under a temporary name, renamed. A name that exists is whole, also after
a power cut: contents are on the disk before they get their names, their names before the list that
promises them is. The copy need not be: it is compared with the list before each attempt.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Sequence, Set

import plain
import records
from paths import Workspace

from runner import wire

COPY_LIMIT_BYTES = 100 * 10**6
FICLONE = 0x40049409
BLOCK = 1 << 20
DISK_BLOCK = 4096
STAGING = ".tmp-"
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)
ROW_BYTES = 100
"""Of a row in a list, its path aside."""
RECORD_BLOCKS = 12
RECORD_FILES = 24
"""Of a run from submit to its end, its logs and what it makes aside."""
MAX_SIZE = 2**63
Row = Sequence[Any]


class BadTree(Exception):
    """A list of files that cannot be a snapshot; the text says why."""


class BadContents(OSError):
    """Contents here were not what their digests say, or gone. They are not here any more."""

    def __init__(self, paths: Sequence[str]) -> None:
        """paths: of files of the snapshot that have one of them."""
        super().__init__(paths)
        self.paths = paths

    def __str__(self) -> str:
        more = " and %d more" % (len(self.paths) - 1) if self.paths[1:] else ""
        return (
            "what this host keeps of %s%s was damaged or gone; "
            "submit the same code once more, and it travels anew" % (self.paths[0], more)
        )


def check_rows(rows: Any) -> List[Row]:
    """The rows of a tree, each checked. Raises BadTree."""
    if not isinstance(rows, list):
        raise BadTree("not a list")
    seen: Set[str] = set()
    for row in rows:
        if not isinstance(row, list) or len(row) != 5:
            raise BadTree("a row that is not [path, kind, mode, size, what]")
        path, kind, mode, size, what = row
        if not wire.plain_path(path):
            raise BadTree("path %r leaves the tree" % (path,))
        if path in seen:
            raise BadTree("path %r twice" % path)
        seen.add(path)
        if kind not in ("f", "d", "l") or not isinstance(mode, int) or not isinstance(size, int):
            raise BadTree("row of %r" % path)
        if not 0 <= size < MAX_SIZE:
            raise BadTree("size of %r" % path)
        if kind == "f" and not is_digest(what):
            raise BadTree("digest of %r" % path)
        if kind == "l" and not _stays_inside(path, what):
            raise BadTree("link %r leaves the tree" % path)
    for path in seen:
        if any(parent in seen for parent in _parents(path)):
            raise BadTree("path %r lies below another one" % path)
    return rows


def needed(workspace: Workspace, rows: Iterable[Row]) -> List[str]:
    """Digests of the contents that are not here yet, each once."""
    wanted = {row[4] for row in rows if row[1] == "f"}
    return sorted(digest for digest in wanted if not os.path.exists(workspace.blob(digest)))


class Want(NamedTuple):
    """What something takes of a disk."""

    bytes: int
    files: int


def room_for(rows: Sequence[Row], missing: Iterable[str], copied: bool) -> Want:
    """What a run takes of the disk before it starts: contents that are `missing` yet, their list,
    its records, and, where `copied`, its own copy of the code."""
    size = files = 0
    sizes = {row[4]: row[3] for row in rows if row[1] == "f"}
    for digest in missing:
        size += _on_disk(sizes[digest])
        files += 1
    size += _on_disk(sum(2 * len(row[0]) + ROW_BYTES for row in rows)) + RECORD_BLOCKS * DISK_BLOCK
    files += RECORD_FILES
    if copied:
        total = sum(row[3] for row in rows if row[1] == "f")
        for _, kind, mode, length, _ in rows:
            linked = kind == "f" and total > COPY_LIMIT_BYTES and not mode & 0o100
            size += 0 if linked else _on_disk(length if kind == "f" else 1)
            files += 0 if linked else 1
        folders = {parent for row in rows for parent in _parents(row[0])}
        size += len(folders) * DISK_BLOCK
        files += len(folders)
    return Want(size, files)


def _on_disk(length: int) -> int:
    """Bytes in whole blocks."""
    return -(-length // DISK_BLOCK) * DISK_BLOCK


def changed(base: Iterable[Row], changes: Any) -> List[Row]:
    """The rows that `[[paths that went], [rows that came or changed]]` make of others.

    Raises BadTree for what is no such pair; the rows are not checked.
    """
    if not isinstance(changes, list) or len(changes) != 2:
        raise BadTree("not a pair of what went and what came")
    gone, came = changes
    if not isinstance(gone, list) or not isinstance(came, list):
        raise BadTree("not a pair of what went and what came")
    try:
        rows = {row[0]: row for row in base}
        for path in gone:
            rows.pop(path, None)
        rows.update((row[0], row) for row in came)
        return [rows[path] for path in sorted(rows)]
    except (IndexError, KeyError, TypeError) as error:
        raise BadTree("a row that is not [path, kind, mode, size, what]") from error


def write_tree(workspace: Workspace, digest: str, rows: List[Row]) -> None:
    """Keep a snapshot's list under its digest, durably; its contents are here already."""
    target = workspace.tree(digest)
    body = json.dumps({"format": records.FORMAT, "rows": rows}, separators=(",", ":"))
    temporary = os.path.join(workspace.trees, STAGING + os.urandom(8).hex())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        try:
            records.write_all(fd, body.encode("ascii"))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    records.sync_folder(workspace.trees)


def has_tree(workspace: Workspace, digest: str) -> bool:
    """Whether a snapshot is here, whole: its list, which promises its contents."""
    return os.path.exists(workspace.tree(digest))


def read_tree(workspace: Workspace, digest: str, checked: bool = False) -> Optional[List[Row]]:
    """A snapshot's list, or None when it is not here.

    checked: None also where it is not the one its digest names any more.
    """
    body = records.read(workspace.tree(digest))
    rows: Optional[List[Row]] = body.get("rows") if body else None
    if rows is None or not checked:
        return rows
    try:
        return rows if wire.tree_digest(rows) == digest else None  # type: ignore[arg-type]
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def lay_out(workspace: Workspace, rows: Iterable[Row], target: str) -> None:
    """Make a run's own copy of a snapshot: files read-only, folders writable.

    Contents that are copied byte by byte are checked on the way. Raises BadContents.
    """
    rows = list(rows)
    temporary = "%s/.tmp-%s-%d" % (os.path.dirname(target), os.path.basename(target), os.getpid())
    shutil.rmtree(temporary, ignore_errors=True)
    os.mkdir(temporary)
    copier = _Copier(workspace, rows)
    made = {""}
    try:
        for path, kind, mode, _size, what in rows:
            place = os.path.join(temporary, path)
            _make_parents(temporary, os.path.dirname(path), made)
            if kind == "d":
                _make_parents(temporary, path, made)
            elif kind == "l":
                os.symlink(what, place)
            else:
                copier.put(what, place, mode, path)
        copier.check()
        os.rename(temporary, target)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # one of the same run, made at the same time, is as good: it got its name when it was whole
        if not isinstance(error, OSError) or not os.path.isdir(target):
            raise


def differences(rows: Iterable[Row], folder: str) -> List[str]:
    """Paths of a run's copy that are not what the snapshot says; the job's own files are fine."""
    wrong = []
    straight: Set[str] = set()
    for path, kind, mode, size, what in rows:
        place = os.path.join(folder, path)
        if not _is_straight(folder, path, straight):
            wrong.append(path)
            continue
        try:
            found = os.lstat(place)
        except OSError:
            wrong.append(path)
            continue
        if kind == "l":
            same = stat.S_ISLNK(found.st_mode) and os.readlink(place) == what
        elif kind == "d":
            same = stat.S_ISDIR(found.st_mode)
        else:
            same = stat.S_ISREG(found.st_mode) and found.st_size == size
            same = same and bool(found.st_mode & 0o100) == bool(mode & 0o100)
            same = same and file_digest(place) == what
        if not same:
            wrong.append(path)
    return wrong


def _is_straight(folder: str, path: str, known: Set[str]) -> bool:
    """Whether the folders above a path are folders, and no links that a job put there."""
    for parent in _parents(path):
        if parent not in known:
            place = os.path.join(folder, parent)
            if os.path.islink(place) or not os.path.isdir(place):
                return False
            known.add(parent)
    return True


class Interrupted(Exception):
    """Reading was given up, because somebody waits for something else."""


def file_digest(
    path: str, most: Optional[int] = None, stop: Callable[[], Any] = lambda: False
) -> str:
    """sha256 of a file, or of its first `most` bytes. Raises Interrupted once `stop` is true."""
    digest = hashlib.sha256()
    with open(plain.open_file(path), "rb", buffering=0) as file:
        left = most
        while left is None or left > 0:
            block = file.read(BLOCK if left is None else min(BLOCK, left))
            if not block:
                break
            if stop():
                raise Interrupted()
            digest.update(block)
            left = None if left is None else left - len(block)
    return digest.hexdigest()


class _Copier:
    """Puts contents of a snapshot in their places; those that are damaged it removes."""

    def __init__(self, workspace: Workspace, rows: Iterable[Row], *, is_sure: bool = False) -> None:
        """is_sure: also what is put in place without being read is checked."""
        self._workspace = workspace
        self._links = sum(row[3] for row in rows if row[1] == "f") > COPY_LIMIT_BYTES
        self._clones = True
        self._is_sure = is_sure
        self._bad: List[str] = []

    def put(self, digest: str, place: str, mode: int, path: str) -> None:
        """A file that nobody writes to: a second name of a large snapshot's, else a copy."""
        blob = self._workspace.blob(digest)
        try:
            if (self._is_sure and file_digest(blob) != digest) or not self._put(
                digest, blob, place, mode
            ):
                os.unlink(blob)
                self._bad.append(path)
        except FileNotFoundError:
            if os.path.exists(blob):
                raise
            self._bad.append(path)

    def check(self) -> None:
        """Raises BadContents when not all could be put in place."""
        if self._bad:
            raise BadContents(self._bad)

    def _put(self, digest: str, blob: str, place: str, mode: int) -> bool:
        """Whether what was read on the way is what the digest says."""
        # modes belong to the inode, so a script needs one of its own
        if self._links and not mode & 0o100:
            try:
                os.link(blob, place)
                return True
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
        source = os.open(blob, os.O_RDONLY | os.O_CLOEXEC)
        try:
            out = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                is_good = True
                if not self._cloned(source, out):
                    copied = hashlib.sha256()
                    while block := os.read(source, BLOCK):
                        copied.update(block)
                        records.write_all(out, block)
                    is_good = copied.hexdigest() == digest
                os.fchmod(out, 0o555 if mode & 0o100 else 0o444)
            finally:
                os.close(out)
        finally:
            os.close(source)
        return is_good

    def _cloned(self, source: int, out: int) -> bool:
        """Whether the file system made a copy that shares the blocks; one that cannot never can."""
        if self._clones:
            try:
                fcntl.ioctl(out, FICLONE, source)
            except OSError:
                self._clones = False
        return self._clones


def _parents(path: str) -> Iterable[str]:
    """Every folder above a path, the outermost first."""
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def _make_parents(root: str, folder: str, made: Set[str]) -> None:
    if folder in made:
        return
    _make_parents(root, os.path.dirname(folder), made)
    os.mkdir(os.path.join(root, folder), 0o755)
    made.add(folder)


def is_digest(text: Any) -> bool:
    return isinstance(text, str) and len(text) == 64 and all(c in "0123456789abcdef" for c in text)


def _stays_inside(path: str, target: Any) -> bool:
    if not isinstance(target, str) or not target or target.startswith("/") or "\0" in target:
        return False
    depth = path.count("/")
    for part in target.split("/"):
        if part == "..":
            depth -= 1
        elif part not in ("", "."):
            depth += 1
        if depth < 0:
            return False
    return True


def restore(workspace: Workspace, rows: Iterable[Row], folder: str) -> None:
    """Put back what a run's copy lacks or has changed; files of the job's own stay.

    Raises BadContents where the snapshot's own contents are not what they were.
    """
    rows = list(rows)
    # a second name of a content may be what the job wrote to
    copier = _Copier(workspace, rows, is_sure=True)
    wrong = set(differences(rows, folder))
    for path, kind, mode, _size, what in rows:
        if path not in wrong:
            continue
        place = os.path.join(folder, path)
        os.makedirs(folder, exist_ok=True)
        for parent in _parents(path):
            here = os.path.join(folder, parent)
            if os.path.islink(here) or not os.path.isdir(here):
                if os.path.lexists(here):
                    os.unlink(here)
                os.mkdir(here, 0o755)
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place)
        elif os.path.lexists(place):
            os.unlink(place)
        if kind == "d":
            os.mkdir(place)
        elif kind == "l":
            os.symlink(what, place)
        else:
            copier.put(what, place, mode, path)
    copier.check()
