from __future__ import annotations

from typing import Any

from runner.app.results import Contact, RunOnHost
from runner.model import Host
from runner.rows import ending_line, metric_of, run_rows, status_lines, time_left
from runner.screen import table
from runner.wire import RunStatus

NOW = 1_764_600_000.0


def run(
    run_id: str = "dqn-7k3fa", state: str = "running", contact: Contact | None = None, **fields: Any
) -> RunOnHost:
    pulled = fields.pop("pulled", False)
    return RunOnHost(
        RunStatus(id=run_id, state=state, **fields), contact or Contact("gpu1", at=NOW), pulled
    )


def shown(*runs: RunOnHost) -> list[str]:
    rows, right = run_rows(runs, NOW)
    return table(rows, right=right)


def test_a_table_of_runs() -> None:
    lines = shown(
        run(
            "ppo-c41hd",
            started_at=NOW - 22320,
            attempt=1,
            step=4_100_000,
            params={"steps": 10_000_000},
            metrics={"reward": 1830.2},
            progress_at=NOW,
            gpus=[{"index": 0}, {"index": 1}],
        ),
        run("dqn-7k3fa", "queued", submitted_at=NOW - 1080, position=1, name="baseline"),
        run(
            "dqn-9x2mp",
            "ended",
            outcome="failed",
            cause={"kind": "cuda-oom", "text": "GPU memory"},
            started_at=NOW - 4000,
            ended_at=NOW - 3800,
            step=12_000,
            params={"steps": 50_000},
            gpus=[{"index": 0}],
        ),
        run(
            "dqn-b2x7m",
            "ended",
            outcome="done",
            started_at=NOW - 4000,
            ended_at=NOW - 1540,
            pulled=True,
        ),
    )
    assert lines == [
        "RUN        STATE    HOST  GPU     STEPS       RETURN   TIME  NOTE",
        "ppo-c41hd  RUNNING  gpu1  0,1  4.1M/10M  41%    1830  6h12m  8h55m left",
        "dqn-7k3fa  QUEUED   gpu1                                18m  baseline; next",
        "dqn-9x2mp  FAILED   gpu1        12k/50k  24%             3m  GPU memory",
        "dqn-b2x7m  DONE     gpu1                                41m  pulled",
    ]


def test_columns_nobody_fills_are_left_out() -> None:
    lines = shown(run("cmd-7k3fa", "ended", outcome="done", started_at=NOW - 5, ended_at=NOW))
    assert lines == ["RUN        STATE  HOST  TIME  NOTE", "cmd-7k3fa  DONE   gpu1    5s"]


def test_a_silent_host_leaves_the_last_state_and_says_its_age() -> None:
    silent = Contact("gpu3", "unreachable", at=NOW - 720, error="gpu3: no answer for 20 s")
    lines = shown(run(contact=silent, started_at=NOW - 1000))
    assert "RUNNING" in lines[1]
    assert "seen 12m ago" in lines[1]
    assert " 4m " in lines[1]  # up to when it was last heard


def test_ages_use_the_workers_clock_alone() -> None:
    slow = Contact("gpu1", at=NOW, clock_skew_s=-600.0)
    lines = shown(run(contact=slow, started_at=NOW - 600 - 30))
    assert " 30s" in lines[1]
    ahead = shown(run(started_at=NOW + 600))
    assert " 0s" in ahead[1]


def test_a_time_left_is_given_only_when_it_is_no_guess() -> None:
    good: dict[str, Any] = {
        "started_at": NOW - 100,
        "progress_at": NOW,
        "attempt": 1,
        "step": 500,
        "params": {"steps": 1000},
    }
    assert time_left(run(**good).status) == 100.0
    changes: list[dict[str, Any]] = [
        {"attempt": 2},
        {"step": 1},
        {"params": {}},
        {"params": {"steps": True}},
    ]
    for change in changes:
        assert time_left(run(**{**good, **change}).status) is None
    assert time_left(run(state="queued", **good).status) is None


def test_the_metric_is_the_jobs_choice_else_the_first_known() -> None:
    metrics = {"reward": 1.0, "eval/return": 2.0, "loss": 3.0}
    assert metric_of(metrics, None) == ("eval/return", 2.0)
    assert metric_of(metrics, "loss") == ("loss", 3.0)
    assert metric_of(metrics, "other") is None
    assert metric_of({"reward": True, "charts/episodic_return": 4}, None) == (
        "charts/episodic_return",
        4.0,
    )


def test_status_tells_all_that_is_known() -> None:
    lines = status_lines(
        run(
            "dqn-9x2mp",
            "ended",
            outcome="failed",
            cause={"kind": "exit", "text": "exit 1"},
            job="dqn",
            params={"seed": 4, "env": "a b", "on": True},
            name="base",
            tags=["x", "y"],
            started_at=NOW - 7400,
            ended_at=NOW - 7200,
            image="torch-2.6",
            gpus=[{"index": 0, "name": "NVIDIA A10", "memory_mib": 23040}],
            code={"commit": "4f2c91abcdef", "branch": "main", "edited": 2, "files": 214},
            step=12_000,
            metrics={"reward": 61.0, "loss": 0.5},
            checkpoints=[
                {"name": "step-1", "step": 5_000, "bytes": 1e6, "verified": True},
                {"name": "step-2", "step": 10_000, "bytes": 84e6, "verified": True},
            ],
            log_bytes=18_000,
            pulled=True,
        ),
        NOW,
        host=Host("gpu1", ssh="gpu1"),
    )
    assert lines == [
        "dqn-9x2mp  FAILED  exit 1, 2h00m ago, after 3m",
        "job          dqn  seed=4  'env=a b'  on=true",
        "name         base  tags x, y",
        "host         gpu1  GPU 0 (NVIDIA A10, 22.5 GiB)  image torch-2.6",
        "code         main@4f2c91a + 2 edited files, 214 files",
        "steps        12,000  reward 61.0  loss 0.500",
        "checkpoint   step 10,000, 84 MB, verified, 2 in all",
        "log          18 kB",
        "files        results/dqn-9x2mp/  on gpu1: ~/runner/{logs,checkpoints}/dqn-9x2mp",
    ]


def test_status_of_a_command_shows_its_argv_quoted() -> None:
    lines = status_lines(run("cmd-1", argv=["echo", "a b", "\x1b[2J"], started_at=NOW - 3), NOW)
    assert lines[0] == "cmd-1  RUNNING  for 3s"
    assert lines[1] == "command      echo 'a b' '\\x1b[2J'"


def test_long_lines_break_between_parts_on_a_terminal() -> None:
    params = {f"param_{i}": i for i in range(20)}
    lines = status_lines(run(job="dqn", params=params), NOW, columns=60)
    assert max(map(len, lines)) <= 60
    assert lines[2].startswith(" " * 13 + "param_")


def test_what_the_worker_said_is_escaped() -> None:
    bad = "\x1b]0;x\x07\u202e"
    item = run(
        "a\x1b[2J",
        "ended",
        outcome="fai\x1bled",
        cause={"text": bad},
        job=bad,
        name=bad,
        image=bad,
        gpus=[{"index": bad, "name": bad}],
        params={bad: bad},
        metrics={bad: 1.0},
        step=1,
        code={"commit": bad, "branch": bad},
        attempts=[{"attempt": 1, "started_at": NOW, "cause": {"text": bad}}],
        checkpoints=[{"name": bad, "step": None}],
    )
    lines = [*status_lines(item, NOW), *shown(item), ending_line(item)]
    assert all(line.isprintable() for line in lines)


def test_odd_records_do_not_break_the_table() -> None:
    item = run(
        "x",
        "ended",
        outcome="failed",
        cause={},
        checkpoints=[{}, {"step": 3}],
        attempts=[{"cause": 3}],
        metrics={"reward": float("nan")},
        started_at=1e300,
        ended_at=NOW,
        step=5,
        params={"steps": "many"},
    )
    assert status_lines(item, NOW) and shown(item)


def test_an_outcome_is_not_said_twice() -> None:
    cancelled = run("x", "ended", outcome="cancelled", cause={"text": "cancelled"}, ended_at=NOW)
    assert ending_line(cancelled) == "x  CANCELLED"
    assert shown(cancelled)[1].split() == ["x", "CANCELLED", "gpu1", "-"]


def test_an_ending_is_one_line() -> None:
    item = run(
        "x", "ended", outcome="failed", cause={"text": "exit 1"}, started_at=NOW - 180, ended_at=NOW
    )
    assert ending_line(item) == "x  FAILED  exit 1, after 3m"
