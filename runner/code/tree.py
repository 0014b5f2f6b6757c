"""The project folder as a snapshot: which files travel, and what they are.

A snapshot is the folder whole, minus git's ignore rules, then `.runnerignore`'s (which may bring
back with `!`), minus what is never sent. Inside a git work tree git itself says what it ignores;
elsewhere, or where git cannot, .gitignore files are read here with the same meaning.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner import wire
from runner.code.git import Git
from runner.code.rules import RUNNERIGNORE, Rules, read_spec
from runner.errors import SpecError
from runner.files import open_regular
from runner.manifest import Snapshot

NEVER_ANYWHERE = (".git", ".venv", "__pycache__", ".runner", "*.egg-info")
NEVER_AT_ROOT = ("results", "build", "dist", "hosts")
DEEPEST = 200
_BLOCK = 1 << 20

Row = tuple[Any, ...]


@dataclass
class _Walk:
    root: str
    rules: Rules
    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    """Whatever did not travel, for whatever cause."""

    def leave_out(self, rule: str) -> None:
        self.skipped[rule] = self.skipped.get(rule, 0) + 1
        self.left_out += 1


def read_snapshot(root: Path) -> Snapshot:
    """The project folder as it is now. Raises SpecError for what cannot travel."""
    read_spec(os.path.join(root, ".gitignore"))  # git would wait for a FIFO
    git = Git(root)
    try:
        walk = _Walk(os.fspath(root), Rules(os.fspath(root), git))
        _walk(walk, "", None)
    except BaseException:
        git.stop()
        raise
    rows = tuple(sorted(walk.rows, key=lambda row: str(row[0])))
    files = [row for row in rows if row[1] == "f"]
    code = dict(git.facts(), files=len(files), bytes=sum(row[3] for row in files))
    skipped = tuple(f"{count} by {rule}" for rule, count in sorted(walk.skipped.items()))
    return Snapshot(rows, wire.tree_digest(rows), code, skipped)


def read_content(root: Path, path: str, size: int, digest: str) -> Iterator[bytes]:
    """A file's content in pieces, `size` bytes in all.

    Raises SpecError, in the end at the latest, when it is not what was read before.
    """
    found = hashlib.sha256()
    left = size
    try:
        with open_regular(os.path.join(root, path)) as file:
            while left and (block := file.read(min(_BLOCK, left))):
                found.update(block)
                left -= len(block)
                yield block
            longer = file.read(1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if longer or found.hexdigest() != digest:
        raise SpecError(f"{_shown(path)} changed while it was sent; type the same words again")


def _walk(walk: _Walk, folder: str, inherited: str | None) -> bool:
    """Take in a folder; whether anything of it travels.

    inherited: the file whose rule leaves the folder out, when only what is brought back travels.
    """
    any_row = False
    if folder.count("/") >= DEEPEST:
        raise SpecError(
            f"{_shown(folder[:100])}… goes on for more than {DEEPEST} folders",
            f"leave it out by a line in {RUNNERIGNORE}; nothing was sent",
        )
    try:
        entries = sorted(os.scandir(os.path.join(walk.root, folder)), key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder, error) from error
    walk.rules.enter(folder)
    for entry in entries:
        path = f"{folder}/{entry.name}" if folder else entry.name
        if _never(path):
            walk.left_out += 1
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        rule = walk.rules.why_ignored(path, is_folder, inherited)
        if rule is not None and not (is_folder and walk.rules.may_bring_back):
            walk.leave_out(rule)
            continue
        if is_folder:
            left_out = walk.left_out
            if _walk(walk, path, rule):
                any_row = True
            elif rule is None and walk.left_out == left_out:
                # really empty; git takes one of whose contents nothing travels for left out itself
                walk.rows.append((path, "d", 0, 0, ""))
                any_row = True
        elif entry.is_symlink():
            walk.rows.append(_link_row(walk.root, path))
            any_row = True
        elif entry.is_file(follow_symlinks=False):
            walk.rows.append(_file_row(walk.root, path))
            any_row = True
        else:
            walk.leave_out("not a file")
    return any_row


def _file_row(root: str, path: str) -> Row:
    full = os.path.join(root, path)
    for _ in range(2):
        try:
            with open_regular(full) as file:
                before = os.fstat(file.fileno())
                digest = hashlib.sha256()
                while block := file.read(_BLOCK):
                    digest.update(block)
                after = os.fstat(file.fileno())
        except OSError as error:
            raise _unreadable(path, error) from error
        if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
            mode = 0o755 if after.st_mode & stat.S_IXUSR else 0o644
            return (path, "f", mode, after.st_size, digest.hexdigest())
    raise SpecError(
        f"{_shown(path)} changes while it is read; leave it out by a line in {RUNNERIGNORE}"
    )


def _link_row(root: str, path: str) -> Row:
    target = os.readlink(os.path.join(root, path))
    depth = path.count("/")
    leaves = target.startswith("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        leaves = leaves or depth < 0
    if leaves:
        raise SpecError(
            f"{_shown(path)} is a link that leaves the project (to {_shown(target)})",
            f"leave it out by a line in {RUNNERIGNORE}; nothing was sent",
        )
    return (path, "l", 0, 0, target)


def _never(path: str) -> bool:
    name = path.rpartition("/")[2]
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in NEVER_ANYWHERE):
        return True
    return path in NEVER_AT_ROOT


def _unreadable(path: str, error: OSError) -> SpecError:
    return SpecError(
        f"{_shown(path or '.')} cannot be read: {error.strerror}",
        f"leave it out by a line in {RUNNERIGNORE}; nothing was sent",
    )


def _shown(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
