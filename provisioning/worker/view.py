"""A run as its files tell it: spec, state, progress and checkpoints made into one status."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

import board
import checkpoints
import environment
import places
import plain
import progress
import records
import repeats
import resumes
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
    if state.get("state") == states.ENDED and resumes.is_pending(paths, state):
        # somebody resumed it, and the dispatcher will take that up: its end is not its end
        state = dict(state, state=states.QUEUED, outcome=None, cause=None, ended_at=None)
    return spec, state


def read_all(workspace: Workspace, sweep: Optional[str] = None) -> List[Pair]:
    """Every run's spec and state; of one sweep those that have its name before their number."""
    pairs = []
    for name in os.listdir(workspace.runs):
        if name.startswith(".") or (sweep is not None and name.rpartition(".")[0] != sweep):
            continue
        pair = read_pair(workspace.run(name))
        if pair is not None:
            pairs.append(pair)
    return pairs


def read_some(workspace: Workspace, names: Any) -> List[Pair]:
    """Those of these runs that are here."""
    found = []
    for name in names if isinstance(names, list) else []:
        try:
            pair = read_pair(workspace.run(str(name)))
        except ValueError:
            continue
        if pair is not None:
            found.append(pair)
    return found


class View:
    """Makes statuses; reads what is known of the queue once for all of them."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._boards: Dict[Any, Optional[Dict[str, Any]]] = {}

    def status(self, spec: Dict[str, Any], state: Dict[str, Any], full: bool) -> RunStatus:
        """One run; `full` adds what costs reading: its attempts and checkpoints."""
        paths = self._workspace.run(spec["id"])
        live = state["state"] in states.LIVE
        ended = state["state"] == states.ENDED
        last = state.get("final") if ended else progress.said(paths)
        last = last or {}
        place = self._place(spec, state)
        attempt = int(state.get("attempt", 0))
        stopping = live and os.path.exists(paths.cancel)
        found = checkpoints.names(paths.checkpoints) if full else []
        now = resumes.effective(paths, spec, state)
        return RunStatus(
            id=spec["id"],
            state=states.STOPPING if stopping else state["state"],
            outcome=state.get("outcome"),
            cause=state.get("cause"),
            job=spec.get("job"),
            project=spec.get("project", {}),
            name=spec.get("name"),
            tags=spec.get("tags", []),
            sweep=spec.get("sweep"),
            position=place.get("position"),
            reason=board.in_words(place["waits"]) if place.get("waits") else _doing(paths, state),
            waits=place.get("waits"),
            submitted_at=spec.get("accepted_at"),
            started_at=state.get("started_at"),
            ended_at=state.get("ended_at"),
            attempt=attempt,
            restarts_left=repeats.restarts_left(spec, state),
            priority=int(spec.get("priority") or 0),
            after=list(spec.get("after") or ()),
            time_limit_s=spec.get("time_limit_s"),
            ran_s=state.get("ran_s"),
            stuck=_stuck(paths, attempt) if live else None,
            origin=spec.get("origin"),
            secrets=list(spec.get("secrets") or ()),
            nproc=spec.get("nproc", 1),
            gpus=[
                {"uuid": card["uuid"], "index": card.get("index"), "name": card.get("name")}
                for card in state.get("gpus", [])
            ],
            image=places.image_of(spec),
            params=now.get("params", {}),
            given=spec.get("given", []),
            argv=environment.said_words(now),
            snapshot=spec.get("snapshot"),
            code=_code(spec),
            metric=spec.get("metric"),
            step=last.get("step"),
            metrics=last.get("metrics") or {},
            progress_at=last.get("t"),
            exit=state.get("exit") if ended else None,
            log_bytes=plain.size(paths.log(0)) or 0,
            log_cut_bytes=_log_cut(paths) if spec.get("log_limit_bytes") else 0,
            log_problem=log_problem(paths, attempt),
            checkpoints=[checkpoints.describe(paths.checkpoints, name) for name in found],
            bad_checkpoints=checkpoints.bad_names(paths.checkpoints) if full else [],
            attempts=_attempts(paths, attempt) if full else [],
        )

    def _place(self, spec: Dict[str, Any], state: Dict[str, Any]) -> Dict[str, Any]:
        """{"position", "waits"} of a queued run."""
        if state["state"] != states.QUEUED:
            return {}
        body = self.board(spec)
        if body is None:
            image = places.image_of(spec)
            why = {"kind": "no-worker", "image": image, "why": "no worker of image %s" % image}
            return {"position": None, "waits": why}
        return board.waits(body, spec, state, self._waits_still)

    def board(self, spec: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """What is told of the queue that a run stands in; None where no worker has such a queue."""
        image = places.image_of(spec)
        if image not in self._boards:
            seen = places.queue_of(self._workspace, spec)
            self._boards[image] = None if seen is None else records.read(seen.queue) or {}
        return self._boards[image]

    def _waits_still(self, run: str) -> bool:
        """Whether a run that was told to wait does so now."""
        state = records.read(self._workspace.run(run).state)
        return state is None or state.get("state") == states.QUEUED


def _doing(paths: RunPaths, state: Dict[str, Any]) -> Optional[str]:
    """What is still done before a run's program starts, where that takes long."""
    if state["state"] != states.STARTING:
        return None
    folder = paths.attempt(int(state.get("attempt", 0)))
    body = records.read(os.path.join(folder, "doing.json")) or {}
    text = body.get("text")
    return text if isinstance(text, str) else None


def _code(spec: Dict[str, Any]) -> Dict[str, Any]:
    """Where the snapshot came from, in short: what was edited is in the diff, which is pulled."""
    found = spec.get("code")
    code = found if isinstance(found, dict) else {}
    return {key: value for key, value in code.items() if key != "diff"}


def _stuck(paths: RunPaths, attempt: int) -> Optional[Dict[str, Any]]:
    """Since when nothing moves, if that is longer than the run said it may."""
    body = records.read(os.path.join(paths.attempt(attempt), "stuck.json"))
    if not body or not plain.is_number(body.get("since")):
        return None
    return {"since_at": body["since"], "action": str(body.get("action"))}


def _log_cut(paths: RunPaths) -> int:
    """How much of rank 0's log is a hole."""
    try:
        found = os.lstat(paths.log(0))
    except OSError:
        return 0
    return max(0, found.st_size - found.st_blocks * 512)


def log_problem(paths: RunPaths, attempt: int) -> Optional[str]:
    """What became of the logs of an attempt, in its launcher's words."""
    text = _of_logs(paths, attempt, "log_problem")
    return text if isinstance(text, str) else None


def own_log(paths: RunPaths, attempt: int, rank: int) -> Any:
    """[device, inode] of the file that is a rank's own log."""
    logs = _of_logs(paths, attempt, "logs")
    return logs[rank] if isinstance(logs, list) and rank < len(logs) else None


def _of_logs(paths: RunPaths, attempt: int, key: str) -> Any:
    """What an attempt's launcher wrote down last."""
    if not attempt:
        return None
    folder = paths.attempt(attempt)
    body = records.read(os.path.join(folder, "exit.json")) or {}
    if key not in body:
        # it lives, or its launcher was lost
        body = records.read(os.path.join(folder, "beat.json")) or {}
    return body.get(key)


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
                "stacks": _stacks(folder),
            }
        )
    return rows


def _stacks(folder: str) -> List[str]:
    """Names of the dumps of stacks that an attempt has."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return sorted(name for name in names if name.startswith("stacks-") and name.endswith(".txt"))
