"""The states of a run: which may follow which, and what people see of them."""

from __future__ import annotations

import itertools

import pytest

from runner import states

ALLOWED = {
    ("queued", "starting"),
    ("queued", "ended"),
    ("starting", "running"),
    ("starting", "stopping"),
    ("starting", "queued"),
    ("starting", "ended"),
    ("running", "stopping"),
    ("running", "queued"),
    ("running", "ended"),
    ("stopping", "queued"),
    ("stopping", "ended"),
    ("ended", "queued"),
}


@pytest.mark.parametrize(("before", "after"), list(itertools.product(states.STATES, repeat=2)))
def test_only_these_changes_are_allowed(before: str, after: str) -> None:
    expected = before == after or (before, after) in ALLOWED
    assert states.may_follow(before, after) == expected


def test_after_the_end_a_run_can_only_be_resumed() -> None:
    after = [s for s in states.STATES if states.may_follow(states.ENDED, s)]
    assert after == [states.QUEUED, states.ENDED]


def test_every_state_is_reached_and_every_one_can_end() -> None:
    reached = {states.QUEUED}
    for _ in states.STATES:
        reached |= {b for a, b in itertools.product(reached, states.STATES) if (a, b) in ALLOWED}
    assert reached == set(states.STATES)
    assert all(states.may_follow(state, states.ENDED) for state in states.STATES)


def test_a_cause_has_one_meaning() -> None:
    kinds = [states.OWN_FAULTS, states.FINAL_CAUSES, states.FROM_OUTSIDE]
    assert sum(map(len, kinds)) == len(states.CAUSES)


def test_shown_is_the_outcome_once_there_is_one() -> None:
    assert states.shown("running", None) == "RUNNING"
    assert states.shown("ended", "done") == "DONE"


def test_lost_contact_is_no_state() -> None:
    words = {*states.STATES, *states.OUTCOMES}
    assert not words & {"unknown", "unreachable", "lost", "no-worker"}
    assert set(states.STATES) > states.LIVE
