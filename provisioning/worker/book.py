"""The dispatcher's book of runs: reads spec and state, writes state.json, a step at a time.

Of a queued run nothing is kept in memory, so that ten thousand of them cost little; of a live one
its spec and state.
"""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Optional, Tuple

import journal
import progress
import records
import resumes
import secrets_store
from paths import RunPaths, Workspace

from runner import states
from runner.states import CANCELLED, DONE, ENDED, FAILED, LIVE, QUEUED, SKIPPED

Table = Dict[str, Any]
Owns = Callable[[Table, Optional[Table]], bool]
_FROM_ZERO: Table = {
    "outcome": None,
    "cause": None,
    "ended_at": None,
    "final": None,
    "not_before": 0.0,
    "outside": 0,
    "restarts_used": 0,
    "ran_s": 0.0,
    "fault": None,
}
"""What a resumed run begins anew with."""


class Book:
    """States of runs, as files; the only writer of state.json."""

    def __init__(self, workspace: Workspace, owns: Owns = lambda *_: True) -> None:
        """owns: whether a run is this dispatcher's, of its spec and of its state if it has one."""
        self._workspace = workspace
        self._owns = owns
        self._live: Dict[str, Tuple[Table, Table]] = {}

    def read(self, run: str) -> Optional[Tuple[Table, Table]]:
        """(spec as submitted, state) of a run that is ours; a new one gets its first state here, on
        disk too."""
        known = self._live.get(run)
        if known is not None:
            return known
        paths = self._workspace.run(run)
        spec = records.read(paths.spec)
        if not spec:
            return None
        state = records.read(paths.state)
        if not self._owns(spec, state):
            return None
        if state is None:
            state = _new_state(spec)
            records.make_spare(paths.state)  # its end must be written on a full disk, too
            # lost with the host's power it is made again: what counts is spec.json
            self._write(paths, spec, state, dict(state, updated_at=time.time()), sync=False)
        return spec, state

    def put(self, spec: Table, record: Table, **changes: Any) -> None:
        """Write a run's state; what is not a step of the state machine is a bug of ours."""
        before = record["state"]
        after = str(changes.get("state", before))
        if not states.may_follow(before, after):
            raise ValueError("%s: %s cannot become %s" % (spec["id"], before, after))
        paths = self._workspace.run(spec["id"])
        # on disk first: when that fails, what is remembered is still what is there
        written = dict(record, **changes, updated_at=time.time())
        self._write(paths, spec, record, written, spare=after == ENDED)

    def _write(
        self,
        paths: RunPaths,
        spec: Table,
        record: Table,
        written: Table,
        sync: bool = True,
        spare: bool = False,
    ) -> None:
        records.write(paths.state, written, sync=sync, spare=spare)
        record.update(written)
        if record["state"] in LIVE:
            self._live[spec["id"]] = (spec, record)
        else:
            self._live.pop(spec["id"], None)
        records.append_line(
            paths.events,
            {"event": record["state"], "attempt": record["attempt"], "cause": record.get("cause")},
        )

    def put_if_room(self, spec: Table, record: Table, **changes: Any) -> None:
        """The same for a step that people like to see but nothing hangs on."""
        try:
            self.put(spec, record, **changes)
        except OSError as error:
            if not journal.is_full(error):
                raise

    def remember(self, spec: Table, state: Table) -> None:
        """Keep a live run at hand."""
        self._live[spec["id"]] = (spec, state)

    def forget(self, run: str) -> None:
        """Keep nothing of a run whose records are gone."""
        self._live.pop(run, None)

    def end(self, spec: Table, record: Table, cause: Optional[Table], **facts: Any) -> None:
        """Write a run's end. Its secrets go with it."""
        paths = self._workspace.run(spec["id"])
        secrets_store.remove(paths)
        facts.update(state=ENDED, outcome=outcome_of(cause), cause=cause)
        facts.update(final=progress.said(paths))
        facts["ended_at"] = facts.get("ended_at") or time.time()
        self.put(spec, record, **facts)
        records.drop_spare(paths.state)

    def resume(self, paths: RunPaths, spec: Table, state: Table) -> None:
        """Take up what somebody asked for: an ended run waits for its next attempt."""
        records.make_spare(paths.state)
        self.put(spec, state, **dict(_FROM_ZERO, state=QUEUED, resumed=resumes.count(paths)))


def outcome_of(cause: Optional[Table]) -> str:
    """How a run with that cause ended."""
    if cause is None:
        return DONE
    return {"cancelled": CANCELLED, "dependency": SKIPPED}.get(str(cause["kind"]), FAILED)


def started_at(paths: RunPaths, state: Table) -> Optional[float]:
    """When the attempt began; a short one is over before anybody sees it run."""
    born = records.read(os.path.join(paths.attempt(int(state["attempt"])), "proc.json")) or {}
    return born.get("started_at") or state.get("started_at")


def _new_state(spec: Table) -> Table:
    return {
        "format": records.FORMAT,
        "state": QUEUED,
        "attempt": 0,
        "submitted_at": spec.get("accepted_at"),
        "started_at": None,
        "exit": None,
        "gpus": [],
        **_FROM_ZERO,
    }
