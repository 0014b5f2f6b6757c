"""`cancel`: asks runs to stop and answers once nothing of them is left."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List, Optional, Tuple

import processes
import records
import resumes
import view
import wakeup
from paths import RunPaths

from runner import states
from verbs import Call, Refused

POLL_S = 0.02
POLL_MOST_S = 0.2
"""A look at many runs costs more, and so comes less often."""
LOOK_SHARE = 4
"""At most one part in so many of the time is spent looking."""


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"ids": [...], "now": bool} → EVENT {"run", "state", "grace_s"}; {"results": [...]}.

    A run that is not here is told by {"run", "unknown": true}, and keeps no other from its end.
    """
    orders: Dict[Any, _Order] = {}
    for name in dict.fromkeys(request.get("ids") or []):
        try:
            orders[name] = _Order(call.run(name))
        except Refused as error:
            if error.body["code"] != "unknown-run":
                raise
    began = time.monotonic()
    for order in orders.values():
        order.give(call, bool(request.get("now")))
    left = list(orders.values())
    while True:
        looked = time.monotonic()
        left = [order for order in left if not order.is_over(call, began)]
        if not left:
            return {"results": [_told(orders, name) for name in request.get("ids") or []]}
        spent = time.monotonic() - looked
        call.keep_up()
        time.sleep(min(POLL_MOST_S, max(POLL_S, LOOK_SHARE * spent)))


class _Order:
    """One run that is to stop."""

    def __init__(self, paths: RunPaths) -> None:
        self.result: Dict[str, Any] = {}
        self._paths = paths
        self._before = False
        self._seen: Optional[Tuple[int, int]] = None
        self._told: Optional[str] = None

    def give(self, call: Call, now: bool) -> None:
        """Leave the word in the run's folder: it outlives every process."""
        state = _state(self._paths)
        self._before = _is_ended(self._paths, state)
        if self._before:
            return
        paths = self._paths
        # no bytes, and no inode where none is left: a full disk must not keep the run that fills it
        # from being stopped
        for path in [paths.cancel_now, paths.cancel] if now else [paths.cancel]:
            records.make_mark(path, paths.spec, call.workspace.caches)
        wakeup.poke(call.workspace, paths.id)

    def is_over(self, call: Call, began: float) -> bool:
        """Whether the run has ended; its state is read only when it was written anew."""
        seen = _written(self._paths.state)
        if seen is not None and seen == self._seen:
            return False
        self._seen = seen
        state = _state(self._paths)
        if _is_ended(self._paths, state):
            here = state.get("place", "") == call.workspace.place
            self.result = _result(self._paths, state, self._before, began, here)
            return True
        if self._told != state["state"]:
            self._told = state["state"]
            call.event(run=self._paths.id, state=state["state"], grace_s=_grace_s(self._paths))
        return False


def _told(orders: Dict[Any, _Order], name: Any) -> Dict[str, Any]:
    return orders[name].result if name in orders else {"run": name, "unknown": True}


def _is_ended(paths: RunPaths, state: Dict[str, Any]) -> bool:
    """Whether a run has ended and nobody has resumed it since."""
    return state["state"] == states.ENDED and not resumes.is_pending(paths, state)


def _written(path: str) -> Optional[Tuple[int, int]]:
    """Something that differs each time a record was written; None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def _result(
    paths: RunPaths, state: Dict[str, Any], before: bool, began: float, here: bool
) -> Dict[str, Any]:
    ended = {}
    if state.get("attempt"):
        ended = records.read(os.path.join(paths.attempt(state["attempt"]), "exit.json")) or {}
    left: List[int] = sorted(ended.get("left", []))
    if here:
        left = sorted(processes.living(left))  # pids of another container say nothing here
    return {
        "run": paths.id,
        "outcome": state.get("outcome"),
        "ended_before": before,
        "processes": ended.get("processes", 0),
        "gpus": ended.get("gpus", []),
        "unread": bool(state.get("gpus")) and bool(ended) and not ended.get("gpus"),
        "left": left,
        "seconds": 0.0 if before else time.monotonic() - began,
    }


def _state(paths: RunPaths) -> Dict[str, Any]:
    pair = view.read_pair(paths)
    if pair is not None:
        return pair[1]
    # its records are gone or spoilt: what tells whether it lives is its lock
    return {"state": states.RUNNING if records.is_locked(paths.lock) else states.ENDED}


def _grace_s(paths: RunPaths) -> float:
    spec = records.read(paths.spec) or {}
    return float(spec.get("grace_s", 25.0))
