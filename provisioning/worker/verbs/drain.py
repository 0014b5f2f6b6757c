"""`drain`: nothing new starts on this worker, until it is told otherwise; what runs goes on."""

from __future__ import annotations

import os
from typing import Any, Dict

import records
import view
import wakeup

from runner import states
from verbs import Call, Refused


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"on": bool} → {"drained", "live", "waiting"}: how many runs go on, and how many wait."""
    on = request.get("on")
    if not isinstance(on, bool):
        raise Refused("bad-request", "drain without on")
    path = call.workspace.drained
    if on:
        records.make_mark(path, call.workspace.config, call.workspace.caches)
    elif os.path.exists(path):
        os.unlink(path)
    wakeup.wake(call.workspace)
    found = [state["state"] for _, state in view.read_all(call.workspace)]
    return {
        "drained": on,
        "live": sum(state in states.LIVE for state in found),
        "waiting": sum(state == states.QUEUED for state in found),
    }
