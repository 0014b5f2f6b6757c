"""A run as the source of another one: its spec as it stands, its code, its newest good checkpoint.

Nothing in the source's folders is changed: it may be live, and its `keep` rule may remove what was
taken from it, since a hard link holds.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from typing import Any, Dict, Iterator, Optional, Tuple

import checkpoints
import plain
import records
import resumes
import snapshot
from paths import RunPaths, Workspace

LOOKS = 5
"""How often the list of a live run's checkpoints is read: its `keep` rule may be faster than we."""
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES)


def current_spec(paths: RunPaths, spec: Dict[str, Any]) -> Dict[str, Any]:
    """The spec with all that its resumes changed, also one that nobody has taken up yet."""
    return resumes.effective(paths, spec, {"resumed": resumes.count(paths)})


def lost_code(workspace: Workspace, spec: Dict[str, Any]) -> Optional[str]:
    """What is gone of the snapshot of a run, or None when all of it is here."""
    rows = snapshot.read_tree(workspace, str(spec.get("snapshot")))
    if rows is None:
        return "the list of its files"
    missing = snapshot.needed(workspace, rows)
    return "%d of its files' contents" % len(missing) if missing else None


def take_newest(folder: str, target: str) -> Optional[str]:
    """The name of the newest good checkpoint of `folder`, which then lies in `target`, too.

    `target` exists, and is for this one alone. None: there is no good one. What is checked is what
    was taken, so that one which goes meanwhile is not half taken.
    """
    seen = None
    for _ in range(LOOKS):
        found = checkpoints.names(folder)
        if found == seen:
            break
        seen = found
        for name in reversed(found):
            source, place = os.path.join(folder, name), os.path.join(target, name)
            if _take(source, place) and checkpoints.problem(place) is None:
                records.sync_folder(target)
                return name
            _remove(place)
    return None


def _take(source: str, place: str) -> bool:
    """Link (or copy) a file or a folder with all that is in it; False when it goes meanwhile."""
    try:
        if not plain.is_folder(source):
            _take_file(source, place)
            return True
        for path, is_folder in _walk(source):
            if is_folder:
                os.mkdir(os.path.join(place, path) if path else place, 0o755)
            else:
                _take_file(os.path.join(source, path), os.path.join(place, path))
        for path, is_folder in _walk(place):
            if is_folder:
                records.sync_folder(os.path.join(place, path) if path else place)
        return plain.is_folder(source)
    except FileNotFoundError:
        return False


def _walk(top: str, below: str = "") -> Iterator[Tuple[str, bool]]:
    """(path below `top`, whether it is a folder), a folder before what it holds, "" first.

    Raises FileNotFoundError when one of them goes. What is neither file, link nor folder is left
    out.
    """
    yield below, True
    with os.scandir(os.path.join(top, below)) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = os.path.join(below, entry.name)
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            yield from _walk(top, path)
        elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
            yield path, False


def _take_file(source: str, place: str) -> None:
    try:
        os.link(source, place, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copy2(source, place, follow_symlinks=False)
        if not os.path.islink(place):
            _sync_file(place)


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: str) -> None:
    if plain.is_folder(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
