"""Which checkpoints stay: the newest `keep` that are good and the `keep_best` best ones.

Removed is only what stands behind a newer one that was read through and is whole. One whose name
holds no number (`best.pt`, `last`) has no place in the order and is left alone, and so is one that
does not verify: the next attempt sets it aside.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import checkpoints
import snapshot
from plain import is_number

KNOWN_METRICS = ("eval/return", "reward", "charts/episodic_return", "rollout/ep_rew_mean")
"""Looked for in this order when the job names none."""
LAST_PASS_S = 10.0
HURRIED_PASS_S = 1.0
"""How long an attempt's end waits for a last pass; when somebody waits for the end it is less."""


def plan(
    described: List[Dict[str, Any]],
    keep: Optional[int],
    keep_best: Optional[int],
    metric: Optional[str],
) -> List[str]:
    """Names to remove. described: good ones, oldest first, as `checkpoints.describe` tells.

    Without `keep` all stay. The newest stays whatever is asked for. Of equal ones the newer is the
    better; one without the metric is never among the best.
    """
    if keep is None:
        return []
    kept = {item["name"] for item in described[-max(1, keep) :]}
    kept.update(_rated(described, metric)[: max(0, keep_best or 0)])
    return [item["name"] for item in described if item["name"] not in kept]


def best(described: List[Dict[str, Any]], metric: Optional[str]) -> Optional[str]:
    """The name of the best one, as `plan` rates them; None where none has the metric."""
    rated = _rated(described, metric)
    return rated[0] if rated else None


def _rated(described: List[Dict[str, Any]], metric: Optional[str]) -> List[str]:
    rated: List[Tuple[float, int, str]] = []
    for place, item in enumerate(described):
        value = _value(item["metrics"], metric)
        if value is not None:
            rated.append((value, place, item["name"]))
    return [name for _, _, name in sorted(rated, reverse=True)]


def _value(metrics: Dict[str, Any], metric: Optional[str]) -> Optional[float]:
    for name in (metric,) if metric else KNOWN_METRICS:
        value: Any = metrics.get(name)
        if is_number(value):
            return float(value)
    return None


class Keeper:
    """Keeps one run's checkpoint folder to what is asked for, in a thread of its own.

    Reading checkpoints through may take seconds, and a cancel must not wait for that.
    """

    def __init__(self, folder: str, spec: Dict[str, Any], tell: Callable[[str], None]) -> None:
        self._folder = folder
        self._keep = spec.get("keep")
        self._keep_best = spec.get("keep_best")
        self._metric = spec.get("metric")
        self._tell = tell
        self._digests: Dict[Tuple[int, int, int, int], str] = {}
        self._good: Set[Tuple[str, Optional[int]]] = set()
        self._seen_at = 0
        self._pass: Optional[threading.Thread] = None

    def look(self) -> None:
        """Begin a pass when the folder has changed and none is under way; never waits."""
        if self._keep is None or (self._pass is not None and self._pass.is_alive()):
            return
        changed = self._changed_at()
        if changed != self._seen_at:
            self._seen_at = changed
            self._pass = threading.Thread(target=self._run, daemon=True)
            self._pass.start()

    def finish(self, limit_s: float) -> None:
        """A last pass at the attempt's end, waited for no longer than that; a kill harms none."""
        if self._keep is None:
            return
        deadline = time.monotonic() + limit_s
        if self._pass is not None:
            self._pass.join(limit_s)  # it may not have seen what came last
        self._seen_at = 0
        self.look()
        if self._pass is not None:
            self._pass.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        try:
            self.enforce()
        except OSError as error:
            self._tell("checkpoints cannot be tidied: %s" % error)

    def enforce(self) -> List[str]:
        """One pass: the names that were removed."""
        good = [
            checkpoints.describe(self._folder, name)
            for name in checkpoints.names(self._folder)
            if checkpoints.has_place(name) and self._is_good(name)
        ]
        dropped = plan(good, self._keep, self._keep_best, self._metric)
        for name in dropped:
            with contextlib.suppress(FileNotFoundError):  # the job may remove some itself
                checkpoints.remove(self._folder, name)
        return dropped

    def _is_good(self, name: str) -> bool:
        """Whether it verifies; one that did is not read again, since it never changes."""
        path = os.path.join(self._folder, name)
        mark = (name, _inode(path))
        if mark not in self._good and checkpoints.problem(path, self._digest) is None:
            self._good.add(mark)
        # the job may have removed it meanwhile
        return mark in self._good and mark[1] is not None and mark[1] == _inode(path)

    def _digest(self, path: str) -> str:
        """A file's sha256; a file that several checkpoints share is read once."""
        found = os.stat(path)
        key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        if key not in self._digests:
            self._digests[key] = snapshot.file_digest(path)
        return self._digests[key]

    def _changed_at(self) -> int:
        try:
            return os.stat(self._folder).st_mtime_ns
        except OSError:
            return 0


def _inode(path: str) -> Optional[int]:
    try:
        return os.lstat(path).st_ino
    except OSError:
        return None
