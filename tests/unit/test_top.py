"""How fast runs go, and what is taken of what a host says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from runner.app.reports import HostFacts
from runner.app.top import MOST_CARDS, Rates, read_facts
from runner.wire import RunStatus


def at(t: float | None, step: int | None, **more: Any) -> RunStatus:
    body: dict[str, Any] = {"state": "running", "attempt": 1, "started_at": 100.0, **more}
    return RunStatus(id="a", progress_at=t, step=step, **body)


def test_a_speed_is_of_the_last_minute() -> None:
    rates = Rates()
    assert rates.rate("h", at(110.0, 500)) == 50.0  # on the average since its start
    assert rates.rate("h", at(112.0, 700)) == 100.0
    assert rates.rate("h", at(112.0, 700)) == 100.0  # nothing new
    for second in range(120, 300, 10):
        rates.rate("h", at(second, 700 + (second - 112)))
    assert rates.rate("h", at(300.0, 888)) == 1.0


def test_rare_words_of_progress_still_make_a_speed() -> None:
    rates = Rates()
    for number in range(1, 4):
        rate = rates.rate("h", at(100.0 + 600 * number, 6000 * number))
    assert rate == 10.0


@pytest.mark.parametrize(
    "status",
    [
        at(None, 5),
        at(110.0, None),
        at(110.0, 5, state="queued"),
        at(110.0, 5, state="ended", outcome="done"),
        at(110.0, 5, attempt=2),
        at(100.0, 5),
    ],
)
def test_no_speed_where_none_can_be_known(status: RunStatus) -> None:
    assert Rates().rate("h", status) is None


def test_another_attempt_begins_anew_and_so_does_a_step_that_goes_back() -> None:
    rates = Rates()
    rates.rate("h", at(110.0, 500))
    assert rates.rate("h", at(200.0, 100, attempt=2, started_at=190.0)) is None
    assert rates.rate("h", at(210.0, 300, attempt=2, started_at=190.0)) == 20.0
    assert rates.rate("h", at(220.0, 50, attempt=2, started_at=190.0)) is None
    assert rates.rate("other", at(110.0, 20)) == 2.0
    rates.keep([("other", "a")])
    assert rates.rate("h", at(230.0, 60, attempt=2, started_at=190.0)) is None


def test_facts_of_a_host() -> None:
    card = {"index": 0, "uuid": "GPU-1", "name": "A10", "total_mib": 23028, "used_mib": 3}
    facts = read_facts(
        {
            "gpus": [
                {**card, "load_percent": 97, "run": "a", "worker": {"image": "cu124"}},
                {**card, "stranger": {"user": "ann", "program": "python3", "pid": 7}},
                {**card, "stranger": {}},
            ],
            "gpus_age_s": 0.2,
            "slots": {"total": 8, "used": 1},
            "disk": {"total": 100, "free": 50, "reserve": 5},
            "live": 1,
            "queued": 2,
            "drained": True,
        }
    )
    first, second, third = facts.cards
    assert (first.load_percent, first.run, first.worker) == (97.0, "a", "cu124")
    assert (second.load_percent, second.stranger, third.stranger) == (
        None,
        "ann's python3",
        "others",
    )
    assert (facts.slots, facts.slots_used, facts.disk_free, facts.queued) == (8, 1, 50.0, 2)
    assert facts.drained


LIES: tuple[Any, ...] = (None, [], {}, True, -1, 10**400, float("nan"), "", "x" * 10**6, [[]])


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: repr(lie)[:9])
def test_lies_are_unknown(lie: Any) -> None:
    names = ("gpus", "gpus_age_s", "gpus_problem", "slots", "disk", "live", "queued", "drained")
    facts = read_facts(dict.fromkeys(names, lie))
    assert len(facts.cards_problem or "") <= 200
    card = dict.fromkeys(
        ("index", "uuid", "name", "total_mib", "used_mib", "load_percent", "run", "worker"), lie
    )
    inner = read_facts(
        {
            "gpus": [card, lie] * MOST_CARDS,
            "slots": {"total": lie, "used": lie},
            "disk": {"total": lie, "free": lie},
        }
    )
    assert len(inner.cards) <= MOST_CARDS
    assert inner.slots is None and inner.disk_free is None
    assert all(each.index is None and len(each.run or "") <= 200 for each in inner.cards)
    assert read_facts({}) == HostFacts()
