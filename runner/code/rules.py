"""What is left out, and by which rule: git's, then those of `.runnerignore`."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from runner.code.complaints import RUNNERIGNORE, shown
from runner.code.git import Git, global_rules_file
from runner.code.patterns import Rule, RuleFile, by_byte
from runner.errors import SpecError
from runner.files import read_regular

GITIGNORE = ".gitignore"
BY_GIT = "git"
"""The cause where git itself says that a path is ignored."""


class Verdict(NamedTuple):
    """What the rules say of a path."""

    git: Rule | str | None = None
    """Why git's rules leave it out."""
    own: Rule | None = None
    """Which line of a `.runnerignore` decides on it, if one does."""
    is_asked_for: bool = False
    """Whether a `!` line of a `.runnerignore` matches this very path."""

    @property
    def cause(self) -> Rule | str | None:
        """Why the path is left out; None: it travels."""
        if self.own is not None:
            return None if self.own.negated else self.own
        return self.git


NOTHING = Verdict()


@dataclass(frozen=True)
class _Level:
    """A rule file and the part of the tree it speaks of."""

    skip: int
    """How many characters of a path lead to the file's folder."""
    before: str
    """What leads from the file's folder to the root, for a file above it."""
    rules: RuleFile

    def last_match(self, path: str, is_folder: bool) -> Rule | None:
        """The rule that decides on a path, which is `by_byte`."""
        return self.rules.last_match(self.before + path[self.skip :], is_folder)


@dataclass(frozen=True)
class Place:
    """The rules that hold for what is directly in one folder, the last word first."""

    own: tuple[_Level, ...] = ()
    read: tuple[_Level, ...] | None = ()
    """Git's rules where they are read here; None: git says."""


class Rules:
    """What is left out of the tree below a root."""

    def __init__(self, root: str, git: Git) -> None:
        self.warnings: list[str] = []
        self._root = root
        self._inner: dict[str, Git] = {}
        self._git = git
        ignored = git.ignored()
        self._by_git = ignored or set()
        if git.problem is not None:
            self._warn(".git", git.problem)
        if ignored is not None:
            self._start = Place(read=None)
        else:
            self._start = Place(read=_rules_around(root, git.top if git.problem else None))

    def enter(self, above: Place | None, folder: str, names: Collection[str]) -> Place:
        """The rules in a folder, of which `names` are the entries. above: those around it."""
        place = above or self._start
        own, read = place.own, place.read
        if RUNNERIGNORE in names:
            own = (self._read(folder, RUNNERIGNORE), *own)
        if folder and ".git" in names and read is None:
            read = self._enter_repository(folder)
        if GITIGNORE in names and read is not None:
            read = (self._read(folder, GITIGNORE), *read)
        same = own is place.own and read is place.read
        return place if same else Place(own, read)

    def verdict(self, place: Place, path: str, is_folder: bool, above: Verdict) -> Verdict:
        """What holds for a path. place: its folder's; above: what holds for the folder itself."""
        own, asked, git = above.own, False, above.git
        name = by_byte(path) if place.own or place.read else path
        for level in place.own:
            if (rule := level.last_match(name, is_folder)) is not None:
                # what leaves out a folder leaves out all below it, but for what comes after
                if own is None or own.negated or rule.order > own.order:
                    own, asked = rule, rule.negated
                break
        if git is None and self._by_git and (path + "/" if is_folder else path) in self._by_git:
            git = BY_GIT
        if git is None and place.read:
            git = _git_rule(place.read, name, is_folder)
        if own is None and git is None:
            return NOTHING
        return Verdict(git, own, asked)

    def may_bring_back(self, place: Place, folder: str) -> bool:
        """Whether something below a folder that is left out may travel all the same."""
        name = by_byte(folder)
        if any(level.rules.may_bring_back_below(name[level.skip :]) for level in place.own):
            return True
        return os.path.lexists(os.path.join(self._root, folder, RUNNERIGNORE)) and self._read(
            folder, RUNNERIGNORE
        ).rules.may_bring_back_below("")

    def why_git(self, paths: list[str]) -> dict[str, str]:
        """`FILE:LINE: PATTERN` for paths whose cause is git.

        A folder that no line names, but whose contents are all left out, has the cause of one.
        """
        out = self._ask_git(paths)
        inside = {
            _first_inside(self._root, path): path
            for path in paths
            if path.endswith("/") and path not in out
        }
        found = self._ask_git([path for path in inside if path is not None])
        return {**out, **{inside[path]: rule for path, rule in found.items()}}

    def _ask_git(self, paths: list[str]) -> dict[str, str]:
        out = {}
        for folder, git in (*self._inner.items(), ("", self._git)):
            start = len(folder) + 1 if folder else 0
            asked = [path for path in paths if path.startswith(folder + "/" * bool(folder))]
            paths = [path for path in paths if path not in set(asked)]
            found = git.why_ignored(path[start:] for path in asked) if asked else {}
            for path, rule in found.items():
                whole = f"{folder}/{path}" if folder else path
                out[whole] = f"{folder}/{rule}" if folder and not rule.startswith("/") else rule
        return out

    def _enter_repository(self, folder: str) -> tuple[_Level, ...] | None:
        """Git's rules in a repository within; None: git says."""
        inner = Git(Path(self._root, folder), facts=False)
        ignored = inner.ignored()
        if ignored is None:
            self._warn(f"{folder}/.git", inner.problem or "all of it is ignored")
            return ()
        self._inner = {folder: inner, **self._inner}
        self._by_git.update(f"{folder}/{name}" for name in ignored)
        return None

    def _read(self, folder: str, name: str) -> _Level:
        path = f"{folder}/{name}" if folder else name
        skip = len(by_byte(folder)) + 1 if folder else 0
        full = os.path.join(self._root, path)
        is_link = name == GITIGNORE and os.path.islink(full)  # git does not follow it
        depth = folder.count("/") + 1 if folder else 0
        return _Level(skip, "", RuleFile(b"" if is_link else read_rules(full), shown(path), depth))

    def _warn(self, where: str, problem: str) -> None:
        self.warnings.append(
            f"{shown(where)} is of no use to git ({problem}); "
            f"the {GITIGNORE} files are read without it"
        )


def _first_inside(root: str, folder: str) -> str | None:
    """Some file in a folder."""
    for place, _, names in os.walk(os.path.join(root, folder)):
        if names:
            return os.path.relpath(os.path.join(place, min(names)), root)
    return None


def _read_outside(path: str) -> bytes:
    """What a rule file around the project holds; nothing where that cannot be read, as for git."""
    try:
        return read_regular(path)
    except OSError:
        return b""


def read_rules(path: str) -> bytes:
    """What a rule file holds. Raises SpecError when it is there and cannot be read."""
    try:
        return read_regular(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""
    except OSError as error:
        raise SpecError(f"{shown(path)} cannot be read: {error.strerror}") from error


def _git_rule(levels: tuple[_Level, ...], name: str, is_folder: bool) -> Rule | None:
    for level in levels:
        if (rule := level.last_match(name, is_folder)) is not None:
            return None if rule.negated else rule
    return None


def _rules_around(root: str, top: str | None) -> tuple[_Level, ...]:
    """Git's rules from outside the tree. top: the work tree around it, which git cannot read."""
    inside = os.path.relpath(os.path.realpath(root), top or root)
    parts = [] if inside == "." else inside.split("/")
    files = []
    if (everywhere := global_rules_file()) is not None:
        files.append((everywhere, parts))
    if top is not None:
        files.append((os.path.join(top, ".git", "info", "exclude"), parts))
    for count in range(len(parts)):
        files.append((os.path.join(str(top), *parts[:count], GITIGNORE), parts[count:]))
    levels = [
        _Level(0, "".join(f"{by_byte(part)}/" for part in below), RuleFile(data, shown(path)))
        for path, below in reversed(files)
        if (data := _read_outside(path))
    ]
    # where they leave the root itself out, it is only by chance inside that work tree
    return () if any(_leaves_out_the_root(level) for level in levels) else tuple(levels)


def _leaves_out_the_root(level: _Level) -> bool:
    parts = level.before.split("/")[:-1]
    found = [
        level.rules.last_match("/".join(parts[:count]), True) for count in range(1, len(parts) + 1)
    ]
    return any(rule is not None and not rule.negated for rule in found)
