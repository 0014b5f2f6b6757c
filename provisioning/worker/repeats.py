"""What follows the end of an attempt: the run ends, or waits for the next one. Pure.

* An own fault spends one of the run's restarts; an attempt that went on from a newer checkpoint
  than the one before has earned all of them back. Only one that verified counts, so it shows an
  attempt later that there was one. The same fault at the same step again ends the run, whatever is
  left: it is no accident. A signal may come three times. Where a job never says its step, two
  attempts that failed alike within `AT_START_S` count as the same.
* A cause from outside costs nothing, but not without end where no new checkpoint appears.
* Every other cause ends it, and so does a cancel.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

from runner import states

AT_ONCE = 2
LONGEST_PAUSE_S = 60.0
AT_START_S = 10.0
SAME_LIMIT = {"signal": 3}
SAME_LIMIT_ELSE = 2


def after_end(
    *,
    spec: Dict[str, Any],
    state: Dict[str, Any],
    ended: Dict[str, Any],
    verified: Optional[str],
    cancelled: bool,
    now: float,
) -> Dict[str, Any]:
    """The fields of state.json that follow; `state` among them is QUEUED or ENDED.

    ended: the attempt's exit.json. verified: the checkpoint the attempt went on from. cancelled:
    somebody asked for the run's end. now: wall clock, in seconds.
    """
    cause = ended.get("cause")
    facts = {"ran_s": float(state.get("ran_s") or 0.0) + float(ended.get("ran_s") or 0.0)}
    kind = cause["kind"] if cause else None
    if kind in states.FROM_OUTSIDE:
        if cancelled:
            return dict(facts, state=states.ENDED, cause=plain_cancel())
        again = _from_outside(state, verified, now)
        return dict(facts, cause=cause, **again)
    if kind in states.OWN_FAULTS and cause is not None:
        again = _own_fault(spec, state, ended, cause, verified, now)
        if cancelled or cause.get("final"):
            again["state"] = states.ENDED
        return dict(facts, **again)
    return dict(facts, state=states.ENDED, cause=cause)


def plain_cancel() -> Dict[str, Any]:
    """The cause of a run that was cancelled while nothing of it could say so."""
    return {"kind": "cancelled", "text": "cancelled"}


def restarts_left(spec: Dict[str, Any], state: Dict[str, Any]) -> int:
    """How many own faults a run may still have."""
    return max(0, int(spec.get("restarts") or 0) - int(state.get("restarts_used") or 0))


def _from_outside(state: Dict[str, Any], verified: Optional[str], now: float) -> Dict[str, Any]:
    fresh = verified is not None and verified != state.get("outside_checkpoint")
    again = 1 if fresh else int(state.get("outside") or 0) + 1
    if again > states.OUTSIDE_LIMIT:
        return {"state": states.ENDED}
    pause = 0.0 if again <= AT_ONCE else min(LONGEST_PAUSE_S, 2.0 ** (again - AT_ONCE - 1))
    return {
        "state": states.QUEUED,
        "outside": again,
        "outside_checkpoint": verified or state.get("outside_checkpoint"),
        "not_before": now + pause if pause else 0.0,
    }


def _own_fault(
    spec: Dict[str, Any],
    state: Dict[str, Any],
    ended: Dict[str, Any],
    cause: Dict[str, Any],
    verified: Optional[str],
    now: float,
) -> Dict[str, Any]:
    before = state.get("fault") or {}
    fresh = verified is not None and verified != before.get("checkpoint")
    used = 0 if fresh else int(state.get("restarts_used") or 0)
    fault = {
        "kind": cause["kind"],
        "code": cause.get("code"),
        "step": cause.get("step") if cause.get("step") is not None else ended.get("step"),
        "ran_s": float(ended.get("ran_s") or 0.0),
        "checkpoint": verified or before.get("checkpoint"),
        "count": 1,
    }
    if _is_same(before, fault):
        fault["count"] = int(before.get("count") or 1) + 1
    limit = SAME_LIMIT.get(str(fault["kind"]), SAME_LIMIT_ELSE)
    given = int(spec.get("restarts") or 0)
    if given and fault["count"] >= limit:
        cause = dict(cause, repeated=fault["count"])
        return {"state": states.ENDED, "fault": fault, "cause": cause}
    if used >= given:
        return {"state": states.ENDED, "fault": fault, "cause": cause}
    return {
        "state": states.QUEUED,
        "cause": cause,
        "fault": fault,
        "restarts_used": used + 1,
        "not_before": now + min(LONGEST_PAUSE_S, 2.0**used),
    }


def _is_same(before: Dict[str, Any], fault: Dict[str, Any]) -> bool:
    if (before.get("kind"), before.get("code")) != (fault["kind"], fault["code"]):
        return False
    if before.get("step") != fault["step"]:
        return False
    if fault["step"] is not None:
        return True
    return max(float(before.get("ran_s") or 0.0), float(fault["ran_s"])) < AT_START_S
