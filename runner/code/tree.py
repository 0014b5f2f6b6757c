"""The project folder as a snapshot: which files travel, and what they are.

A snapshot is the folder whole, minus git's ignore rules, then those of `.runnerignore` (which may
bring back with `!`), minus what is never sent. Inside a git work tree git itself says what it
ignores; elsewhere, or where git cannot, .gitignore files are read here with the same meaning.
What hardly is code (`guard.py`) is refused by its name and size, before any content is read.
"""

from __future__ import annotations

import bisect
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from runner import wire
from runner.code import guard
from runner.code.complaints import RUNNERIGNORE, shown, unreadable
from runner.code.digests import Digests
from runner.code.git import Git
from runner.code.rules import GITIGNORE, Rules, read_rules
from runner.code.walk import NO_FILE, File, Found, Row, count_left_out, explained, walk
from runner.errors import SpecError
from runner.files import open_regular
from runner.manifest import LeftOut, Snapshot
from runner.model import Project

CACHE = os.path.join(".runner", "digests")
_BLOCK = 1 << 20


def read_snapshot(
    root: Path,
    cache: Path | None = Path(CACHE),
    *,
    limit_bytes: int = Project.code_limit_bytes,
    explain: bool = False,
) -> Snapshot:
    """The project folder as it is now. Raises SpecError for what cannot or should not travel.

    cache: what is known of unchanged files, below the root; None: every file is read.
    explain: `left_out` is wanted, which costs a question to git.
    """
    top = os.fspath(root)
    read_rules(os.path.join(top, GITIGNORE))  # git would wait for a FIFO
    git = Git(root)
    try:
        rules = Rules(top, git)
        found = walk(top, rules)
        guard.check(found.files, limit_bytes)
        rows = tuple(sorted([*found.rows, *_file_rows(top, found.files, cache)]))
        said, diff = git.facts(*_what_counts(rows, found.files))
    finally:
        git.stop()
    return Snapshot(
        rows=rows,
        digest=wire.tree_digest(rows),
        code=dict(said, files=len(found.files), bytes=sum(row[3] for row in rows)),
        skipped=count_left_out(found),
        left_out=tuple(LeftOut(*pair) for pair in explained(found, rules)) if explain else (),
        warnings=(*rules.warnings, *_no_files(found)),
        diff=diff,
    )


def _what_counts(
    rows: Sequence[Row], files: Sequence[File]
) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """Whether a path travels, or something below it; and whether its changes may be shown.

    Not those of a file named like a secret that was only emptied: what it held would travel after
    all.
    """
    paths = [row[0] for row in rows]
    known = set(paths)
    emptied = {
        file.path
        for file in files
        if not file.stat.st_size and not file.is_asked_for and guard.secret_by_name(file.path)
    }

    def travels(path: str) -> bool:
        if path in known:
            return True
        place = bisect.bisect_left(paths, path + "/")
        return place < len(paths) and paths[place].startswith(path + "/")

    return travels, lambda path: path in known and path not in emptied


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
        raise unreadable(path, error) from error
    if longer or found.hexdigest() != digest:
        raise SpecError(f"{shown(path)} changed while it was sent; type the same words again")


def _file_rows(root: str, files: list[File], cache: Path | None) -> list[Row]:
    digests = Digests(None if cache is None else os.path.join(root, cache))
    rows: list[Row] = []
    secrets: list[tuple[str, str]] = []
    for file in files:
        known = digests.known(file.path, file.stat)
        if known is not None:
            rows.append(_row(file.path, file.stat, known))
            continue
        state, digest, begin = _read_file(root, file)
        rows.append(_row(file.path, state, digest))
        kind = guard.secret_by_content(file.path, begin)
        if kind is None:
            digests.keep(file.path, state, digest)
        elif not file.is_asked_for:
            secrets.append((file.path, kind))
    guard.refuse_secrets(secrets)
    digests.save()
    return rows


def _row(path: str, state: os.stat_result, digest: str) -> Row:
    mode = 0o755 if state.st_mode & stat.S_IXUSR else 0o644
    return (path, "f", mode, state.st_size, digest)


def _read_file(root: str, file: File) -> tuple[os.stat_result, str, bytes]:
    """A file as it was when it was read, its digest, and the first of its bytes."""
    full = os.path.join(root, file.path)
    try:
        expected = file.stat
        for _ in range(2):
            with open_regular(full) as opened:
                before = os.fstat(opened.fileno())
                begin = opened.read(_BLOCK)
                digest = hashlib.sha256(begin)
                while block := opened.read(_BLOCK):
                    digest.update(block)
                after = os.fstat(opened.fileno())
            # another file in its place may be one that a link leads to
            if _signs(before) == _signs(after) and os.path.samestat(before, expected):
                return after, digest.hexdigest(), begin
            expected = os.lstat(full)
    except OSError as error:
        raise unreadable(file.path, error) from error
    raise SpecError(
        f"{shown(file.path)} changes while it is read; leave it out by a line in {RUNNERIGNORE}"
    )


def _signs(state: os.stat_result) -> tuple[int, int, int]:
    return (state.st_size, state.st_mtime_ns, state.st_ctime_ns)


def _no_files(found: Found) -> list[str]:
    """What to say of pipes, sockets and the like."""
    names = [shown(path) for path, cause in found.left_out if cause == NO_FILE]
    return [f"left out, as no file: {guard.some(names)}"] if names else []
