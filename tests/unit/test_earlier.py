from __future__ import annotations

from typing import Any

import pytest

from runner.app.earlier import scores
from runner.app.results import Chosen, RunOnHost
from runner.store import Record
from tests.helpers.statuses import NOW, run

DAY_S = 86_400.0


def night(sweep: str, ago_s: float, values: list[float], **changed: Any) -> list[RunOnHost]:
    return [
        run(
            f"{sweep}.{seed}",
            **{
                "state": "ended",
                "outcome": "done",
                "job": "dqn",
                "sweep": sweep,
                "tags": ["nightly"],
                "params": {"seed": seed, "lr": 1e-3},
                "metrics": {"reward": value},
                "ended_at": NOW - ago_s + seed,
                **changed,
            },
        )
        for seed, value in enumerate(values)
    ]


def records(*runs: RunOnHost) -> list[Record]:
    return [Record(each.id, each.host, NOW, each.status.to_json()) for each in runs]


def test_the_last_night_of_the_same_kind_stands_beside_this_one() -> None:
    now = night("dqn-now", 0, [1.0, 2.0, 3.0, 100.0])
    older = [
        *night("dqn-old", 3 * DAY_S, [9.0, 9.0]),
        *night("dqn-last", DAY_S, [4.0, 6.0]),
        *night("dqn-other", 100, [7.0], params={"seed": 0, "lr": 1e-4}),
        *night("dqn-named", 100, [7.0], tags=["weekly"]),
        *night("ppo-same", 100, [7.0], job="ppo"),
        *night("dqn-live", 100, [7.0], state="running"),
        *night("dqn-bad", 100, [7.0], outcome="failed"),
        *night("dqn-later", -100, [7.0]),
    ]
    found = scores(now, records(*now, *older))
    assert set(found) == {"dqn-now"}
    score = found["dqn-now"]
    assert (score.iqm, score.seeds, score.ended_at) == (2.5, 4, NOW + 3)
    assert score.before is not None
    assert (score.before.iqm, score.before.seeds) == (5.0, 2)


def test_without_a_name_nothing_is_looked_for() -> None:
    now = night("dqn-now", 0, [1.0, 2.0], tags=[])
    old = night("dqn-old", DAY_S, [4.0], tags=[])
    assert scores(now, records(*old))["dqn-now"].before is None


def test_runs_of_a_sweep_that_are_not_listed_count_as_well() -> None:
    whole = night("dqn-now", 0, [1.0, 2.0, 6.0])
    score = scores(whole[2:], records(*whole))["dqn-now"]
    assert (score.iqm, score.seeds) == (3.0, 3)
    live = run("dqn-now.9", "running", sweep="dqn-now", tags=["nightly"])
    assert scores(whole[2:], records(*whole, live)) == {}


def test_several_configurations_have_no_score_of_their_own() -> None:
    mixed = night("dqn-now", 0, [1.0, 2.0])
    mixed += night("dqn-now", 0, [5.0], params={"seed": 1, "lr": 1.0})
    assert scores(mixed, records(*mixed)) == {}
    lines = night("cmd-now", 0, [1.0], job=None, argv=["a"])
    lines += night("cmd-now", 0, [1.0], job=None, argv=["b"])
    assert scores(lines, []) == {}


def test_a_sweep_that_goes_on_or_shows_no_metric_has_no_score() -> None:
    live = night("dqn-live", 0, [1.0, 2.0])
    live[0] = run("dqn-live.0", "running", sweep="dqn-live", tags=["nightly"])
    mute = night("dqn-mute", 0, [1.0], metrics={})
    alone = [run("dqn-a", "ended", outcome="done")]
    assert scores([*live, *mute, *alone], []) == {}


def test_a_sweep_of_which_one_ended_in_time_is_listed_whole() -> None:
    whole = night("dqn-now", 1, [1.0, 2.0])
    whole += [run("dqn-now.2", "running", sweep="dqn-now")]
    statuses = [each.status for each in [*whole, *night("dqn-old", 60, [1.0])]]
    ids = [each.id for each in whole]
    assert [found.id for found in Chosen(since=NOW - 0.5).of(statuses)] == ids
    assert [found.id for found in Chosen(ended=True, since=NOW - 0.5).of(statuses)] == ids[:2]


@pytest.mark.parametrize(
    ("chosen", "taken"),
    [
        (Chosen(), ["live", "new", "old"]),
        (Chosen(ended=True), ["new", "old"]),
        (Chosen(since=NOW - 50), ["live", "new"]),
        (Chosen(ended=True, since=NOW - 50), ["new"]),
    ],
)
def test_which_runs_are_listed(chosen: Chosen, taken: list[str]) -> None:
    runs = [
        run("live"),
        run("new", "ended", ended_at=NOW - 10),
        run("old", "ended", ended_at=NOW - 100),
    ]
    assert [each.id for each in runs if chosen.takes(each.status)] == taken
    shifted = [each.id for each in runs if chosen.takes(each.status, skew_s=-60.0)]
    assert shifted == (["live"] if not chosen.ended else []) + ["new", "old"]
