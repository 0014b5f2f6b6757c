"""A run's checkpoints: entries of its folder that appeared by rename and never change."""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Dict, List, Optional, Tuple

import plain
import records
import snapshot

from runner import wire

BAD_PREFIX = ".bad-"
OLD_PREFIX = ".old-"
"""Of one that is just being removed."""
_UNFINISHED = (".tmp", ".part")
_NUMBER = re.compile(r"(\d+)")


def names(folder: str) -> List[str]:
    """Entries that count as checkpoints, oldest step first."""
    try:
        found = os.listdir(folder) if plain.is_folder(folder) else []
    except OSError:
        return []
    kept = (n for n in found if is_checkpoint(n) and not os.path.islink(os.path.join(folder, n)))
    return sorted(kept, key=lambda n: _order(folder, n))


def bad_names(folder: str) -> List[str]:
    """Names of the checkpoints that did not verify, by which they were set aside."""
    try:
        found = os.listdir(folder) if plain.is_folder(folder) else []
    except OSError:
        return []
    return sorted(name for name in found if name.startswith(BAD_PREFIX))


def is_checkpoint(name: str) -> bool:
    """Whether a name in a checkpoint folder stands for a finished one."""
    return not name.startswith(".") and not name.endswith(_UNFINISHED)


def has_place(name: str) -> bool:
    """Whether its name says where it stands in the order of steps."""
    return _step(name) is not None


def describe(folder: str, name: str) -> Dict[str, Any]:
    """{"name", "step", "bytes", "verified", "metrics"}; verified None: not checked here."""
    path = os.path.join(folder, name)
    manifest = records.read(os.path.join(path, "manifest.json"))
    if manifest is None:
        return {
            "name": name,
            "step": _step(name),
            "bytes": _size(path),
            "verified": None,
            "metrics": {},
        }
    total = 0
    for entry in _entries(manifest).values():
        size: Any = entry.get("bytes")
        total += int(size) if plain.is_number(size) else 0
    step: Any = manifest.get("step")
    metrics = manifest.get("metrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    return {
        "name": name,
        "step": int(step) if plain.is_number(step) else None,
        "bytes": total,
        "verified": None,
        "metrics": {k: v for k, v in metrics.items() if plain.is_number(v)},
    }


def problem(path: str, digest: Callable[[str], str] = snapshot.file_digest) -> Optional[str]:
    """Why a checkpoint is not what its manifest says, or None; also None without a manifest.

    digest: the sha256 of a file; who asks often may remember some.
    """
    if not plain.is_folder(path):
        return None
    name = os.path.join(path, "manifest.json")
    if not os.path.lexists(name):
        return None
    manifest = records.read(name)
    if manifest is None:
        return "manifest.json cannot be read"
    if not isinstance(manifest.get("files"), dict):
        return "manifest.json names no files"
    for entry, facts in sorted(manifest["files"].items()):
        if not wire.plain_path(entry) or not isinstance(facts, dict):
            return "manifest.json names %r" % entry[:80]
        place = os.path.join(path, entry)
        if not _inside(path, entry):
            return "%s lies in no folder of its own" % entry
        size = plain.size(place)
        if size is None:
            return "%s is missing" % entry
        if size != facts.get("bytes"):
            return "%s has %d bytes, not %s" % (entry, size, facts.get("bytes"))
        try:
            if digest(place) != facts.get("sha256"):
                return "%s is damaged" % entry
        except OSError as error:
            return "%s cannot be read: %s" % (entry, error.strerror)
    return None


def newest_good(
    folder: str, digest: Callable[[str], str] = snapshot.file_digest
) -> Tuple[Optional[str], List[str]]:
    """(path of the newest checkpoint that verifies or None, names of the bad ones on the way).

    Those are set aside; one that cannot be (its name is too long) is passed over.
    """
    bad: List[str] = []
    for name in reversed(names(folder)):
        path = os.path.join(folder, name)
        if problem(path, digest) is None:
            return path, bad
        try:
            _set_aside(path, os.path.join(folder, BAD_PREFIX + name))
        except OSError:
            pass
        bad.append(name)
    return None, bad


def remove(folder: str, name: str) -> None:
    """Remove one so that a kill on the way leaves nothing that counts as a checkpoint."""
    aside = os.path.join(folder, OLD_PREFIX + name)
    _set_aside(os.path.join(folder, name), aside)
    _delete(aside)


def remove_leftovers(folder: str) -> None:
    """Remove what a killed `remove` left; no link is followed to do so."""
    for name in os.listdir(folder) if plain.is_folder(folder) else ():
        if name.startswith(OLD_PREFIX):
            try:
                _delete(os.path.join(folder, name))
            except OSError:
                pass  # it does not count, and takes room only


def _inside(top: str, entry: str) -> bool:
    """Whether all folders on the way to an entry are folders, and no links to some."""
    parts = entry.split("/")[:-1]
    return all(plain.is_folder(os.path.join(top, *parts[: n + 1])) for n in range(len(parts)))


def _set_aside(path: str, aside: str) -> None:
    """Rename it, over what an earlier attempt left under that name."""
    _delete(aside)
    os.rename(path, aside)


def _delete(path: str) -> None:
    if plain.is_folder(path):
        import shutil  # who only looks is answered sooner without

        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _entries(manifest: Dict[str, Any]) -> Dict[str, Dict[str, Any]]:
    files = manifest.get("files")
    if not isinstance(files, dict):
        return {}
    return {
        name: facts
        for name, facts in files.items()
        if isinstance(facts, dict) and wire.plain_path(name)
    }


def _step(name: str) -> Optional[int]:
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if numbers and len(numbers[-1]) < 19 else None


def _order(folder: str, name: str) -> Tuple[int, int, str]:
    try:
        changed = os.lstat(os.path.join(folder, name)).st_mtime_ns
    except OSError:
        changed = 0
    step = _step(name)
    return (-1 if step is None else step, changed, name)


def _size(path: str) -> int:
    """Bytes of a file or of all files below a folder; what goes meanwhile counts nothing."""
    if not plain.is_folder(path):
        return plain.size(path) or 0
    return sum(found.st_size for _, found in plain.walk(path))
