"""A run as its files tell it: spec, state, progress and checkpoints made into one status."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Optional, Tuple

import checkpoints
import gpus
import leases
import plain
import progress
import queueing
import records
from paths import RunPaths, Workspace

from runner import states
from runner.wire import RunStatus

Pair = Tuple[Dict[str, Any], Dict[str, Any]]


def read_pair(paths: RunPaths) -> Optional[Pair]:
    """(spec, state) of a run; None when it is not here. A run not looked at yet is queued."""
    spec = records.read(paths.spec)
    if spec is None:
        return None
    state = records.read(paths.state) or {
        "state": states.QUEUED,
        "attempt": 0,
        "submitted_at": spec.get("accepted_at"),
    }
    return spec, state


def read_all(workspace: Workspace) -> List[Pair]:
    """Every run's spec and state."""
    pairs = []
    for name in os.listdir(workspace.runs):
        if name.startswith("."):
            continue
        pair = read_pair(workspace.run(name))
        if pair is not None:
            pairs.append(pair)
    return pairs


def waiting(pairs: Iterable[Pair]) -> List[queueing.Waiting]:
    """The queue, from what the files say."""
    return [
        queueing.Waiting(
            spec["id"],
            float(spec.get("accepted_at", 0)),
            int(spec.get("gpus", 0)),
            float(state.get("not_before", 0)),
        )
        for spec, state in pairs
        if state["state"] == states.QUEUED
    ]


class View:
    """Makes statuses; looks at the queue and the leases once for all of them."""

    def __init__(self, workspace: Workspace, lease_folder: str, pairs: List[Pair]) -> None:
        self._workspace = workspace
        self._lease_folder = lease_folder
        self._line = queueing.in_order(waiting(pairs))
        self._busy: Optional[Dict[str, str]] = None

    def status(self, spec: Dict[str, Any], state: Dict[str, Any], full: bool) -> RunStatus:
        """One run; `full` adds what costs reading: its attempts and checkpoints."""
        paths = self._workspace.run(spec["id"])
        ended = state["state"] == states.ENDED
        last = state.get("final") if ended else progress.last(paths.progress(0))
        last = last or {}
        position, reason = self._place(spec, state)
        attempt = int(state.get("attempt", 0))
        stopping = not ended and os.path.exists(paths.cancel) and state["state"] in states.LIVE
        found = checkpoints.names(paths.checkpoints) if full else []
        return RunStatus(
            id=spec["id"],
            state=states.STOPPING if stopping else state["state"],
            outcome=state.get("outcome"),
            cause=state.get("cause"),
            job=spec.get("job"),
            project=spec.get("project", {}),
            name=spec.get("name"),
            tags=spec.get("tags", []),
            position=position,
            reason=reason,
            submitted_at=spec.get("accepted_at"),
            started_at=state.get("started_at"),
            ended_at=state.get("ended_at"),
            attempt=attempt,
            nproc=spec.get("nproc", 1),
            gpus=[
                {"uuid": card["uuid"], "index": card.get("index"), "name": card.get("name")}
                for card in state.get("gpus", [])
            ],
            image=spec.get("image"),
            params=spec.get("params", {}),
            given=spec.get("given", []),
            argv=spec.get("argv", []),
            snapshot=spec.get("snapshot"),
            code=spec.get("code", {}),
            metric=spec.get("metric"),
            step=last.get("step"),
            metrics=last.get("metrics") or {},
            progress_at=last.get("t"),
            exit=state.get("exit") if ended else None,
            log_bytes=_log_bytes(paths),
            checkpoints=[checkpoints.describe(paths.checkpoints, name) for name in found],
            attempts=_attempts(paths, attempt) if full else [],
        )

    def _place(
        self, spec: Dict[str, Any], state: Dict[str, Any]
    ) -> Tuple[Optional[int], Optional[str]]:
        own = next((item for item in self._line if item.run == spec["id"]), None)
        if own is None:
            return None, None
        line = [item for item in self._line if bool(item.gpus) == bool(own.gpus)]
        place = line.index(own) + 1
        busy = self._holders(bool(own.gpus))
        return place, queueing.blocked_by(
            line, busy, own, self._strangers(busy) if own.gpus else ()
        )

    def _holders(self, of_gpus: bool) -> Dict[str, str]:
        if not of_gpus:
            return {}
        if self._busy is None:
            cards = gpus.read_cached(self._workspace.gpus) or []
            self._busy = {}
            for card in cards:
                held = leases.holder(leases.gpu_path(self._lease_folder, card["uuid"]))
                if held is not None:
                    self._busy[card["uuid"]] = str(held.get("run", "another worker"))
        return self._busy

    def _strangers(self, busy: Dict[str, str]) -> List[str]:
        """Cards that somebody outside the runner uses, in words."""
        cards = gpus.read_cached(self._workspace.gpus) or []
        return [
            "GPU %s is in use by others (%d MiB)" % (card["index"], card["used_mib"])
            for card in cards
            if card["uuid"] not in busy and gpus.is_used(card)
        ]


def _log_bytes(paths: RunPaths) -> int:
    return plain.size(paths.log(0)) or 0


def _attempts(paths: RunPaths, count: int) -> List[Dict[str, Any]]:
    rows = []
    for number in range(1, count + 1):
        folder = paths.attempt(number)
        born = records.read(os.path.join(folder, "proc.json")) or {}
        ended = records.read(os.path.join(folder, "exit.json")) or {}
        rows.append(
            {
                "attempt": number,
                "started_at": born.get("started_at"),
                "ended_at": ended.get("ended_at"),
                "cause": ended.get("cause"),
                "exit": ended.get("exit"),
                "processes": ended.get("processes"),
                "left": ended.get("left", []),
                "gpus": ended.get("gpus", []),
            }
        )
    return rows
