"""What the dispatcher knows of the host's GPUs, and which of them it may give to a run.

Nothing here waits: nvidia-smi is asked (`ask`), its answer taken when it has come (`take`). A card
is given away (`claim`) only on a good answer of a moment ago, asked after its last lease ended,
that shows nobody else there. Leases are looked at before memory: on a leased card the memory is a
run's own.

What is known is left in gpus.json for the verbs (`seen.py`).
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

import gpus
import leases
import seen
import strangers
from paths import Workspace

Table = Dict[str, Any]
FRESH_S = 1.0
"""A card's memory was looked at so shortly before it is given away."""
CACHE_S = 30.0
"""Where no run waits nvidia-smi is asked, and gpus.json written, so often."""
SOON_S = 0.2
"""A card was given back after the last question: ask again as soon."""
MORE_S = 5.0
"""Cards are asked for that were not there: look so often whether they have come."""
_NEVER = float("-inf")


class Cards:
    """One per dispatcher."""

    def __init__(
        self,
        workspace: Workspace,
        lease_folder: str,
        wanted: Any,
        now: Callable[[], float] = time.monotonic,
        worker: Optional[Table] = None,
    ) -> None:
        """wanted: `all`, `none` or indices. worker: {"id", "runtime", "image"}, put into leases."""
        self._path = workspace.gpus
        self._lease_folder = lease_folder
        self._wanted = wanted
        self._now = now
        self._worker = worker
        before = seen.Seen.read(self._path)
        self._cards: List[Table] = before.cards if before else []
        self.known: List[Table] = gpus.chosen(self._cards, wanted)
        """The cards this worker may lease, as of the last good answer, be it of another life."""
        self.problem: Optional[str] = None
        """What went wrong with the last answer (`nvidia-smi exits 9`); None: it was good."""
        self._said: Optional[str] = None
        self._missing = False
        self._query: Optional[gpus.Query] = None
        self._answered_at = self._written_at = _NEVER
        self._written: Optional[seen.Seen] = None
        self._asking = self._asked = _Leases({}, set())
        self._looked: Optional[_Leases] = None
        fresh = before is not None and before.is_fresh
        self._strangers = strangers.Strangers(before.strangers if before and fresh else ())

    # -- asking -------------------------------------------------------------------------------

    def ask(self, fresh_s: float = FRESH_S) -> None:
        """Ask nvidia-smi, unless it is being asked or answered within `fresh_s`."""
        now = self._now()
        if self._query is not None or now - self._answered_at <= fresh_s:
            return
        self._asking = self._read_leases()
        self._query = gpus.Query()
        self.take()

    def want(self, wanted: Any) -> None:
        """Other cards are to be leased from now on: `all`, `none` or indices."""
        if wanted == self._wanted:
            return
        self._wanted = wanted
        self.known = gpus.chosen(self._cards, wanted)
        # what is in gpus.json may be of fewer, and is gone
        self._written = None
        self.ask(0.0)

    def take(self) -> bool:
        """Take the answer that has come, and write gpus.json when it is time; whether one came."""
        came = self._query is not None and self._poll(self._query)
        self._write()
        return came

    def fileno(self) -> Optional[int]:
        """What becomes readable when there is something to take; None: nothing does."""
        number = -1 if self._query is None else self._query.fileno()
        return None if number < 0 else number

    def is_fresh(self, max_age_s: float) -> bool:
        """Whether the last answer, good or bad, came within that time."""
        return self._now() - self._answered_at <= max_age_s

    def _poll(self, query: gpus.Query) -> bool:
        if query.poll():
            self._query = None
        elif not query.is_overdue or self.problem == query.problem:
            return False  # not yet; or killed, known to be, and unable to die: asked no more
        self._answered_at = self._now()
        self.problem, self._said, self._missing = query.problem, query.said, query.missing
        if query.missing and self.known:
            # it has cards; a driver that is being replaced must not send runs to the CPU
            self.problem = gpus.NOT_INSTALLED
        if self.problem is None:
            self._learn(query)
        return True

    def _learn(self, query: gpus.Query) -> None:
        self._cards = query.cards
        self.known = gpus.chosen(self._cards, self._wanted)
        here, last = self._read_leases(), self._looked or self._asking
        touched = {
            uuid
            for uuid in (card["uuid"] for card in self.known)
            if uuid in last.held or here.note(uuid) != last.note(uuid)
        }
        now = self._now()
        self._strangers.look(self.known, query.apps, here.held, touched, now, time.time())
        self._asked, self._looked = self._asking, here

    def _read_leases(self) -> "_Leases":
        """Every card's lease, also of cards that no answer has named yet."""
        try:
            names = os.listdir(self._lease_folder)
        except OSError:
            names = []
        paths = {name: os.path.join(self._lease_folder, name) for name in names if _is_uuid(name)}
        held = {name for name, path in paths.items() if leases.holder(path) is not None}
        return _Leases({name: leases.last_note(path) for name, path in paths.items()}, held)

    # -- giving away --------------------------------------------------------------------------

    def free(self) -> List[Table]:
        """The cards that may be leased now; none without a good, fresh answer."""
        if self.problem is not None or not self.is_fresh(FRESH_S):
            return []
        return [
            card
            for card in self._unleased()
            if not self._strangers.blocks(card["uuid"])
            and not gpus.is_used(card)
            and not self._was_leased_since(card["uuid"])
        ]

    def claim(self, count: int, token: str, run: str) -> Optional[Dict[str, int]]:
        """Leases of `count` cards (path to open file); the caller closes its copies.

        None when there are none now; `why_not` tells the reason. Either runs hold too many of the
        cards, or there are fewer than that, or strangers use them, or memory of the run before is
        still going, or nvidia-smi failed, or it has not answered yet: then it was asked just now,
        as needed, so call again after each `take` and every second or so.
        """
        unleased = self._unleased()
        if len(unleased) < count <= len(self.known):
            return None  # enough of them, held by runs: nothing to ask about
        free = self.free()
        if len(free) >= count:
            return leases.claim_some(map(self._lease, free), count, token, run, self._worker)
        self.ask(self._pause(unleased, count))
        return None

    def given(self, got: Dict[str, int]) -> List[Table]:
        """The cards of a claim's leases."""
        return [card for card in self.known if self._lease(card) in got]

    def why_not(self, count: int) -> Table:
        """Why `count` cards cannot be had now, as a run's `waits` (see `seen.Seen.why_not`)."""
        return self._seen().why_not(self._lease_folder, count, self._worker)

    def strangers(self) -> List[Table]:
        """Who uses cards that nobody leased (see `strangers.Strangers.rows`)."""
        return self._strangers.rows()

    def _pause(self, unleased: List[Table], count: int) -> float:
        if self.problem is None and len(self.known) < count and self._answered_at > _NEVER:
            return MORE_S
        going = {row["uuid"] for row in self._strangers.going()}
        quick = any(
            card["uuid"] in going or self._was_leased_since(card["uuid"]) for card in unleased
        )
        return SOON_S if quick else FRESH_S

    def _unleased(self) -> List[Table]:
        return [card for card in self.known if leases.holder(self._lease(card)) is None]

    def _was_leased_since(self, uuid: str) -> bool:
        """Whether the answer that counts may show the memory of a run that was there meanwhile."""
        note = leases.last_note(leases.gpu_path(self._lease_folder, uuid))
        return uuid in self._asked.held or note != self._asked.note(uuid)

    def _lease(self, card: Table) -> str:
        return leases.gpu_path(self._lease_folder, card["uuid"])

    # -- telling ------------------------------------------------------------------------------

    def _seen(self) -> seen.Seen:
        return seen.Seen(
            cards=self.known,
            strangers=self._strangers.rows(),
            going=self._strangers.going(),
            problem=gpus.NOT_INSTALLED if self._missing else self.problem,
            said=self._said,
        )

    def _write(self) -> None:
        if self._answered_at == _NEVER:
            return
        now_seen, now = self._seen(), self._now()
        if now_seen == self._written and now - self._written_at < CACHE_S:
            return
        self._written, self._written_at = now_seen, now
        try:
            now_seen.write(self._path)
        except OSError:
            pass  # a full disk: the queue goes on


class _Leases(NamedTuple):
    """The leases at one moment: what the last claims wrote, and who holds."""

    notes: Dict[str, bytes]
    held: Set[str]

    def note(self, uuid: str) -> bytes:
        return self.notes.get(uuid, b"")


def _is_uuid(name: str) -> bool:
    return name.startswith(("GPU-", "MIG-"))
