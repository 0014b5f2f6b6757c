"""What a run's status says when it is read with care: shares, times left, causes in words (pure).

Times of a run are its worker's; they are compared with the worker's clock only, which is ours plus
the host's skew. Of a host that is silent they count up to when it was last heard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runner import states
from runner.app.results import RunOnHost
from runner.show.units import duration
from runner.wire import RunStatus, is_number

COLOURS = {
    "FAILED": "red",
    "RUNNING": "green",
    "QUEUED": "yellow",
    "STARTING": "yellow",
    "STOPPING": "yellow",
}
_LEAST_SHARE = 0.01
"""Below this share of the steps a time left would be a guess."""
_SHORT = {
    "oom": "memory",
    "cuda-oom": "GPU memory",
    "disk-full": "no disk left",
    "time-limit": "time limit",
}
_LONGER = {"oom": "out of memory", "cuda-oom": "out of GPU memory"}


def worker_now(run: RunOnHost, now: float) -> float:
    """The worker's clock now, or when it was last heard."""
    heard = run.contact.at if run.contact.state != "ok" and run.contact.at is not None else now
    return heard + (run.contact.clock_skew_s or 0.0)


def steps_total(status: RunStatus) -> float | None:
    total: Any = status.params.get("steps")
    return total if is_number(total) and total > 0 else None


def share_done(status: RunStatus) -> float | None:
    total = steps_total(status)
    return None if status.step is None or total is None else min(1.0, status.step / total)


def elapsed_s(run: RunOnHost, now: float) -> float | None:
    """How long it ran, all attempts together; how long it waits, when it never did."""
    status = run.status
    if status.started_at is None:
        begin, before = status.submitted_at, 0.0
    else:
        begin, before = status.started_at, status.ran_s or 0.0
    if begin is None:
        return None
    if status.state in states.LIVE:
        return before + worker_now(run, now) - begin
    if status.started_at is not None and before:
        return before
    return (status.ended_at or worker_now(run, now)) - begin


def time_left(status: RunStatus) -> float | None:
    """Seconds to go at the speed so far; None where that would be a guess."""
    total, share = steps_total(status), share_done(status)
    if status.state != states.RUNNING or status.attempt != 1 or total is None or share is None:
        return None
    if status.progress_at is None or status.started_at is None or share < _LEAST_SHARE:
        return None
    spent = status.progress_at - status.started_at
    return spent * (1 - share) / share if spent > 0 else None


def limit_left(run: RunOnHost, now: float) -> float | None:
    """Seconds until a run's time limit ends it; None where it has none, or is not running."""
    status = run.status
    if status.time_limit_s is None or status.state not in states.LIVE:
        return None
    return max(0.0, status.time_limit_s - (ran(run, now) or 0.0))


def ran(run: RunOnHost, now: float) -> float | None:
    """Running time of all attempts, which a time limit counts."""
    status = run.status
    if status.state not in states.LIVE or status.started_at is None:
        return status.ran_s
    return (status.ran_s or 0.0) + max(0.0, worker_now(run, now) - status.started_at)


def stuck_note(run: RunOnHost, now: float) -> list[str]:
    """`no step for 31m` of a run that is stuck."""
    status = run.status
    if status.stuck is None or status.state not in states.LIVE:
        return []
    since: Any = status.stuck.get("since_at")
    last = since if is_number(since) else status.progress_at
    what = "no output" if status.step is None else "no step"
    return [f"{what} for {duration(None if last is None else worker_now(run, now) - last)}"]


def cause_of(status: RunStatus) -> str:
    """The cause in the worker's words."""
    cause = status.cause or {}
    return str(cause.get("text") or cause.get("kind") or "")


def cause_text(status: RunStatus) -> str:
    """Why it ended, on a line with others; nothing where its outcome says so already."""
    return _cause(status, _LONGER)


def short_cause(status: RunStatus) -> str:
    """The same in a word or two, where there are any."""
    return _cause(status, _SHORT)


def _cause(status: RunStatus, words: Mapping[str, str]) -> str:
    text = words.get(str((status.cause or {}).get("kind"))) or cause_of(status)
    return "" if text in (status.outcome, states.DONE) or status.outcome == states.DONE else text


def repeated(status: RunStatus) -> int:
    """How many attempts running ended with the same fault at the same step; 1 for one alone."""
    said: Any = (status.cause or {}).get("repeated")
    if is_number(said):
        return max(1, int(said))
    return 2 if said else 1
