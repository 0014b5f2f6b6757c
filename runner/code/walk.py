"""The walk through the project folder: what is there, and what of it travels."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from runner.code.complaints import LEAVE_OUT, RUNNERIGNORE, shown, unreadable
from runner.code.patterns import Rule
from runner.code.rules import BY_GIT, GITIGNORE, NOTHING, Place, Rules, Verdict
from runner.errors import SpecError

NEVER_ANYWHERE = frozenset({".git", ".venv", "__pycache__", ".runner"})
NEVER_ENDS = ".egg-info"
NEVER_AT_ROOT = frozenset({"results", "build", "dist", "hosts"})
DEEPEST = 200
ITSELF = "runner itself"
NO_FILE = "not a file"

Row = tuple[Any, ...]
"""As `wire` describes one of a tree."""


@dataclass(frozen=True)
class File:
    """A regular file that travels, as it was when the walk came by."""

    path: str
    stat: os.stat_result
    is_asked_for: bool
    """Whether a `!` line of a `.runnerignore` matches it."""


@dataclass
class Found:
    """What a walk found; everything below by path, `/` behind a folder that was left out whole."""

    files: list[File] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    """Of links and empty folders."""
    left_out: list[tuple[str, Rule | str]] = field(default_factory=list)
    """Whatever does not travel, and why: a rule, or one of `BY_GIT`, `ITSELF`, `NO_FILE`."""


def walk(root: str, rules: Rules) -> Found:
    """Everything below the root. Raises SpecError for what can neither travel nor be left out."""
    found = Found()
    _walk(root, rules, found, "", None, NOTHING)
    return found


def count_left_out(found: Found) -> tuple[str, ...]:
    """How much was left out by the rules of which file: `3 by .gitignore`."""
    counts: dict[str, int] = {}
    for _, cause in found.left_out:
        if cause != ITSELF:
            name = _kind(cause)
            counts[name] = counts.get(name, 0) + 1
    return tuple(f"{count} {name}" for name, count in sorted(counts.items()))


def _kind(cause: Rule | str) -> str:
    if cause == NO_FILE:
        return NO_FILE
    is_own = isinstance(cause, Rule) and cause.source.rpartition("/")[2] == RUNNERIGNORE
    return f"by {RUNNERIGNORE if is_own else GITIGNORE}"


def _walk(
    root: str, rules: Rules, found: Found, folder: str, above: Place | None, verdict: Verdict
) -> bool:
    """Take in a folder; whether anything of it travels.

    verdict: what holds for the folder; where it is left out, only what is brought back travels.
    """
    is_left_out = verdict.cause is not None
    if folder.count("/") >= DEEPEST:
        if is_left_out:
            return False
        raise SpecError(
            f"{shown(folder[:100])}… goes on for more than {DEEPEST} folders", LEAVE_OUT
        )
    try:
        with os.scandir(os.path.join(root, folder)) as listing:
            entries = {entry.name: entry for entry in listing}
    except OSError as error:
        if is_left_out:
            return False  # nothing in it is known to be wanted
        raise unreadable(folder, error) from error
    place = rules.enter(above, folder, entries.keys())
    travels = False
    for name in sorted(entries):
        path = f"{folder}/{name}" if folder else name
        is_folder = entries[name].is_dir(follow_symlinks=False)
        if _is_never_sent(folder, name):
            found.left_out.append((path + "/" * is_folder, ITSELF))
            continue
        holds = rules.verdict(place, path, is_folder, verdict)
        if is_folder:
            travels |= _take_folder(root, rules, found, path, place, holds)
        elif (cause := holds.cause) is not None:
            found.left_out.append((path, cause))
        else:
            travels |= _take(root, found, path, entries[name], holds)
    return travels


def _take_folder(
    root: str, rules: Rules, found: Found, path: str, place: Place, verdict: Verdict
) -> bool:
    cause = verdict.cause
    before = len(found.left_out)
    if cause is None or rules.may_bring_back(place, path):
        if _walk(root, rules, found, path, place, verdict):
            return True
        if cause is None and len(found.left_out) == before:
            # really empty; git takes one of whose contents nothing travels for left out itself
            found.rows.append((path, "d", 0, 0, ""))
            return True
    if cause is not None:
        found.left_out[before:] = [(path + "/", cause)]
    return False


def _take(root: str, found: Found, path: str, entry: os.DirEntry[str], verdict: Verdict) -> bool:
    """Take in what is no folder; whether it travels."""
    try:
        state = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(state.st_mode):
            found.files.append(File(path, state, verdict.is_asked_for))
        elif stat.S_ISLNK(state.st_mode):
            found.rows.append(_link_row(root, path, os.readlink(entry.path)))
        else:
            found.left_out.append((path, NO_FILE))
            return False
    except OSError as error:
        raise unreadable(path, error) from error
    return True


def _link_row(root: str, path: str, target: str) -> Row:
    depth = path.count("/")
    leaves = target.startswith("/") or _leads_out(root, path, target)
    for part in target.split("/"):
        depth += -1 if part == ".." else 0 if part in ("", ".") else 1
        leaves = leaves or depth < 0
    if leaves:
        raise SpecError(
            f"{shown(path)} is a link that leaves the project (to {shown(target)})", LEAVE_OUT
        )
    return (path, "l", 0, 0, target)


def _leads_out(root: str, path: str, target: str) -> bool:
    """Whether a link leaves the root by way of other links, which its text alone does not show."""
    if "/../" not in f"{target}/".lstrip("./"):
        return False  # it only goes down once it has gone up
    top = os.path.realpath(root)
    end = os.path.realpath(os.path.join(root, path))
    return end != top and not end.startswith(top.rstrip("/") + "/")


def _is_never_sent(folder: str, name: str) -> bool:
    if name in NEVER_ANYWHERE or name.endswith(NEVER_ENDS):
        return True
    return not folder and name in NEVER_AT_ROOT


def explained(found: Found, rules: Rules) -> Iterable[tuple[str, str]]:
    """Each path that was left out, and the rule in words."""
    asked = [path for path, cause in found.left_out if cause == BY_GIT]
    said = rules.why_git(asked)
    for path, cause in sorted(found.left_out, key=lambda item: item[0]):
        yield path, said.get(path, f"{GITIGNORE}") if cause == BY_GIT else str(cause)
