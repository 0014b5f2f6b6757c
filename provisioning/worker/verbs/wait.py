"""`wait`: says when runs change, and answers once all have ended."""

from __future__ import annotations

import time
from typing import Any, Dict

import view

from runner import states
from verbs import Call

POLL_S = 0.1


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"ids": [...]} → EVENT {"run": status} at each change of state, then {} when all ended."""
    paths = [call.run(name) for name in request.get("ids") or []]
    told: Dict[str, Any] = {}
    while True:
        open_runs = 0
        for each in paths:
            pair = view.read_pair(each)
            if pair is None:
                continue
            spec, state = pair
            mark = (state["state"], state.get("attempt"))
            if told.get(each.id) != mark:
                told[each.id] = mark
                maker = view.View(call.workspace)
                call.event(run=maker.status(spec, state, full=False).to_json())
            open_runs += state["state"] != states.ENDED
        if not open_runs:
            return {}
        call.keep_up()
        time.sleep(POLL_S)
