from __future__ import annotations

from typing import Any

import pytest

from runner.app.reports import WhyFacts
from runner.show.endings import traceback_end
from tests.helpers.statuses import NOW, failed, why

LOG = """\
step 12000
[rank0]: Traceback (most recent call last):
[rank0]:   File "/w/code/dqn-7k3fa/agents/dqn.py", line 300, in <module>
[rank0]:     main()
[rank0]:   File "/w/code/dqn-7k3fa/agents/dqn.py", line 212, in main
[rank0]:     loss.backward()
[rank0]:     ~~~~~~~~~~~~~^^
[rank0]:   File "/usr/lib/python3/dist-packages/torch/_tensor.py", line 581, in backward
[rank0]:     torch.autograd.backward(
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB
"""


def test_no_memory_on_the_card() -> None:
    found = failed(
        "cuda-oom",
        WhyFacts(log=tuple(LOG.splitlines())),
        step=12_000,
        params={"batch_size": 4096},
        more={"repeated": 2},
        checkpoints=[{"name": "step-10000", "step": 10_000}],
    )
    assert found == [
        "FAILED: rank 0 ran out of GPU memory at step 12,000, twice at the same step; 1h00m ago",
        "  agents/dqn.py:300  main()",
        "  agents/dqn.py:212  loss.backward()",
        "  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB",
        "lower batch_size (4096), then:",
        "  runner fork dqn-7k3fa batch_size=2048",
    ]


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        ({"params": {"batch_size": 3}}, "  runner fork dqn-7k3fa batch_size=1 --fresh"),
        ({"params": {"num_envs": 8, "lr": 0.1}}, "  runner fork dqn-7k3fa num_envs=4 --fresh"),
        ({"params": {"batch_size": 1}, "job": "dqn"}, "  runner jobs dqn"),
        ({"params": {"batch_size": True}, "job": "dqn"}, "  runner jobs dqn"),
        ({"job": "x; reboot"}, "FAILED: rank 0 ran out of memory and was killed by the kernel"),
    ],
)
def test_what_could_be_smaller(fields: dict[str, Any], advice: str) -> None:
    assert failed("oom", **fields)[-1].startswith(advice)


def test_the_causes_own_traceback_goes_before_a_log_that_went_on() -> None:
    trace = 'File "/w/code/dqn-7k3fa/train.py", line 7, in f\nValueError: not good'
    found = failed("exit", WhyFacts(log=tuple(LOG.splitlines())), more={"traceback": trace})
    assert found[1:3] == ["  train.py:7", "  ValueError: not good"]


def test_a_plain_exit_shows_the_last_lines_and_where_to_look() -> None:
    facts = WhyFacts(log=tuple(f"line {n}" for n in range(30)), log_rank=1)
    found = failed("exit", facts, more={"rank": 1, "text": "exit 3"}, attempt=2)
    assert found[0] == "FAILED: rank 1: exit 3, in attempt 2; 1h00m ago"
    assert found[1:21] == [f"  line {n}" for n in range(10, 30)]
    assert found[21:] == ["all of its last words:", "  runner tail dqn-7k3fa --rank 1 -n 100"]
    found = failed("signal", checkpoints=[{"name": "step-1"}])
    assert found[-1] == "  runner fork dqn-7k3fa"


@pytest.mark.parametrize("log", [(), ("", " ")])
def test_of_a_run_that_printed_nothing_no_last_words_are_offered(log: tuple[str, ...]) -> None:
    assert not any("tail" in line for line in failed("exit", WhyFacts(log=log)))


@pytest.mark.parametrize(
    ("kind", "fields", "commands"),
    [
        ("time-limit", {"time_limit_s": 60}, ["fork dqn-7k3fa time_limit=120s --fresh"]),
        ("disk-full", {}, ["gc host=gpu1 --dry-run", "resume dqn-7k3fa"]),
        ("nan", {"params": {"lr": 3e-4}}, ["plot dqn-7k3fa"]),
        (
            "nan",
            {"params": {"lr": 3e-4}, "checkpoints": [{"name": "step-1"}]},
            ["plot dqn-7k3fa", "fork dqn-7k3fa lr=0.00015"],
        ),
        ("stuck", {}, ["resume dqn-7k3fa"]),
        ("setup", {}, ["resume dqn-7k3fa"]),
        ("setup", {"job": "dqn", "more": {"rank": 0}}, ["fork dqn-7k3fa --fresh"]),
        ("dependency", {"more": {"run": "ppo-c41hd"}}, ["why ppo-c41hd"]),
        ("host-restart", {}, ["resume dqn-7k3fa"]),
        ("stuck", {"secrets": ["TOKEN", "KEY"]}, ["resume dqn-7k3fa secret.TOKEN secret.KEY"]),
        ("stuck", {"secrets": ["a b"]}, []),
    ],
)
def test_each_cause_has_its_way_on(kind: str, fields: dict[str, Any], commands: list[str]) -> None:
    lines = failed(kind, **fields)
    assert [line for line in lines if line.startswith("  ")] == [f"  runner {c}" for c in commands]


def test_a_dependency_is_named() -> None:
    found = failed("dependency", more={"run": "ppo-c41hd"}, started_at=None)
    assert found[0] == "FAILED: ppo-c41hd, which it waited for, did not end done; 1h00m ago"


def test_a_stuck_one_shows_where_it_stood() -> None:
    facts = WhyFacts(stack=("rank 0", "  f (a.py:3)"), log=("words",))
    assert failed("stuck", facts)[1:3] == ["  rank 0", "    f (a.py:3)"]


def test_cancelled_and_done() -> None:
    assert why(
        "ended",
        outcome="cancelled",
        cause={"kind": "cancelled", "text": "cancelled"},
        started_at=NOW - 90,
        ended_at=NOW - 60,
        step=400,
    ) == ["CANCELLED at step 400; 1m ago", "begin it anew:", "  runner resume dqn-7k3fa"]
    done: dict[str, Any] = {
        "outcome": "done",
        "started_at": NOW - 120,
        "ended_at": NOW - 60,
        "step": 50,
    }
    assert why("ended", **done) == [
        "DONE after 1m at step 50, 1m ago; not pulled yet",
        "  runner pull dqn-7k3fa",
    ]
    assert why("ended", pulled=True, **done) == ["DONE after 1m at step 50, 1m ago; pulled"]


def test_a_traceback_without_frames_of_ones_own() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "<frozen runpy>", line 198, in _run_module_as_main',
        "ModuleNotFoundError: No module named 'x'",
        "after it",
    ]
    assert traceback_end(lines, "r") == (
        "<frozen runpy>:198",
        "ModuleNotFoundError: No module named 'x'",
    )
    assert traceback_end(lines[1:], "r") == ()
    assert traceback_end(lines[:1], "r") == ()


def test_a_traceback_long_before_the_end_is_not_what_ended_it() -> None:
    lines = (*LOG.splitlines(), *(f"line {n}" for n in range(20)))
    assert failed("signal", WhyFacts(log=lines))[1:21] == [f"  line {n}" for n in range(20)]


def test_a_resume_says_where_it_begins() -> None:
    found = failed("time-limit", checkpoints=[{"name": "step-1"}])
    assert found[1:] == ["go on from its last checkpoint:", "  runner resume dqn-7k3fa"]
    assert failed("disk-full")[-2:] == ["then begin it anew:", "  runner resume dqn-7k3fa"]
