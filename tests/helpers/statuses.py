"""Runs as their worker tells of them, for tests of what people are shown."""

from __future__ import annotations

from typing import Any

from runner.app.reports import WhyFacts, WhyReport
from runner.app.results import Contact, RunOnHost
from runner.show.reasons import explain, reason_lines
from runner.wire import RunStatus

NOW = 1_764_600_000.0
BAD = "\x1b]0;x\x07\x1b[2J\u202e"
HOLDER = RunStatus(
    id="dqn-9x2mp.1",
    state="running",
    attempt=1,
    started_at=NOW - 610,
    progress_at=NOW - 10,
    step=25_000,
    params={"steps": 50_000},
)
"""A run that has about nine minutes to go."""


def run(
    run_id: str = "dqn-7k3fa", state: str = "running", contact: Contact | None = None, **fields: Any
) -> RunOnHost:
    """A run on gpu1, which answers."""
    pulled = fields.pop("pulled", False)
    return RunOnHost(
        RunStatus(id=run_id, state=state, **fields), contact or Contact("gpu1", at=NOW), pulled
    )


def why(state: str, facts: WhyFacts | None = None, **fields: Any) -> list[str]:
    """What `runner why` prints of a run."""
    item = run(state=state, **fields)
    return reason_lines(item, explain(WhyReport(item, facts or WhyFacts()), NOW))


def waits(facts: WhyFacts | None = None, **what: Any) -> list[str]:
    """The same of a queued run that waits for this."""
    return why("queued", facts, waits=what, position=1)


def knows(*others: RunStatus) -> WhyFacts:
    """Facts that name other runs."""
    return WhyFacts(others={other.id: other for other in others})


def failed(kind: str, facts: WhyFacts | None = None, **fields: Any) -> list[str]:
    """The same of a run that failed an hour ago; more: fields of its cause."""
    cause = {"kind": kind, "rank": 0, "code": 1, "text": f"{kind} it was", **fields.pop("more", {})}
    fields.setdefault("started_at", NOW - 4000)
    return why("ended", facts, outcome="failed", cause=cause, ended_at=NOW - 3600, **fields)
