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
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from runner import wire
from runner.errors import SpecError
from runner.files import open_regular, read_regular
from runner.manifest import Snapshot

NEVER_ANYWHERE = (".git", ".venv", "__pycache__", ".runner", "*.egg-info")
NEVER_AT_ROOT = ("results", "build", "dist", "hosts")
RUNNERIGNORE = ".runnerignore"
GIT_LIMIT_S = 30
DEEPEST = 200
_BLOCK = 1 << 20

Row = tuple[Any, ...]


@dataclass
class _Walk:
    root: str
    rules: _Rules
    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    """Whatever did not travel, for whatever cause."""

    def leave_out(self, rule: str) -> None:
        self.skipped[rule] = self.skipped.get(rule, 0) + 1
        self.left_out += 1


def read_snapshot(root: Path) -> Snapshot:
    """The project folder as it is now. Raises SpecError for what cannot travel."""
    _read_spec(os.path.join(root, ".gitignore"))  # git would wait for a FIFO
    git = _Git(root)
    try:
        walk = _Walk(os.fspath(root), _Rules(os.fspath(root), git))
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


class _Rules:
    """What is ignored, and by which file."""

    def __init__(self, root: str, git: _Git) -> None:
        self._root = root
        self._nested: list[tuple[str, GitIgnoreSpec]] = []
        self._own = _read_spec(os.path.join(root, RUNNERIGNORE))
        self.may_bring_back = _brings_back(os.path.join(root, RUNNERIGNORE))
        self._git_ignored = git.ignored()

    def enter(self, folder: str) -> None:
        """Read the rules a folder adds; where git says what is ignored, only a repository adds."""
        if self._git_ignored is not None:
            if folder and os.path.lexists(os.path.join(self._root, folder, ".git")):
                inner = _Git(Path(self._root, folder), facts=False).ignored() or ()
                self._git_ignored |= {f"{folder}/{name}" for name in inner}
            return
        self._nested = [
            (prefix, spec)
            for prefix, spec in self._nested
            if not prefix or folder == prefix or folder.startswith(prefix + "/")
        ]
        spec = _read_spec(os.path.join(self._root, folder, ".gitignore"))
        if spec is not None:
            self._nested.append((folder, spec))

    def why_ignored(self, path: str, is_folder: bool, inherited: str | None) -> str | None:
        """The file whose rule leaves this path out, or None."""
        name = path + "/" if is_folder else path
        if self._own is not None:
            verdict = self._own.check_file(_byte_by_byte(name)).include
            if verdict is not None:
                return RUNNERIGNORE if verdict else None
        if inherited is not None:
            return inherited
        if self._git_ignored is not None:
            return ".gitignore" if name in self._git_ignored else None
        ignored = False
        for prefix, spec in self._nested:
            if prefix and not name.startswith(prefix + "/"):
                continue  # rules of a folder beside this one, just walked through
            inside = name[len(prefix) + 1 :] if prefix else name
            verdict = spec.check_file(_byte_by_byte(inside)).include
            ignored = ignored if verdict is None else verdict
        return ".gitignore" if ignored else None


def _read_spec(path: str) -> GitIgnoreSpec | None:
    try:
        text = read_regular(path).removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:
        return GitIgnoreSpec.from_lines(line for line in lines if _is_rule(line))


def _byte_by_byte(name: str) -> str:
    """A name with a character for each byte, as rules are read: to git `?` is one byte."""
    return name if name.isascii() else os.fsencode(name).decode("latin-1")


def _is_rule(line: str) -> bool:
    """Whether a line means anything; git passes over one that does not."""
    try:
        GitIgnoreSpec.from_lines([line])
    except ValueError:
        return False
    return True


def _brings_back(path: str) -> bool:
    try:
        return any(line.startswith(b"!") for line in read_regular(path).splitlines())
    except OSError:
        return False


class _Git:
    """What git says of a folder; everything is None or empty where it says nothing."""

    def __init__(self, root: Path, facts: bool = True) -> None:
        self._root = root
        words = ("status", "--porcelain=v2", "--branch", "-z", "--", ".")
        self._status = self._start(*words) if facts else None

    def stop(self) -> None:
        """Nobody wants the facts any more."""
        if self._status is not None:
            self._status.kill()
            self._status.communicate()

    def ignored(self) -> frozenset[str] | None:
        """Ignored paths relative to the root, folders with a `/` for all below them.

        None where git cannot say, and where the whole root is ignored: then it is only by chance
        inside somebody's work tree (a home folder kept in git).
        """
        words = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
        done = self._finish(self._start(*words))
        found = frozenset((done or "").split("\0")) - {""}
        return None if done is None or "./" in found else found

    def facts(self) -> dict[str, Any]:
        """{"commit", "branch", "edited"}: the last is how many files differ from the commit."""
        done = self._finish(self._status)
        if done is None:
            return {}
        out: dict[str, Any] = {"commit": None, "branch": None, "edited": 0}
        for line in self._entries(done):
            if line.startswith("# branch.oid ") and "(initial)" not in line:
                out["commit"] = line[13:]
            elif line.startswith("# branch.head "):
                out["branch"] = line[14:]
            elif not line.startswith("#"):
                out["edited"] += 1
        return out

    def _entries(self, text: str) -> Iterator[str]:
        parts = iter(text.split("\0"))
        for part in parts:
            if not part:
                continue
            yield part
            if part.startswith("2 "):
                # a rename is followed by the name it had
                next(parts, None)

    def _start(self, *words: str) -> subprocess.Popen[bytes] | None:
        argv = ["git", "-c", "core.quotePath=false", "-c", "core.fsmonitor=false", *words]
        env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        try:
            return subprocess.Popen(
                argv,
                cwd=self._root,
                env=dict(env, GIT_OPTIONAL_LOCKS="0"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return None

    def _finish(self, child: subprocess.Popen[bytes] | None) -> str | None:
        if child is None:
            return None
        try:
            out, _ = child.communicate(timeout=GIT_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            return None
        return os.fsdecode(out) if child.returncode == 0 else None
