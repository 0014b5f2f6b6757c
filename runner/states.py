"""The states of a run, shared by operator and worker (standard library, Python 3.9).

    queued -> starting -> running -> (stopping) -> ended
       ^---------'-----------'---------- an attempt is to be repeated
       '------------------------------------------ somebody resumes it

An outcome exists only once a run has ended: done, failed, cancelled or skipped. Lost contact
is never a state: it stands beside the last known one. A cause says why an attempt ended; its
kind decides whether the run may be repeated:

* own faults (`OWN_FAULTS`) are the job's;
* causes from outside (`FROM_OUTSIDE`) are nobody's fault: the run is repeated free of charge,
  at most `OUTSIDE_LIMIT` times in a row without a new checkpoint;
* every other kind ends the run.
"""

from __future__ import annotations

QUEUED = "queued"
STARTING = "starting"
RUNNING = "running"
STOPPING = "stopping"
ENDED = "ended"
STATES = (QUEUED, STARTING, RUNNING, STOPPING, ENDED)
LIVE = frozenset({STARTING, RUNNING, STOPPING})

DONE = "done"
FAILED = "failed"
CANCELLED = "cancelled"
SKIPPED = "skipped"
OUTCOMES = (DONE, FAILED, CANCELLED, SKIPPED)

OWN_FAULTS = frozenset({"exit", "signal", "oom", "cuda-oom", "stuck"})
FINAL_CAUSES = frozenset({"nan", "time-limit", "disk-full", "setup", "cancelled", "dependency"})
FROM_OUTSIDE = frozenset(
    {
        "host-restart",
        "worker-lost",
        "launcher-lost",
        "not-started",
        "lease-lost",
        "shutdown",
    }
)
NEVER_SUBMITTED = frozenset({"overlap", "missed", "not-submitted"})
"""Why a firing of a schedule made no run; only the operator's side knows of it."""
CAUSES = OWN_FAULTS | FINAL_CAUSES | FROM_OUTSIDE
OUTSIDE_LIMIT = 20

_NEXT = {
    QUEUED: {STARTING, ENDED},
    STARTING: {RUNNING, STOPPING, QUEUED, ENDED},
    RUNNING: {STOPPING, QUEUED, ENDED},
    STOPPING: {QUEUED, ENDED},
    ENDED: {QUEUED},
}


def may_follow(before: str, after: str) -> bool:
    """Whether a run in state `before` may go to `after`; a state may always be written again."""
    return before == after or after in _NEXT[before]


def shown(state: str, outcome: str | None) -> str:
    """The word people see: the outcome once ended, else the state, in capitals."""
    return (outcome or state).upper()
