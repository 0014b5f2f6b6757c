"""`list`: the files a run made: checkpoints, logs, and what it wrote beside its code."""

from __future__ import annotations

import stat
from typing import Any, Dict, Iterator, List, Set

import checkpoints
import plain
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
    # before the files: a run that had ended then writes none after it
    state = _text(paths.state)
    for kind, folder in folders(paths).items():
        known = _code_files(call, paths) if kind == "work" else set()
        for path, found in _files(folder, skipped, kind):
            if path in known or (kind == "checkpoints" and not _finished(path)):
                continue
            executable = bool(found.st_mode & stat.S_IXUSR)
            rows.append([kind, path, found.st_size, found.st_mtime_ns, executable])
    call.send_rows(rows)
    return {
        "spec": _text(paths.spec),
        "state": state,
        "skipped": skipped[:100],
    }


def folders(paths: RunPaths) -> Dict[str, str]:
    """Where each kind of artifact lies."""
    return {"checkpoints": paths.checkpoints, "logs": paths.logs, "work": paths.code}


def _files(top: str, skipped: List[str], kind: str) -> Iterator[Any]:
    for path, found in plain.walk(top):
        if kind == "work" and "__pycache__" in path.split("/"):
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
        with open(plain.open_file(path), encoding="utf-8") as file:
            return file.read(records.MAX_RECORD)
    except (OSError, UnicodeDecodeError):
        return "{}"
