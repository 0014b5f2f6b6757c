"""`cancel`: asks runs to stop and answers once nothing of them is left."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List

import processes
import records
import view
import wakeup
from paths import RunPaths

from runner import states
from verbs import Call

POLL_S = 0.02


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"ids": [...], "now": bool} → EVENT {"run", "state", "grace_s"}; {"results": [...]}."""
    runs = [call.run(name) for name in request.get("ids") or []]
    began = time.monotonic()
    before = [paths.id for paths in runs if _state(paths)["state"] == states.ENDED]
    for paths in runs:
        if paths.id not in before:
            _order(call, paths, bool(request.get("now")))
    results: Dict[str, Dict[str, Any]] = {}
    told: Dict[str, str] = {}
    while len(results) < len(runs):
        call.keep_up()
        for paths in runs:
            if paths.id in results:
                continue
            state = _state(paths)
            if state["state"] == states.ENDED:
                results[paths.id] = _result(paths, state, paths.id in before, began)
            elif told.get(paths.id) != state["state"]:
                told[paths.id] = state["state"]
                call.event(run=paths.id, state=state["state"], grace_s=_grace_s(paths))
        if len(results) < len(runs):
            time.sleep(POLL_S)
    return {"results": [results[paths.id] for paths in runs]}


def _order(call: Call, paths: RunPaths, now: bool) -> None:
    """Leave the word in the run's folder: it outlives every process."""
    # empty files: a full disk must not keep the run that fills it from being stopped
    for path in [paths.cancel_now, paths.cancel] if now else [paths.cancel]:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    wakeup.poke(call.workspace, paths.id)


def _result(paths: RunPaths, state: Dict[str, Any], before: bool, began: float) -> Dict[str, Any]:
    ended = {}
    if state.get("attempt"):
        ended = records.read(os.path.join(paths.attempt(state["attempt"]), "exit.json")) or {}
    left: List[int] = sorted(processes.living(ended.get("left", [])))
    return {
        "run": paths.id,
        "outcome": state.get("outcome"),
        "ended_before": before,
        "processes": ended.get("processes", 0),
        "gpus": ended.get("gpus", []),
        "left": left,
        "seconds": 0.0 if before else time.monotonic() - began,
    }


def _state(paths: RunPaths) -> Dict[str, Any]:
    pair = view.read_pair(paths)
    return pair[1] if pair else {"state": states.ENDED}


def _grace_s(paths: RunPaths) -> float:
    spec = records.read(paths.spec) or {}
    return float(spec.get("grace_s", 25.0))
