"""What git says of a folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GIT_LIMIT_S = 30


class Git:
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
