"""`list`: the files a run made: checkpoints, logs, and what it wrote beside its code."""

from __future__ import annotations

import base64
import hashlib
import stat
import time
from typing import Any, Dict, Iterator, List, Optional, Set

import checkpoints
import plain
import records
import retention
import snapshot
import view
from paths import RunPaths

from verbs import Call

APPEND_ONLY = "logs"
MOST_DIFF_BYTES = 1 << 20


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"run", "best"?, "without_diff"?} → rows [kind, path, size, mtime_ns, executable, room];
    {"run", "spec", "state", "skipped", "last", "best", "diff", "took_s"}.

    kind is `checkpoints`, `logs` or `work`; paths are relative to the kind's folder. What is not a
    plain file is skipped and named; unfinished checkpoints are left out. room: bytes it takes on
    the disk. run: its status, in full. last, best: names of the newest checkpoint and, if it was
    asked for, of the one with the best metric, as `retention` knows it; null without one. diff:
    what was edited in its code since the commit, in base64; null where nothing was.
    """
    began = time.monotonic()
    paths = call.run(request.get("run"))
    skipped: List[str] = []
    rows: List[List[Any]] = []
    # before the files: a run that had ended then writes none after it
    state = _text(paths.state)
    pair = view.read_pair(paths)
    spec = pair[0] if pair else {}
    status = view.View(call.workspace).status(*pair, full=True).to_json() if pair else None
    for kind, folder in folders(paths).items():
        known = _code_files(call, spec) if kind == "work" else set()
        for path, found in _files(folder, skipped, kind):
            if path in known or (kind == "checkpoints" and not _finished(path)):
                continue
            executable = bool(found.st_mode & stat.S_IXUSR)
            room = found.st_blocks * 512
            rows.append([kind, path, found.st_size, found.st_mtime_ns, executable, room])
    call.send_rows(rows)
    names = checkpoints.names(paths.checkpoints)
    return {
        "run": status,
        "spec": _text(paths.spec),
        "state": state,
        "skipped": skipped[:100],
        "last": names[-1] if names else None,
        "best": _best(paths, names, spec.get("metric")) if request.get("best") else None,
        "diff": None if request.get("without_diff") else _diff(call, spec.get("code")),
        "took_s": time.monotonic() - began,
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


def _code_files(call: Call, spec: Dict[str, Any]) -> Set[str]:
    rows = snapshot.read_tree(call.workspace, str(spec.get("snapshot"))) or []
    return {row[0] for row in rows}


def _diff(call: Call, code: Any) -> Optional[str]:
    digest = code.get("diff") if isinstance(code, dict) else None
    if not isinstance(digest, str) or not snapshot.is_digest(digest):
        return None
    try:
        with open(plain.open_file(call.workspace.blob(digest)), "rb") as file:
            data = file.read(MOST_DIFF_BYTES + 1)
    except OSError:
        return None
    if hashlib.sha256(data).hexdigest() != digest:
        return None  # damaged, or longer than is sent
    return base64.b64encode(data).decode("ascii")


def _best(paths: RunPaths, names: List[str], metric: Optional[str]) -> Optional[str]:
    described = [checkpoints.describe(paths.checkpoints, name) for name in names]
    return retention.best(described, metric)


def _text(path: str) -> str:
    try:
        with open(plain.open_file(path), encoding="utf-8") as file:
            return file.read(records.MAX_RECORD)
    except (OSError, UnicodeDecodeError):
        return "{}"
