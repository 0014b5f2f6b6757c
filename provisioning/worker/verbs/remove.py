"""`remove`: deletes ended runs with all they made.

First the run's folder gets a name that no one looks at, durably; from then on the run is not here.
Then goes what it made, and that folder last, so that `gc` can end a removal that was cut.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, Iterator, List, Optional

import records
import resumes
import space
import view
from paths import RunPaths, Workspace

from runner import states
from verbs import Call, Refused

LOCKS = ("resume.lock", "again.lock", "lock")
"""Held by who resumes a run, who makes another from it, and its launcher."""
GOING_S = 3.0
"""What a launcher may take to go after the end of its run was written."""


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"runs": [ids], "dry": bool} → {"removed": [{"run", "bytes", "gone", "begun", "why"}]}.

    gone: it is not here. begun: its removal was cut, and is ended now. why: what keeps it from
    being removed; told when dry, else refused before anything is touched. Raises Refused:
    wrong-state, bad-request.
    """
    try:
        runs = [call.workspace.run(str(name)) for name in request.get("runs") or []]
    except ValueError as error:
        raise Refused("bad-request", str(error)) from error
    waiting = _waited_for(call.workspace)
    rows: List[Dict[str, Any]] = []
    for paths in runs:
        here = os.path.exists(paths.spec)
        begun = not here and bool(_begun(call.workspace, paths))
        why = _in_the_way(paths, waiting) if here else None
        gone = not here and not begun
        rows.append({"run": paths.id, "bytes": 0, "gone": gone, "begun": begun, "why": why})
    dry = bool(request.get("dry"))
    refused = [row["why"] for row in rows if row["why"] is not None]
    if refused and not dry:
        raise Refused("wrong-state", refused[0])
    freed = space.Freed()
    for paths, row in zip(runs, rows):
        before = freed.bytes
        if dry:
            for folder in [] if row["gone"] else _all_of(call.workspace, paths):
                freed.add_below(folder)
        elif row["begun"]:
            for aside in _begun(call.workspace, paths):
                finish(paths, aside, freed)
        elif not row["gone"]:
            with claimed(paths) as problem:
                if problem is not None:
                    raise Refused("wrong-state", problem)
                aside = set_aside(call.workspace, paths)
            finish(paths, aside, freed)
            call.event(run=paths.id, bytes=freed.bytes - before)
        row["bytes"] = freed.bytes - before
    return {"removed": rows}


def _all_of(workspace: Workspace, paths: RunPaths) -> List[str]:
    return [*folders(paths), paths.folder, *_begun(workspace, paths)]


def _begun(workspace: Workspace, paths: RunPaths) -> List[str]:
    """Where the folder of a run lies whose removal has begun, and not ended."""
    start = ".del-%s-" % paths.id
    names = [name for name in os.listdir(workspace.runs) if name.startswith(start)]
    ours = sorted(name for name in names if name[len(start) :].isdigit())
    return [os.path.join(workspace.runs, name) for name in ours]


def folders(paths: RunPaths) -> List[str]:
    """What a run has beside its own folder."""
    return [paths.secrets, paths.code, paths.checkpoints, paths.logs]


def set_aside(workspace: Workspace, paths: RunPaths) -> str:
    """Give the run's folder a name that means it is being removed; where it is now."""
    aside = os.path.join(workspace.runs, ".del-%s-%d" % (paths.id, os.getpid()))
    os.rename(paths.folder, aside)
    records.sync_folder(workspace.runs)
    return aside


def finish(paths: RunPaths, aside: str, freed: space.Freed) -> None:
    """Delete what the run made, and its folder last."""
    for folder in folders(paths):
        space.remove(folder, freed)
    space.remove(aside, freed)


@contextlib.contextmanager
def claimed(paths: RunPaths) -> Iterator[Optional[str]]:
    """Nobody starts, resumes or forks the run meanwhile; gives what is in the way, or None."""
    held: List[int] = []
    try:
        for name in LOCKS:
            try:
                fd = records.wait_lock(
                    os.path.join(paths.folder, name), GOING_S, records.try_lock_or_full
                )
            except FileNotFoundError:
                fd = None  # removed by another one just now
            if fd is None:
                yield "%s is in use just now" % paths.id
                return
            held.append(fd)
        yield _state_in_the_way(paths)
    finally:
        for fd in held:
            os.close(fd)


def _in_the_way(paths: RunPaths, waiting: Dict[str, str]) -> Optional[str]:
    if paths.id in waiting:
        return "%s waits for the end of %s" % (waiting[paths.id], paths.id)
    return _state_in_the_way(paths)


def _state_in_the_way(paths: RunPaths) -> Optional[str]:
    pair = view.read_pair(paths)
    if pair is None:
        return None
    state = pair[1]
    if state["state"] != states.ENDED:
        return "%s is %s" % (paths.id, state["state"])
    if resumes.is_pending(paths, state):
        return "%s was just resumed" % paths.id
    return None


def _waited_for(workspace: Workspace) -> Dict[str, str]:
    """Run to a run that has not ended and names it in its `after`."""
    out: Dict[str, str] = {}
    for spec, state in view.read_all(workspace):
        if state["state"] != states.ENDED:
            out.update((str(run), spec["id"]) for run in spec.get("after") or ())
    return out
