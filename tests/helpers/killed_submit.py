"""A `runner submit` that is killed at some moment, and what the same words do after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

COMMAND = (sys.executable, "-m", "runner", "submit")
LIMIT_S = 60


@dataclass(frozen=True)
class Trial:
    """What became of one submit that was killed, and of the same words typed twice more."""

    after_s: float
    printed: str
    """What the killed one had printed: "" before its id, else the id."""
    open_intents: int
    runs_before: int
    """Runs there were once it was dead and before the words were typed again."""
    again: str
    runs_after: int
    once_more: str
    runs_at_last: int

    @property
    def is_right(self) -> bool:
        """One run for the words that were cut, a second one for words typed anew."""
        if self.printed and self.open_intents == 0:
            # it had done all it does: the same words are a new run
            return (self.runs_after, self.runs_at_last) == (2, 3)
        ids_fit = self.printed in ("", self.again) and self.once_more != self.again
        return ids_fit and (self.runs_after, self.runs_at_last) == (1, 2)


def try_once(project: Path, workspace: Path, word: str, after_s: float) -> Trial:
    """Submit `echo WORD`, kill -9 it after a while, type the same again, and once more."""
    argv = [*COMMAND, "--", "echo", word]
    child = subprocess.Popen(argv, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    time.sleep(after_s)  # the moment at which it is killed, drawn by the caller
    child.kill()
    printed = child.communicate()[0].decode().strip()
    intents = len(list((project / ".runner/intents").glob("[!.]*.json")))
    before = count(workspace, word)
    again = submit(project, word)
    after = count(workspace, word)
    once_more = submit(project, word)
    return Trial(after_s, printed, intents, before, again, after, once_more, count(workspace, word))


def submit(project: Path, word: str) -> str:
    """The id that a submit left alone prints."""
    argv = [*COMMAND, "--", "echo", word]
    done = subprocess.run(
        argv, cwd=project, capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    return done.stdout.strip()


def count(workspace: Path, word: str) -> int:
    """Runs of `echo WORD` that the worker has."""
    specs = []
    for path in workspace.glob("runs/[!.]*/spec.json"):
        specs.append(json.loads(path.read_bytes()))
    return sum(spec["argv"] == ["echo", word] for spec in specs)


def time_of_one(project: Path) -> float:
    """How long a submit takes here, its worker being up."""
    began = time.monotonic()
    submit(project, f"warm-{os.getpid()}")
    return time.monotonic() - began
