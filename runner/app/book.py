"""What pulls made here: the project's records, and what a killed pull left of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.app.context import Context
from runner.manifest import Fetch, Known
from runner.transfer import parts
from runner.transfer.places import Places


class Book:
    """What pulls of a run made in one folder."""

    def __init__(self, ctx: Context, run: str, places: Places) -> None:
        self._ctx = ctx
        self._run = run
        self._places = places
        self.doubtful: set[str] = set()
        """Logs here that a killed pull appended to, or perhaps somebody else."""
        whole = ctx.store.pulled(run)
        self._facts = {"complete": whole.get("complete", False), "attempt": whole.get("attempt")}
        found = whole.get("places")
        self._place = _place_name(ctx.project.root, places.top)
        here = found.get(self._place) if isinstance(found, dict) else None
        rows: dict[str, Any] = here if isinstance(here, dict) else {}
        self._before = (self._facts, rows)
        self.known: dict[str, Known] = {
            name: Known(*row) for name, row in rows.items() if parts.is_known(row)
        }
        self._was = dict(self.known)
        self._recall()

    def add(self, done: Sequence[tuple[Fetch, Known]]) -> None:
        """Files that are in place now."""
        for item, known in done:
            self.known[item.file.name] = known
            self.doubtful.discard(item.file.name)

    def save(self, facts: Mapping[str, Any] | None = None) -> None:
        """Write down what is new. facts: of the run as a whole; None leaves those as they were."""
        for name in self.doubtful:
            self.known[name] = self._was[name]
        rows = {
            name: [known.size, known.mtime_ns, known.sha256, known.local_mtime_ns]
            for name, known in self.known.items()
        }
        now = dict(facts) if facts is not None else self._facts
        if (now, rows) != self._before:
            self._ctx.store.put_pulled(self._run, self._place, rows, now)

    def _recall(self) -> None:
        look = self._places.look
        for name, known in parts.read_done(self._places).items():
            here = look(name)
            if here and (here.size, here.mtime_ns) == (known.size, known.local_mtime_ns):
                self.known[name] = known
        for name, last in parts.read_grown(self._places).items():
            here, was = look(name), self.known.get(name)
            if here is None or was is None or here.size < was.size:
                continue
            if (here.size, here.mtime_ns) == (was.size, was.local_mtime_ns):
                continue
            self.known[name] = Known(here.size, -1, "", here.mtime_ns)
            if (here.size, here.mtime_ns) != last:
                self.doubtful.add(name)


def _place_name(root: Path, top: Path) -> str:
    """What records call a folder: within the project its path there, since that may be moved."""
    return str(top.relative_to(root) if top.is_relative_to(root) else top)
