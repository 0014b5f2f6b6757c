"""What follows the end of an attempt."""

from __future__ import annotations

from typing import Any

import pytest
import repeats

from runner import states

NOW = 1000.0


def after(
    cause: dict[str, Any] | None,
    state: dict[str, Any] | None = None,
    *,
    restarts: int = 3,
    verified: str | None = None,
    cancelled: bool = False,
    **ended: Any,
) -> dict[str, Any]:
    return repeats.after_end(
        spec={"restarts": restarts},
        state=state or {},
        ended={"cause": cause, "ran_s": 60.0, **ended},
        verified=verified,
        cancelled=cancelled,
        now=NOW,
    )


def fault(kind: str = "exit", **facts: Any) -> dict[str, Any]:
    return {"kind": kind, "text": kind, **facts}


def test_a_good_end_is_the_end() -> None:
    following = after(None)
    assert (following["state"], following["cause"]) == ("ended", None)


@pytest.mark.parametrize("kind", sorted(states.FINAL_CAUSES))
def test_these_causes_end_a_run(kind: str) -> None:
    assert after(fault(kind))["state"] == "ended"


@pytest.mark.parametrize("kind", sorted(states.OWN_FAULTS))
def test_an_own_fault_spends_a_restart_and_waits_ever_longer(kind: str) -> None:
    state: dict[str, Any] = {}
    pauses = []
    for step in (1, 2, 3):
        following = after(fault(kind), state, step=step)
        assert following["state"] == "queued"
        pauses.append(following["not_before"] - NOW)
        state.update(following)
    assert pauses == [1.0, 2.0, 4.0]
    assert repeats.restarts_left({"restarts": 3}, state) == 0
    assert after(fault(kind), state, step=4)["state"] == "ended"


def test_without_restarts_the_first_fault_ends_it() -> None:
    following = after(fault(), restarts=0)
    assert following["state"] == "ended"
    assert "repeated" not in following["cause"]


def test_a_new_checkpoint_earns_them_back() -> None:
    state = after(fault(), step=1, verified="step-1")
    assert state["restarts_used"] == 1
    state.update(after(fault(), state, step=2, verified="step-1"))
    assert state["restarts_used"] == 2
    assert after(fault(), state, step=3, verified="step-3")["restarts_used"] == 1


def test_the_same_fault_at_the_same_step_is_no_accident() -> None:
    state = after(fault(code=1), step=7)
    other = after(fault(code=2), state, step=7)
    assert other["state"] == "queued"
    same = after(fault(code=1), state, step=7)
    assert (same["state"], same["cause"]["repeated"]) == ("ended", 2)
    assert after(fault(code=1), state, step=8)["state"] == "queued"


def test_a_signal_may_come_three_times() -> None:
    state = after(fault("signal", code=-9), step=7)
    state.update(after(fault("signal", code=-9), state, step=7))
    assert state["state"] == "queued"
    assert after(fault("signal", code=-9), state, step=7)["state"] == "ended"


def test_where_no_step_is_said_a_quick_end_twice_is_the_same() -> None:
    state = after(fault(code=1), ran_s=0.3)
    assert after(fault(code=1), state, ran_s=0.4)["state"] == "ended"
    assert after(fault(code=1), state, ran_s=40.0)["state"] == "queued"


def test_no_restart_where_somebody_asked_for_the_end_or_the_cause_is_final() -> None:
    assert after(fault(), cancelled=True)["cause"]["kind"] == "exit"
    assert after(fault(), cancelled=True)["state"] == "ended"
    assert after(fault("stuck", final=True))["state"] == "ended"


@pytest.mark.parametrize("kind", sorted(states.FROM_OUTSIDE))
def test_what_came_from_outside_is_free(kind: str) -> None:
    state: dict[str, Any] = {}
    for number in range(1, states.OUTSIDE_LIMIT + 1):
        state.update(after(fault(kind), state, restarts=0))
        assert (state["state"], state["outside"]) == ("queued", number)
    assert after(fault(kind), state, restarts=0)["state"] == "ended"
    assert after(fault(kind), state, restarts=0, verified="step-1")["outside"] == 1
    gone = after(fault(kind), state, cancelled=True)
    assert (gone["state"], gone["cause"]["kind"]) == ("ended", "cancelled")


def test_running_time_is_summed() -> None:
    following = after(fault(), {"ran_s": 10.0}, ran_s=5.0)
    assert following["ran_s"] == 15.0
    assert after(None, {}, ran_s=None)["ran_s"] == 0.0
