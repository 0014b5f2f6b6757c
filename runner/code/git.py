"""What git says of a folder."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.code import diff
from runner.code.complaints import shown
from runner.files import read_regular

LIMIT_S = 30.0
CLONE_LIMIT_S = 120.0
DIFF_LIMIT_S = 10.0
"""Beyond the time that everything else took."""
DIFF_BYTES = 1 << 20
_MOST_BYTES = 512 << 20
_READ_DIFF_BYTES = 16 << 20
"""Of a diff with what does not travel; that is only known in the end."""
_DIFF = (
    *("diff-index", "-p", "--binary", "--no-ext-diff", "--no-textconv", "--no-renames"),
    *("--irreversible-delete", "--no-color", "--submodule=short", "--ignore-submodules=dirty"),
    *("--src-prefix=a/", "--dst-prefix=b/", "--relative", "HEAD", "--", "."),
)
_STATUS = (
    *("status", "--porcelain=v2", "--branch", "--no-ahead-behind", "--untracked-files=all"),
    *("-z", "--", "."),
)
_IGNORED = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")


class Git:
    """What git says of a folder; everything is None or empty where it says nothing."""

    def __init__(self, root: Path, facts: bool = True) -> None:
        self._root = root
        self.top = work_tree_of(root)
        """The work tree's root, also where git cannot read it; None: there is none."""
        self.problem: str | None = None
        """Why git cannot say what it ignores, though there is a repository."""
        self._status = self._diff = None
        if facts and self.top is not None:
            without = _without_filters(root, self.top)
            self._status = self._start(_STATUS, _MOST_BYTES, without)
            self._diff = self._start(_DIFF, _READ_DIFF_BYTES, without)

    def stop(self) -> None:
        """Nobody wants the facts any more."""
        for process in (self._status, self._diff):
            if process is not None:
                process.stop()

    def ignored(self) -> set[str] | None:
        """Ignored paths relative to the root, folders with a `/` for all below them.

        None where git cannot say, and where the whole root is ignored: then it is only by chance
        inside somebody's work tree (a home folder kept in git).
        """
        if self.top is None:
            return None
        try:
            done = _run(_IGNORED, self._root)
        except FileNotFoundError:
            self.problem = "git is not installed here"
            return None
        except subprocess.TimeoutExpired:
            self.problem = f"it did not answer within {LIMIT_S:.0f} s"
            return None
        except OSError as error:
            self.problem = error.strerror
            return None
        if done.returncode != 0:
            self.problem = _reason(done.stderr)
            return None
        found = set(os.fsdecode(done.stdout).split("\0")) - {""}
        return None if "./" in found else found

    def why_ignored(self, paths: Iterable[str]) -> dict[str, str]:
        """`FILE:LINE: PATTERN` for each path that one line leaves out."""
        given = b"".join(os.fsencode(path) + b"\0" for path in paths)
        try:
            done = _run(("check-ignore", "--verbose", "-z", "--stdin"), self._root, given)
        except (OSError, subprocess.TimeoutExpired):
            return {}
        words = os.fsdecode(done.stdout).split("\0")[:-1]
        rows = zip(*(iter(words),) * 4, strict=False)
        return {
            path: shown(f"{self._from_root(file)}:{line}: {pattern}")
            for file, line, pattern, path in rows
            if not pattern.startswith("!")
        }

    def facts(
        self, travels: Callable[[str], bool], is_shown: Callable[[str], bool]
    ) -> tuple[dict[str, Any], bytes | None]:
        """`code` of a Snapshot as far as git knows it, and the diff.

        travels: whether a path, or something below it, is part of the snapshot; only those count.
        is_shown: whether its changes stand in the diff.
        """
        if self._status is None or self.top is None:
            return {}, None
        done = self._status.output(LIMIT_S)
        if done is None:
            return {}, None
        out: dict[str, Any] = {"commit": None, "branch": None, "edited": 0, "untracked": 0}
        above = self._prefix()
        for line in _entries(os.fsdecode(done)):
            if line.startswith("# branch.oid ") and "(initial)" not in line:
                out["commit"] = line[13:]
            elif line.startswith("# branch.head "):
                out["branch"] = line[14:]
            elif not line.startswith("#"):
                path = _path_of(line).removeprefix(above).removesuffix("/")
                new = line.startswith("? ")
                # a new file that is gone again was somebody's temporary one, often our own
                gone = not new and not os.path.lexists(os.path.join(self._root, path))
                if travels(path) or gone:
                    out["edited"] += 1
                    out["untracked"] += new
        out["diff_bytes"], text = self._read_diff(is_shown)
        return out, text

    def _read_diff(self, is_shown: Callable[[str], bool]) -> tuple[int | None, bytes | None]:
        """How large it is, and the diff itself where it is not too large."""
        raw = self._diff.output(DIFF_LIMIT_S) if self._diff is not None else None
        if self._diff is None or raw is None:
            return None, None
        if self._diff.size > _READ_DIFF_BYTES:
            return self._diff.size, None
        found = diff.filtered(raw, lambda path: is_shown(os.fsdecode(path)))
        return len(found), found if len(found) <= DIFF_BYTES else None

    def _prefix(self) -> str:
        """The root from the work tree's on, with a `/`, as status names paths."""
        inside = os.path.relpath(os.path.realpath(self._root), self.top)
        return "" if inside == "." else inside + "/"

    def _from_root(self, file: str) -> str:
        """A rule file of the work tree, as seen from the root; another one as it is."""
        if os.path.isabs(file) or self.top is None:
            return shown(file)
        return shown(os.path.relpath(os.path.join(self.top, file), os.path.realpath(self._root)))

    def _start(self, words: Iterable[str], most: int, more: dict[str, str]) -> _Process | None:
        try:
            return _Process(words, self._root, most, more)
        except OSError:
            return None


class _Process:
    """A git process under way, whose output is read as it comes."""

    def __init__(self, words: Iterable[str], cwd: Path, most: int, more: dict[str, str]) -> None:
        """most: how many bytes of its output are kept; `size` counts all. more: variables."""
        self.size = 0
        self._most = most
        self._parts: list[bytes] = []
        self._child = subprocess.Popen(
            _argv(words),
            cwd=cwd,
            env=_environment() | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def output(self, timeout_s: float) -> bytes | None:
        """What it printed; None when it failed or is not done in time."""
        self._reader.join(timeout_s)
        if self._reader.is_alive():
            self.stop()
            return None
        return b"".join(self._parts) if self._child.wait() == 0 else None

    def stop(self) -> None:
        """End it, if it is still there."""
        self._child.kill()
        self._child.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as pipe:
            while block := os.read(pipe.fileno(), 1 << 16):
                self.size += len(block)
                if self.size <= self._most:
                    self._parts.append(block)


def work_tree_of(root: Path) -> str | None:
    """The nearest folder upward with a `.git` in it, whatever that is."""
    place = os.path.realpath(root)
    while not os.path.lexists(os.path.join(place, ".git")):
        above = os.path.dirname(place)
        if above == place:
            return None
        place = above
    return place


def global_rules_file() -> str | None:
    """The user's own rule file for all repositories."""
    try:
        done = _run(("config", "--type=path", "--get", "core.excludesFile"), Path("/"))
        if done.returncode == 0:
            return os.fsdecode(done.stdout.removesuffix(b"\n")) or None
    except (OSError, subprocess.TimeoutExpired):
        pass
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(folder, "git", "ignore")


def _without_filters(root: Path, top: str) -> dict[str, str]:
    """Variables with which git runs no filter that the repository's own configuration names.

    What then differs is what travels. The user's own filters, as of git-lfs, are left alone.
    """
    if not _may_have_filters(os.path.join(top, ".git")):
        return {}
    asked = ("config", "-z", "--show-scope", "--get-regexp", r"^filter\..*\.(clean|process)$")
    try:
        done = _run(asked, root)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    words = os.fsdecode(done.stdout).split("\0")
    names = {
        setting.partition("\n")[0].rpartition(".")[0]
        for scope, setting in zip(words[::2], words[1::2], strict=False)
        if scope in ("local", "worktree")
    }
    settings = [(f"{name}.process", "") for name in names]
    settings += [(f"{name}.required", "false") for name in names]
    out = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings):
        out |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return out


def _may_have_filters(repository: str) -> bool:
    """Whether git must be asked for them, which costs a process."""
    try:
        if not os.path.isdir(repository) or os.path.lexists(f"{repository}/config.worktree"):
            return True
        config = read_regular(f"{repository}/config").lower()
    except OSError:
        return True
    return b"filter" in config or b"include" in config


def clone_branch(top: str, branch: str, to: Path) -> str | None:
    """Clone a branch of a work tree into a new folder; why it could not be, or None.

    It shares the objects of the repository, and none of its hooks is run.
    """
    clone = ("clone", "--quiet", "--shared", "--single-branch", "--no-tags", "--branch", branch)
    words = ("-c", "core.hooksPath=/dev/null", *clone, "--", top, str(to))
    try:
        done = _run(words, Path(top), limit_s=CLONE_LIMIT_S, more={"GIT_ALLOW_PROTOCOL": "file"})
    except FileNotFoundError:
        return "git is not installed here"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"git: {error}"
    if done.returncode == 0:
        return None
    lines = os.fsdecode(done.stderr).strip().splitlines()
    return shown(lines[-1]).removeprefix("fatal: ") if lines else f"status {done.returncode}"


def _run(
    words: Iterable[str],
    cwd: Path,
    given: bytes = b"",
    *,
    limit_s: float = LIMIT_S,
    more: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """A git command, to its end. more: variables. Raises OSError and TimeoutExpired."""
    return subprocess.run(
        _argv(words),
        cwd=cwd,
        env={**_environment(), **(more or {})},
        input=given,
        capture_output=True,
        timeout=limit_s,
        check=False,
    )


def _argv(words: Iterable[str]) -> list[str]:
    return ["git", "-c", "core.quotePath=false", "-c", "core.fsmonitor=false", *words]


def _environment() -> dict[str, str]:
    """Ours without what leads git elsewhere, as a hook's has it.

    Nor does it fetch what a partial clone lacks: with no protocol allowed, no program is started.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return dict(
        env, GIT_OPTIONAL_LOCKS="0", GIT_NO_LAZY_FETCH="1", GIT_ALLOW_PROTOCOL="", LC_ALL="C"
    )


def _reason(stderr: bytes) -> str | None:
    """The first line of what git complains of; None where the folder is not really inside."""
    text = shown(os.fsdecode(stderr.strip().partition(b"\n")[0])).removeprefix("fatal: ")
    # the second: a folder above is ignored; ls-files calls that an internal error
    is_outside = "up to mount point" in text or "not superset of prefix" in text
    return None if is_outside else text or "it failed"


def _entries(text: str) -> Iterator[str]:
    parts = iter(text.split("\0"))
    for part in parts:
        if not part:
            continue
        yield part
        if part.startswith("2 "):
            # a rename is followed by the name it had
            next(parts, None)


def _path_of(line: str) -> str:
    """The path in a line of `status --porcelain=v2`."""
    fields_before = {"1": 8, "2": 9, "u": 10}.get(line[0], 1)
    return line.split(" ", fields_before)[-1]
