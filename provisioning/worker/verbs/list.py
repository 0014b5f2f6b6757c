"""`list`: the files a run made: checkpoints, logs, and what it wrote beside its code."""

from __future__ import annotations

import os
import stat
from typing import Any, Dict, Iterator, List, Set

import checkpoints
import records
import snapshot
from paths import RunPaths

from verbs import Call

APPEND_ONLY = "logs"


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"run"} → rows [kind, path, size, mtime_ns, executable]; {"spec", "state", "skipped"}.

    kind is `checkpoints`, `logs` or `work`; paths are relative to the kind's folder. What is not a
    plain file is skipped and named; unfinished checkpoints are left out.
    """
    paths = call.run(request.get("run"))
    skipped: List[str] = []
    rows: List[List[Any]] = []
    for kind, folder in folders(paths).items():
        known = _code_files(call, paths) if kind == "work" else set()
        for path, found in _files(folder, skipped, kind):
            if path in known or (kind == "checkpoints" and not _finished(path)):
                continue
            executable = bool(found.st_mode & stat.S_IXUSR)
            rows.append([kind, path, found.st_size, found.st_mtime_ns, executable])
    call.send_rows(rows)
    with open(paths.spec, "rb") as file:
        spec = file.read()
    return {
        "spec": spec.decode("utf-8"),
        "state": _text(paths.state),
        "skipped": skipped[:100],
    }


def folders(paths: RunPaths) -> Dict[str, str]:
    """Where each kind of artifact lies."""
    return {"checkpoints": paths.checkpoints, "logs": paths.logs, "work": paths.code}


def _files(top: str, skipped: List[str], kind: str) -> Iterator[Any]:
    for here, names, files in os.walk(top):
        names[:] = sorted(n for n in names if not (kind == "work" and n == "__pycache__"))
        for name in sorted(files):
            full = os.path.join(here, name)
            path = os.path.relpath(full, top)
            try:
                found = os.lstat(full)
            except FileNotFoundError:
                continue
            if stat.S_ISREG(found.st_mode):
                yield path, found
            elif kind != "work":
                skipped.append("%s/%s" % (kind, path))


def _finished(path: str) -> bool:
    return checkpoints.is_checkpoint(path.split("/", 1)[0])


def _code_files(call: Call, paths: RunPaths) -> Set[str]:
    spec = records.read(paths.spec) or {}
    rows = snapshot.read_tree(call.workspace, str(spec.get("snapshot"))) or []
    return {row[0] for row in rows}


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return "{}"
