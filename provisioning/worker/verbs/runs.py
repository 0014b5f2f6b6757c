"""`runs`: what became of runs; of some, of a project's, or of all."""

from __future__ import annotations

import os
from typing import Any, Dict

import paths as paths_module
import view

from runner import states
from verbs import Call

RECENT = 20


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"ids"?: [...], "project"?: id, "all"?: bool, "full"?: bool} → {"runs": [...], "hidden": n}.

    Without `all`, of the ended ones only the last RECENT come. Ids that are not here are left out.
    """
    workspace = call.workspace
    lease_folder = paths_module.find_leases(dict(os.environ))
    pairs = view.read_all(workspace)
    maker = view.View(workspace, lease_folder, pairs)
    ids, project = request.get("ids"), request.get("project")
    chosen = [
        (spec, state)
        for spec, state in pairs
        if (ids is None or spec["id"] in ids)
        and (project is None or spec.get("project", {}).get("id") == project)
    ]
    chosen.sort(key=lambda pair: (float(pair[0].get("accepted_at", 0)), pair[0]["id"]))
    hidden = 0
    if ids is None and not request.get("all"):
        ended = [pair for pair in chosen if pair[1]["state"] == states.ENDED]
        old = {pair[0]["id"] for pair in ended[:-RECENT]}
        hidden = len(old)
        chosen = [pair for pair in chosen if pair[0]["id"] not in old]
    full = bool(request.get("full"))
    call.send_rows([maker.status(spec, state, full).to_json() for spec, state in chosen])
    return {"hidden": hidden}
