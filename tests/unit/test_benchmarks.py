"""What the benchmarks compute from what they saw."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# they are programs: each finds its neighbours beside it
sys.path.insert(0, str(ROOT / "benchmarks"))

import batch_queues  # noqa: E402
import bench_cancel  # noqa: E402
import bench_queue  # noqa: E402
import kill_dqn  # noqa: E402
import submits  # noqa: E402


def use(card: str, began: float, ended: float, owners: Sequence[str] = ("me",)) -> submits.Use:
    return submits.Use(card, began, ended, "me", owners)


@pytest.mark.parametrize(
    ("uses", "seconds"),
    [
        ([], 0),
        ([use("a", 0, 2), use("a", 2, 3), use("b", 1, 3)], 0),
        ([use("a", 0, 2), use("a", 1, 3)], 1),
        # one that began long before and lasts longer than all
        ([use("a", 0, 10), use("a", 1, 2), use("a", 5, 6)], 2),
        ([use("b", 1, 3), use("a", 0, 9), use("b", 2, 4)], 1),
    ],
)
def test_the_time_a_card_has_two_uses(uses: list[submits.Use], seconds: float) -> None:
    assert submits.overlap_s(uses) == seconds
    assert submits.overlap_s(reversed(uses)) == seconds


def test_a_lease_that_names_another_run_at_either_end_counts() -> None:
    uses = [use("a", 0, 1), use("a", 1, 2, ("me", "you")), use("a", 2, 3, ("you", "me"))]
    assert submits.foreign(uses) == 2


def test_kills_come_in_the_order_of_their_steps_and_meet_every_target() -> None:
    for seed in range(50):
        kills = kill_dqn.draw_kills(random.Random(seed), 10, 6000, kill_dqn.TARGETS)
        assert sorted(Counter(kill.target for kill in kills).values()) == [2, 2, 3, 3]
        steps = [kill.step for kill in kills if kill.step is not None]
        assert steps == sorted(steps) and max(steps) < 6000 * kill_dqn.LATE
        # a rank's own death is drawn among steps only
        assert {k.target for k in kills if k.step is None} <= set(kill_dqn.OUTSIDE)
    assert kill_dqn.draw_kills(random.Random(1), 4, 9, kill_dqn.TARGETS) == kill_dqn.draw_kills(
        random.Random(1), 4, 9, kill_dqn.TARGETS
    )


def test_cpu_and_memory_of_a_process_are_read() -> None:
    fields = ["S", *map(str, range(4, 53))]
    fields[11:15] = ["100", "50", "20", "30"]
    line = f"7 (odd) name) {' '.join(fields)}"
    assert bench_queue.cpu_s(line) == 200 / os.sysconf("SC_CLK_TCK")
    own = bench_queue.cpu_s(bench_queue.proc(os.getpid(), "stat"))
    assert own == pytest.approx(sum(os.times()[:4]), abs=0.1)
    assert bench_queue.rss_mib("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t  2048 kB\n") == 2.0
    assert bench_queue.rss_mib(bench_queue.proc(os.getpid(), "status")) > 1


def queued(**numbers: float) -> bench_queue.Found:
    table = dict.fromkeys(bench_queue.Found.__dataclass_fields__, 1.0)
    return bench_queue.Found(**{**table, "waiting": 10, **numbers})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("numbers", "missed"),
    [
        ({"cpu_ms": 1.4, "dispatcher_mib": 30.0, "idle_share": 0.005}, []),
        ({"cpu_ms": 1.6, "idle_share": 0.0}, ["CPU of a dispatch, times"]),
        ({"wall_ms": 1.6, "idle_share": 0.0}, ["wall of a dispatch, times"]),
        ({"dispatcher_mib": 31.0, "idle_share": 0.0}, ["dispatcher, MiB"]),
        ({"idle_share": 0.006}, ["dispatcher idle, of a core"]),
    ],
)
def test_a_long_queue_is_held_against_a_short_one(
    numbers: dict[str, float], missed: list[str]
) -> None:
    found = bench_queue.verdicts([(queued(), queued(**numbers))])
    assert [what for what, _, _, met in found if not met] == missed


@pytest.mark.parametrize(
    ("gone_s", "returned_s", "left", "same", "right"),
    [
        (2.1, 2.9, 0, True, True),
        (2.1, 3.1, 0, True, False),
        (3.1, 2.9, 0, True, False),
        (2.1, 2.2, 1, True, False),
        (2.1, 2.2, 0, False, False),
    ],
)
def test_a_cancel_is_right_when_nothing_is_left_in_time(
    gone_s: float, returned_s: float, left: int, same: bool, right: bool
) -> None:
    found = bench_cancel.Found("tree", 2.0, gone_s, returned_s, left, same)
    assert found.is_right is right
    assert "+0.10 (0.10 to 0.10)" in bench_cancel.row([found]) or gone_s > 3


def test_free_ports_differ() -> None:
    first, second = batch_queues.free_ports(2)
    assert first != second


def test_nothing_is_fetched_without_the_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(batch_queues.Missing, match="as root"):
        batch_queues.fetch()
