"""Who outside the runner uses cards, judged look by look: pure but for the names of processes.

A card that no run leases and that is in use is a stranger's. It is offered again only when it has
looked free for a while: between two epochs a training may hold little. A card that a run gave back
a moment ago is not a stranger's yet: its memory may still be going.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Optional, Set

import gpus

Table = Dict[str, Any]
GRACE_S = 5.0
"""So long, and twice at least, a card must look free after a stranger was seen there."""
RELEASE_GRACE_S = 10.0
"""So long what is left on a card is the memory of the run that gave it back."""
_MOST_NAME = 64
_FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of the pid namespace that sees every process by its true pid (Linux's own number)."""


class Strangers:
    """What is known of the cards that nobody leases. `before`: what another one knew, to go on."""

    def __init__(self, before: Iterable[Table] = ()) -> None:
        self._strangers: Dict[str, Table] = {str(row["uuid"]): dict(row) for row in before}
        self._free: Dict[str, float] = {}
        self._released: Dict[str, float] = {}
        self._going: Dict[str, Table] = {}

    def look(
        self,
        cards: Iterable[Table],
        apps: Iterable[Table],
        held: Set[str],
        touched: Set[str],
        now: float,
        at: float,
    ) -> None:
        """Take in one answer of nvidia-smi.

        held: cards that are leased. touched: cards that were, at some time since the last look.
        now: monotonic; at: the same moment as time of day.
        """
        apps = list(apps)
        there = set()
        for card in cards:
            uuid = card["uuid"]
            there.add(uuid)
            if uuid in held:
                self._forget(uuid)
                continue
            if uuid in touched:
                self._forget(uuid)
                self._released[uuid] = now
            mine = [app for app in apps if app["uuid"] == uuid]
            if not gpus.is_used(card, mine):
                self._going.pop(uuid, None)
                self._look_free(card, now)
            elif now - self._released.get(uuid, -RELEASE_GRACE_S) < RELEASE_GRACE_S:
                self._going[uuid] = {key: card[key] for key in ("index", "uuid", "used_mib")}
            else:
                self._going.pop(uuid, None)
                self._free.pop(uuid, None)
                since = self._strangers.get(uuid, {}).get("since", at)
                self._strangers[uuid] = _row(card, mine, since)
        for uuid in {*self._strangers, *self._going, *self._released} - there:
            self._forget(uuid)

    def rows(self) -> List[Table]:
        """[{"index", "uuid", "used_mib", "pids": [{"pid", "program", "user", "used_mib"}], "since",
        "left"}]; left: it looks free, but not yet for long enough."""
        return _sorted(self._strangers.values())

    def going(self) -> List[Table]:
        """[{"index", "uuid", "used_mib"}] of cards where the memory of the run before is going."""
        return _sorted(self._going.values())

    def blocks(self, uuid: str) -> bool:
        """Whether a card is not to be given away."""
        return uuid in self._strangers or uuid in self._going

    def _look_free(self, card: Table, now: float) -> None:
        uuid = card["uuid"]
        row = self._strangers.get(uuid)
        if row is None:
            return
        if now - self._free.setdefault(uuid, now) >= GRACE_S:
            self._forget(uuid)
        else:
            row.update(used_mib=card["used_mib"], pids=[], left=True)

    def _forget(self, uuid: str) -> None:
        for table in (self._strangers, self._going, self._released, self._free):
            table.pop(uuid, None)  # type: ignore[attr-defined]


def _sorted(rows: Iterable[Table]) -> List[Table]:
    return sorted(map(dict, rows), key=lambda row: row["index"] or 0)


def _row(card: Table, apps: List[Table], since: float) -> Table:
    return {
        "index": card["index"],
        "uuid": card["uuid"],
        "used_mib": card["used_mib"],
        "pids": [describe(app) for app in apps],
        "since": since,
        "left": False,
    }


def describe(app: Table, proc: str = "/proc") -> Table:
    """{"pid", "program", "user", "used_mib"} of a process that computes; None: not to be known.

    nvidia-smi tells the host's pids, also inside a container, where the same pid may be somebody
    else: there /proc is believed only when it knows the process by the same program.
    """
    pid, program = app["pid"], app["program"]
    user: Optional[str] = None
    seen = _seen(proc, pid) if pid is not None else None
    if seen is not None and (_sees_all(proc) or seen["program"] == program):
        program, user = seen["program"] or program, seen["user"]
    return {"pid": pid, "program": program, "user": user, "used_mib": app["used_mib"]}


def _seen(proc: str, pid: int) -> Optional[Table]:
    folder = os.path.join(proc, str(pid))
    try:
        with open(os.path.join(folder, "cmdline"), "rb") as file:
            first = file.read(4096).split(b"\0")[0]
        with open(os.path.join(folder, "status"), "rb") as file:
            uids = [line.split() for line in file if line.startswith(b"Uid:")]
    except OSError:
        return None
    program = os.path.basename(first).decode("utf-8", "replace")[:_MOST_NAME] or None
    return {"program": program, "user": _user_name(int(uids[0][1])) if uids else None}


def _sees_all(proc: str) -> bool:
    try:
        return os.stat(os.path.join(proc, "self", "ns", "pid")).st_ino == _FIRST_NAMESPACE
    except OSError:
        return False


def _user_name(uid: int) -> str:
    """From the file alone: a directory service can take long, and hold up the queue."""
    try:
        with open("/etc/passwd", encoding="utf-8", errors="replace") as file:
            for line in file:
                parts = line.split(":")
                if len(parts) > 2 and parts[2] == str(uid):
                    return parts[0]
    except OSError:
        pass
    return "uid %d" % uid
