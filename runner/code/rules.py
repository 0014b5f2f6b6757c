"""What is ignored, and by which file."""

from __future__ import annotations

import os
from pathlib import Path

from pathspec import GitIgnoreSpec

from runner.code.git import Git
from runner.errors import SpecError
from runner.files import read_regular

RUNNERIGNORE = ".runnerignore"


class Rules:
    """What is ignored, and by which file."""

    def __init__(self, root: str, git: Git) -> None:
        self._root = root
        self._nested: list[tuple[str, GitIgnoreSpec]] = []
        self._own = read_spec(os.path.join(root, RUNNERIGNORE))
        self.may_bring_back = _brings_back(os.path.join(root, RUNNERIGNORE))
        self._git_ignored = git.ignored()

    def enter(self, folder: str) -> None:
        """Read the rules a folder adds; where git says what is ignored, only a repository adds."""
        if self._git_ignored is not None:
            if folder and os.path.lexists(os.path.join(self._root, folder, ".git")):
                inner = Git(Path(self._root, folder), facts=False).ignored() or ()
                self._git_ignored |= {f"{folder}/{name}" for name in inner}
            return
        self._nested = [
            (prefix, spec)
            for prefix, spec in self._nested
            if not prefix or folder == prefix or folder.startswith(prefix + "/")
        ]
        spec = read_spec(os.path.join(self._root, folder, ".gitignore"))
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


def read_spec(path: str) -> GitIgnoreSpec | None:
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
