"""`runs`: what became of runs; of some, of a project's, or of all."""

from __future__ import annotations

from typing import Any, Dict

import view

from runner import states
from verbs import Call

RECENT = 20
RECENT_SINCE = 2000
"""The same where a time was named."""


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"ids"?, "project"?, "sweep"?, "all"?, "full"?, "ended"?, "since"?} → rows;
    {"hidden": n, "messages": what did not arrive (notices.account), of one run in full}.

    Without `all`, of the ended ones only the last RECENT come. Ids that are not here are missing.
    all, full, ended: bool. ended: ended ones alone; since: none that ended before that time, by
    the clock here; a sweep of which one did not comes whole.
    """
    workspace = call.workspace
    ids, project, sweep = (request.get(name) for name in ("ids", "project", "sweep"))
    pairs = view.read_all(workspace, sweep) if ids is None else view.read_some(workspace, ids)
    maker = view.View(workspace)
    chosen = [
        (spec, state)
        for spec, state in pairs
        if (project is None or spec.get("project", {}).get("id") == project)
        and (sweep is None or spec.get("sweep") == sweep)
    ]
    if request.get("ended"):
        chosen = [pair for pair in chosen if pair[1]["state"] == states.ENDED]
    since = request.get("since")
    if since is not None:
        late = [pair for pair in chosen if _is_since(pair[1], float(since))]
        alone = {spec["id"] for spec, _ in late}
        sweeps = {spec["sweep"] for spec, _ in late if spec.get("sweep")}
        chosen = [
            (spec, state)
            for spec, state in chosen
            if spec["id"] in alone or spec.get("sweep") in sweeps
        ]
    chosen.sort(key=lambda pair: (float(pair[0].get("accepted_at", 0)), pair[0]["id"]))
    hidden = 0
    if ids is None and not request.get("all"):
        ended = [pair for pair in chosen if pair[1]["state"] == states.ENDED]
        old = {pair[0]["id"] for pair in ended[: -(RECENT if since is None else RECENT_SINCE)]}
        hidden = len(old)
        chosen = [pair for pair in chosen if pair[0]["id"] not in old]
    full = bool(request.get("full"))
    call.send_rows([maker.status(spec, state, full).to_json() for spec, state in chosen])
    told = None
    if full and len(chosen) == 1 and isinstance(chosen[0][0].get("notify"), str):
        import notices

        told = notices.account(workspace, str(chosen[0][0]["notify"]))
    return {"hidden": hidden, "messages": told}


def _is_since(state: Dict[str, Any], since: float) -> bool:
    return state["state"] != states.ENDED or float(state.get("ended_at") or 0.0) >= since
