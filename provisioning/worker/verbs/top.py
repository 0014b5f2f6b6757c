"""`top`: the runs that have not ended, or just now, and how the host is: cards, slots, disk.

It is asked every few seconds over one conversation, so what does not change is not read again, and
a sick nvidia-smi holds up nothing: its last answer is told, with its age.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

import config
import gpus
import leases
import paths
import plain
import resumes
import seen
import space
import view
from paths import RunPaths, Workspace

from runner import states
from verbs import Call

Table = Dict[str, Any]
RECENT_S = 60.0
"""A run that ended is told of for so long still."""
FRESH_S = 1.5
TIMES = 4.0
"""nvidia-smi rests so many times as long as it took: at most a fifth of a core goes into it."""
FIRST_WAIT_S = 3.0
WAIT_S = 1.0


def answer(call: Call, request: Table) -> Table:
    """{"project"?: id} → rows of runs as `runs` has them; {"gpus": [{"index", "uuid", "name",
    "total_mib", "used_mib", "load_percent", "run"?, "worker"?, "stranger"?: {"pid", "user",
    "program"}}], "gpus_age_s", "gpus_problem", "slots": {"total", "used"}, "disk": {"total",
    "free", "reserve"}, "live", "queued", "drained"}.

    With a project its runs alone; live and queued count those of all. load_percent: of the time a
    card computed lately; None where nvidia-smi does not tell it. run, worker: who leases a card, as
    `seen.Seen.why_not` has it. gpus_age_s: how old what is told of cards is; None: never asked.
    """
    known = config.read(call.workspace)
    folder = paths.find_leases(dict(os.environ))
    project = request.get("project")
    pairs = _recent(call.workspace)
    maker = view.View(call.workspace)
    chosen = [
        (spec, state)
        for spec, state in pairs
        if project is None or spec.get("project", {}).get("id") == project
    ]
    call.send_rows([maker.status(spec, state, False).to_json() for spec, state in chosen])
    told = [state["state"] for _, state in pairs]
    slots = leases.slot_paths(folder, known.slots)
    room = space.room(call.workspace)
    return {
        **_told_of_cards(call.workspace, known, folder),
        "slots": {
            "total": known.slots,
            "used": sum(leases.holder(path) is not None for path in slots),
        },
        "disk": {"total": room.total, "free": room.free, "reserve": known.disk_reserve},
        "live": sum(state in states.LIVE for state in told),
        "queued": told.count(states.QUEUED),
        "drained": os.path.exists(call.workspace.drained),
    }


# -- runs ------------------------------------------------------------------------------------------

_ended: Dict[str, Any] = {}
"""Runs that ended long ago, and a mark of their files as they were then."""


def _recent(workspace: Workspace) -> List[view.Pair]:
    names = [name for name in os.listdir(workspace.runs) if not name.startswith(".")]
    for gone in set(_ended).difference(names):
        _ended.pop(gone, None)
    found = []
    for name in names:
        run = workspace.run(name)
        mark = _mark(run)
        if mark is not None and _ended.get(name) == mark:
            continue
        pair = view.read_pair(run)
        if pair is None:
            continue
        if _is_old(pair[1]):
            _ended[name] = mark
        else:
            found.append(pair)
    return sorted(found, key=lambda pair: (float(pair[0].get("accepted_at", 0)), pair[0]["id"]))


def _mark(run: RunPaths) -> Optional[Tuple[Any, ...]]:
    try:
        there = os.stat(run.state)
    except OSError:
        return None
    return there.st_mtime_ns, there.st_ino, there.st_size, resumes.count(run)


def _is_old(state: Table) -> bool:
    ended_at: Any = state.get("ended_at")
    recent = plain.is_number(ended_at) and abs(time.time() - ended_at) < RECENT_S
    return state.get("state") == states.ENDED and not recent


# -- cards -----------------------------------------------------------------------------------------


class Load:
    """What nvidia-smi said last, asked anew now and then; one for a whole conversation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._query: Optional[gpus.Query] = None
        self._began = self._pause_s = 0.0
        self.cards: List[Table] = []
        self.at: Optional[float] = None
        """When that was (monotonic)."""
        self.problem: Optional[str] = None

    def look(self) -> None:
        """See that it is fresh, unless that takes long."""
        with self._lock:
            wait_s = FIRST_WAIT_S if self.at is None else WAIT_S
            now = time.monotonic()
            at = self.at
            if self._query is None and (at is None or now - at >= self._pause_s):
                self._began, self._query = now, gpus.Query(with_apps=False, with_load=True)
            while not self._is_over() and time.monotonic() < now + wait_s:
                time.sleep(0.02)

    def _is_over(self) -> bool:
        query = self._query
        if query is None:
            return True
        over = query.poll()
        if over or query.is_overdue:
            self.problem = None if query.missing else query.problem
        if over:
            now = time.monotonic()
            self._query, self.at = None, now
            self._pause_s = max(FRESH_S, TIMES * (now - self._began))
            self.cards = query.cards if self.problem is None else self.cards
        return over


_load = Load()


def _told_of_cards(workspace: Workspace, known: config.Config, folder: str) -> Table:
    _load.look()
    cards = [card for card in gpus.chosen(_load.cards, known.gpus) if "/" not in card["uuid"]]
    left = seen.Seen.read(workspace.gpus)
    strangers = left.strangers if left is not None and left.is_fresh else []
    own = {"id": known.worker, "runtime": known.runtime, "image": known.image}
    now = seen.Seen(cards=cards, strangers=strangers, going=[])
    why = now.why_not(folder, len(cards), own)
    rows = {
        card["index"]: {
            key: card[key]
            for key in ("index", "uuid", "name", "total_mib", "used_mib", "load_percent")
        }
        for card in cards
    }
    for other in why["strangers"]:
        told = {key: other[key] for key in ("pid", "user", "program") if key in other}
        if other["index"] in rows and not other.get("left"):
            rows[other["index"]]["stranger"] = told
    for holder in why["holders"]:
        holder = dict(holder)
        rows[holder.pop("index")].update(holder)
    return {
        "gpus": list(rows.values()),
        "gpus_age_s": None if _load.at is None else time.monotonic() - _load.at,
        "gpus_problem": _load.problem,
    }
