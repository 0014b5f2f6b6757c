"""What the verbs are told of the queue: queue.json, written by the dispatcher when it changes.

    {"format": 1, "at": …, "lines": {"gpu": [[run, priority, accepted_at], …], "cpu": […]},
     "held": {run: [runs it waits for]}, "heads": {"gpu": waits, "cpu": waits}}

`heads` says why the first of a line does not start, as `RunStatus.waits` has it. A run that came
after the last writing stands where it will stand: its place follows from its spec.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional

import queueing
import records
import seen
from paths import Workspace

EVERY_S = 1.0
SHORT = 200
"""A queue up to this long is told of at once; of a longer one once a second, not to cost more."""
Table = Dict[str, Any]


class Board:
    """The dispatcher's side: writes what changed."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._written: Any = None
        self._at = -EVERY_S

    def show(self, queue: queueing.Queue, heads: Dict[str, Optional[Table]]) -> None:
        """Tell of the queue as it is now; a full disk keeps the old word."""
        mark = (queue.changes, sorted((line, repr(heads[line])) for line in heads))
        pause_s = EVERY_S if len(queue) > SHORT else 0.0
        if mark == self._written or time.monotonic() - self._at < pause_s:
            return
        body = {
            "format": records.FORMAT,
            "at": time.time(),
            "lines": {line: queue.rows(line) for line in queueing.LINES},
            "held": queue.held(),
            "heads": heads,
        }
        self._at = time.monotonic()
        try:
            records.write(self._workspace.queue, body, sync=False)
        except OSError:
            return
        self._written = mark


def waits(body: Table, spec: Table, state: Table, still: Callable[[str], bool]) -> Table:
    """Why a queued run waits, and its place: {"position", "waits"}.

    body: what queue.json says, which may be a second old. still: whether a run waits now.
    """
    run, priority = str(spec["id"]), int(spec.get("priority") or 0)
    line = queueing.GPU if spec.get("gpus") else queueing.CPU
    held = (body.get("held") or {}).get(run)
    if held:
        return {"position": None, "waits": {"kind": "after", "runs": held}}
    rows = (body.get("lines") or {}).get(line) or []
    place = queueing.place(rows, run, priority, float(spec.get("accepted_at") or 0.0))
    while place.behind is not None and not still(place.behind):
        rows = [row for row in rows if row[0] != place.behind]
        place = queueing.place(rows, run, priority, float(spec.get("accepted_at") or 0.0))
    until = float(state.get("not_before") or 0.0)
    if until > time.time():
        cause = state.get("cause") or {}
        pause = {"kind": "pause", "until_at": until, "why": cause.get("text")}
        return {"position": place.position, "waits": pause}
    head = (body.get("heads") or {}).get(line)
    if head and head.get("kind") in ("drained", "disk"):
        return {"position": place.position, "waits": head}
    if place.behind is not None:
        return {"position": place.position, "waits": {"kind": "order", "behind": place.behind}}
    return {"position": place.position, "waits": head}


def in_words(waits: Table) -> str:
    """Why a queued run waits, short."""
    kind = waits.get("kind")
    if kind == "gpus":
        reasons = ", ".join(seen.in_words(waits))
        text = "waits for %s" % queueing.count(int(waits.get("want", 1)))
        return text + (": " + reasons if reasons else "")
    if kind == "after":
        return "after %s" % ", ".join(map(str, waits.get("runs", [])))
    if kind == "order":
        return "next after %s" % waits.get("behind")
    plain = {
        "slot": "waits for a slot",
        "drained": "the host is drained",
        "disk": "the disk is below its reserve",
    }
    if kind == "pause":
        return "pauses after: %s" % (waits.get("why") or "a fault")
    return plain.get(str(kind)) or str(waits.get("why") or "tried again soon")
