from __future__ import annotations

from runner.show.units import moment
from runner.wire import RunStatus
from tests.helpers.statuses import HOLDER, NOW, knows, waits, why


def test_a_card_of_a_run_and_one_of_a_stranger() -> None:
    stranger = {"index": 1, "used_mib": 9626, "pid": 4127, "user": "bob", "program": "python"}
    found = waits(
        knows(HOLDER),
        kind="gpus",
        want=1,
        holders=[{"index": 0, "run": "dqn-9x2mp.1"}],
        strangers=[{**stranger, "since_at": NOW - 600}],
    )
    assert found == [
        "waits for 1 GPU on gpu1: 0 is dqn-9x2mp.1's (about 9m left), 1 is used by bob's python "
        f"(pid 4127, 9.4 GiB) since {moment(NOW - 600, NOW)}"
    ]


def test_several_cards_of_one_run_and_what_is_not_known_of_a_stranger() -> None:
    found = waits(
        kind="gpus",
        want=2,
        holders=[
            {"index": 0, "run": "ppo-c41hd"},
            {"index": 1, "run": "ppo-c41hd"},
            {"index": 2, "worker": "w-2"},
            {"index": 3},
        ],
        strangers=[{"index": 4, "used_mib": 3003}, {"index": "x", "user": "bob", "pid": "7"}],
    )
    assert found == [
        "waits for 2 GPUs on gpu1: 0,1 are ppo-c41hd's, 2 is another worker's (w-2), 3 is leased, "
        "4 is used by somebody outside the runner (2.9 GiB), ? is used by bob's process"
    ]


def test_a_sick_nvidia_smi() -> None:
    assert waits(kind="gpus", want=1, query_failed="nvidia-smi exits 9") == [
        "waits for 1 GPU on gpu1: nvidia-smi exits 9"
    ]


def test_a_slot_and_who_has_it() -> None:
    assert waits(kind="slot", holders=[]) == ["waits for a slot on gpu1"]
    found = waits(knows(HOLDER), kind="slot", holders=["dqn-9x2mp.1", "b", "c"])
    assert found == ["waits for a slot on gpu1, held by dqn-9x2mp.1 (about 9m left), b and c"]


def test_a_time_limit_says_how_long_it_takes_at_most() -> None:
    limited = RunStatus(
        id="b", state="running", started_at=NOW - 60, ran_s=240.0, time_limit_s=600.0
    )
    found = waits(knows(limited), kind="slot", holders=["b"])
    assert found == ["waits for a slot on gpu1, held by b (5m left at most)"]


def test_the_run_before_it_and_what_the_first_in_line_waits_for() -> None:
    behind = {"kind": "order", "behind": "b"}
    assert why("queued", waits=behind, position=3) == [
        "waits behind b on gpu1, place 3 in the queue",
        "  runner why b",
    ]
    before = RunStatus(id="b", state="queued", waits={"kind": "order", "behind": "a"}, position=2)
    first = RunStatus(
        id="a", state="queued", waits={"kind": "slot", "holders": [HOLDER.id]}, position=1
    )
    assert why("queued", knows(before, first, HOLDER), waits=behind, position=3) == [
        "waits behind b on gpu1, place 3 in the queue; a, the first there, waits for a slot on "
        "gpu1, held by dqn-9x2mp.1 (about 9m left)"
    ]
    odd = RunStatus(id="a", state="queued", waits={"kind": "order", "behind": "a"}, position=1)
    assert why("queued", knows(odd), waits=behind)[-1] == "  runner why b"


def test_runs_that_must_end_first() -> None:
    failed = RunStatus(id="b", state="ended", outcome="failed")
    found = waits(knows(HOLDER, failed), kind="after", runs=["dqn-9x2mp.1", "b"])
    assert found == [
        "waits for dqn-9x2mp.1 (RUNNING) (about 9m left) and b (FAILED) to end done",
        "  runner why dqn-9x2mp.1",
    ]


def test_a_drained_host_and_a_full_disk() -> None:
    assert waits(kind="drained", since_at=NOW - 60) == [
        f"waits: gpu1 is drained since {moment(NOW - 60, NOW)}, nothing new starts there",
        "  runner undrain host=gpu1",
    ]
    assert waits(kind="disk", free_bytes=3.1e9, reserve_bytes=1e10) == [
        "waits for room on the disk of gpu1: 3.1 GB free, 10 GB are kept in reserve",
        "what could go:",
        "  runner gc host=gpu1 --dry-run",
    ]


def test_a_pause_before_the_next_try() -> None:
    found = why(
        "queued",
        waits={"kind": "pause", "until_at": NOW + 8.5, "why": "exit 1"},
        attempt=1,
        restarts_left=2,
    )
    assert found == ["starts again in 8s, as attempt 2, after: exit 1; 2 restarts left"]


def test_what_ended_its_last_attempt_is_told_with_what_it_waits_for() -> None:
    end = {"kind": "exit", "text": "exit 1"}
    found = why("queued", waits={"kind": "slot"}, attempt=1, cause=end)
    assert found == ["waits for a slot on gpu1; attempt 1 ended: exit 1"]


def test_nothing_known_of_its_waiting() -> None:
    assert why("queued", position=2) == ["waits for its turn; place 2 in the queue"]
    assert waits(kind="moon", x=1) == ["waits for its turn; place 1 in the queue"]
