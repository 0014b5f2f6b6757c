"""When a connection that was dropped is made again, and when not."""

from __future__ import annotations

import pytest

from runner.carriers.again import PAUSES_S, Tries
from runner.carriers.failures import Dropped, Refused
from runner.errors import AuthRefused, HostKeyError, RunnerError, Unreachable


def pauses(error: RunnerError, *, limit_s: float = 60, chance: float = 0.5) -> list[float]:
    """The pauses of a connection that always fails with `error`."""
    tries, now = Tries(limit_s, now=0.0), 0.0
    found: list[float] = []
    while (pause := tries.pause_s(error, now=now, chance=chance)) is not None:
        found.append(pause)
        now += pause
    return found


def test_a_drop_is_tried_again_a_few_times_further_apart() -> None:
    assert pauses(Dropped("x")) == list(PAUSES_S)
    assert list(PAUSES_S) == sorted(PAUSES_S) and sum(PAUSES_S) < 20


def test_what_may_last_is_tried_again_for_a_moment_only() -> None:
    assert sum(pauses(Refused("x"))) < 1


def test_those_dropped_together_do_not_come_back_together() -> None:
    first, last = (Tries(now=0.0).pause_s(Dropped("x"), now=0.0, chance=c) for c in (0.0, 1.0))
    assert first is not None and last is not None and last - first >= PAUSES_S[0]


def test_no_try_begins_after_the_limit() -> None:
    assert sum(pauses(Dropped("x"), limit_s=1)) < 1


@pytest.mark.parametrize("error", [AuthRefused("x"), HostKeyError("x"), Unreachable("x"), None])
def test_keys_names_and_silence_are_not_tried_again(error: RunnerError | None) -> None:
    assert Tries(now=0.0).pause_s(error, now=0.0) is None
