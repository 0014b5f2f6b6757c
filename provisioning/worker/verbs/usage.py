"""`usage`: what takes space here, run by run, and what all runs share."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, Set

import overlay
import space
import view
from paths import Workspace

from verbs import Call


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"project"?: id} → rows [{"run", "project", "state", "outcome", "attempt", "code",
    "checkpoints", "logs", "records"}]; {"others": {"runs", "bytes"}, "shared": {"contents",
    "bundles", "packages", "home", "leftovers"}, "disk": {"total", "free", "files"}}.

    All in bytes; files: how many more there is room for, None without such a limit. With a project,
    the runs of the other ones are told as a sum. A file with several names counts once: among the
    contents that all share, else in the oldest run that has it.
    """
    workspace, project = call.workspace, request.get("project")
    seen = space.Seen()
    contents = seen.count(workspace.blobs) + seen.count(workspace.trees)
    pairs = view.read_all(workspace)
    pairs.sort(key=lambda pair: (float(pair[0].get("accepted_at", 0)), pair[0]["id"]))
    rows = []
    others = {"runs": 0, "bytes": 0}
    for spec, state in pairs:
        paths = workspace.run(spec["id"])
        sizes = {
            "code": seen.count(paths.code),
            "checkpoints": seen.count(paths.checkpoints),
            "logs": seen.count(paths.logs),
            "records": seen.count(paths.folder) + seen.count(paths.secrets),
        }
        if project is not None and spec.get("project", {}).get("id") != project:
            others["runs"] += 1
            others["bytes"] += sum(sizes.values())
            continue
        facts = {key: state.get(key) for key in ("state", "outcome", "attempt")}
        rows.append(dict(facts, run=spec["id"], project=spec.get("project", {}), **sizes))
    call.send_rows(rows)
    known = {spec["id"] for spec, _ in pairs}
    room = space.room(workspace)
    return {
        "others": others,
        "shared": {
            "contents": contents,
            "bundles": seen.count(workspace.bundles),
            "packages": seen.count(overlay.root_of(workspace)),
            "home": seen.count(workspace.home),
            "leftovers": sum(seen.count(path) for path in _nobodys(workspace, known)),
        },
        "disk": {"total": room.total, "free": room.free, "files": room.files},
    }


def _nobodys(workspace: Workspace, known: Set[str]) -> Iterator[str]:
    """Folders of runs that are not (or no longer) here."""
    for kind in ("runs", "code", "checkpoints", "logs"):
        folder = os.path.join(workspace.root, kind)
        for name in os.listdir(folder):
            if name not in known:
                yield os.path.join(folder, name)
