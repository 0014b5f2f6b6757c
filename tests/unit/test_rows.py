from __future__ import annotations

from typing import Any

import pytest

from runner.app.results import Contact, RunOnHost, SweepScore
from runner.show.rows import ending_line, run_rows
from runner.show.screen import table
from runner.show.sheet import status_lines
from runner.show.units import moment
from tests.helpers.statuses import NOW, run


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


def sweep(count: int, **fields: Any) -> list[RunOnHost]:
    return [
        run(f"dqn-9x2mp.{n}", "queued", sweep="dqn-9x2mp", submitted_at=NOW - 60, **fields)
        for n in range(1, count + 1)
    ]


def test_a_sweep_is_one_group() -> None:
    member: dict[str, Any] = {"sweep": "dqn-9x2mp", "name": "baseline", "started_at": NOW - 1020}
    lines = shown(
        run("dqn-9x2mp.10", "queued", **member, reason="next after dqn-9x2mp.3"),
        run("ppo-c41hd", started_at=NOW - 60),
        run("dqn-9x2mp.2", gpus=[{"index": 1}], attempt=2, **member),
        run("dqn-9x2mp.1", "ended", outcome="done", ended_at=NOW, pulled=True, **member),
    )
    assert lines == [
        "RUN        STATE    HOST  GPU  TIME  NOTE",
        "dqn-9x2mp  8 of 10  gpu1             baseline",
        "  .1       DONE     gpu1        17m  pulled",
        "  .2       RUNNING  gpu1  1     17m  attempt 2",
        "  .10      QUEUED   gpu1        17m  next after dqn-9x2mp.3",
        "ppo-c41hd  RUNNING  gpu1         1m",
    ]


def test_members_with_names_of_their_own_keep_them() -> None:
    lines = shown(*sweep(1, name="a"), *sweep(2, name="b")[1:])
    assert lines[1].split() == ["dqn-9x2mp", "0", "of", "2", "gpu1"]
    assert [line.split()[-1] for line in lines[2:]] == ["a", "b"]


def test_images_tell_the_members_of_a_sweep_apart() -> None:
    runs = [
        run(f"dqn-9x2mp.{n}", "queued", sweep="dqn-9x2mp", submitted_at=NOW, image=name)
        for n, name in enumerate(("one", "two"), start=1)
    ]
    assert [line.split()[-1] for line in shown(*runs)[2:]] == ["image=one", "image=two"]


def test_of_a_large_sweep_only_what_lives_or_failed_has_a_line() -> None:
    runs = sweep(30)
    runs[3] = run("dqn-9x2mp.4", "running", sweep="dqn-9x2mp")
    runs[6] = run("dqn-9x2mp.7", "ended", sweep="dqn-9x2mp", outcome="failed")
    runs[7] = run("dqn-9x2mp.8", "ended", sweep="dqn-9x2mp", outcome="done")
    lines = shown(*runs)
    assert [line.split()[0] for line in lines[1:]] == ["dqn-9x2mp", ".4", ".7", "…"]
    assert lines[1].split()[1:4] == ["2", "of", "30"]
    assert lines[-1].endswith("27 QUEUED, 1 DONE")
    assert len(shown(*runs[:20])) == 22
    everyone, _ = run_rows(runs, NOW, everyone=True)
    assert len(everyone) == 32
    assert {row[1] for row in everyone[1:]} == {"-"}


@pytest.mark.parametrize("run_id", ["other.1", "dqn-9x2mp.x", "dqn-9x2mp.9999999", "dqn-9x2mp"])
def test_an_id_that_is_not_of_its_sweep_is_shown_whole(run_id: str) -> None:
    lines = shown(run(run_id, sweep="dqn-9x2mp"))
    assert lines[1].split()[:4] == ["dqn-9x2mp", "0", "of", "1"]
    assert lines[2].startswith(f"  {run_id} ")


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"stuck": {"since_at": NOW - 1860}, "step": 4}, "no step for 31m"),
        ({"stuck": {"since_at": NOW - 1860}}, "no output for 31m"),
        ({"stuck": {"since_at": "x"}, "step": 4, "progress_at": NOW - 60}, "no step for 1m"),
        ({"priority": -3, "attempt": 2}, "priority -3; attempt 2"),
        ({"time_limit_s": 7200.0, "started_at": NOW - 60, "ran_s": 6500.0}, "time limit in 10m"),
        ({"time_limit_s": 7200.0, "started_at": NOW - 60, "ran_s": 6000.0}, ""),
        ({"time_limit_s": 86400.0, "started_at": NOW - 79200}, "time limit in 2h00m"),
    ],
)
def test_notes_of_a_live_run(fields: dict[str, Any], note: str) -> None:
    rows, _ = run_rows([run(**fields)], NOW)
    assert rows[1][-1] == note


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"waits": {"kind": "drained"}, "reason": "the host is drained"}, "drained"),
        ({"reason": "next after a", "priority": 5}, "next after a; priority 5"),
        ({"position": 3}, "2 before it"),
        ({"reason": "waits for a slot", "attempt": 1}, "waits for a slot; attempt 2"),
        ({"stuck": {"since_at": NOW}}, ""),
    ],
)
def test_notes_of_a_run_that_waits(fields: dict[str, Any], note: str) -> None:
    rows, _ = run_rows([run(state="queued", **fields)], NOW)
    assert rows[1][-1] == note


@pytest.mark.parametrize(
    ("kind", "note", "headline"),
    [
        ("cuda-oom", "GPU memory", "out of GPU memory"),
        ("oom", "memory", "out of memory"),
        ("disk-full", "no disk left", "the words"),
        ("time-limit", "time limit", "the words"),
        ("exit", "the words", "the words"),
    ],
)
def test_a_cause_is_short_in_a_table(kind: str, note: str, headline: str) -> None:
    item = run("x", "ended", outcome="failed", cause={"kind": kind, "text": "the words"})
    rows, _ = run_rows([item], NOW)
    assert rows[1][-1] == note
    assert ending_line(item) == f"x  FAILED  {headline}"


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


def test_what_differs_within_a_sweep_tells_its_runs_apart() -> None:
    same: dict[str, Any] = {"sweep": "dqn-9x2mp", "job": "dqn", "name": "base"}
    runs = [
        run(f"dqn-9x2mp.{n}", "running", params={"seed": n, "lr": 0.001, "steps": 5}, **same)
        for n in (1, 2)
    ]
    assert [line.split()[-1] for line in shown(*runs)[2:]] == ["seed=1", "seed=2"]
    commands = [
        run(f"cmd-9x2mp.{n}", "running", sweep="cmd-9x2mp", argv=["echo", str(n)]) for n in (1, 2)
    ]
    assert [line.split()[-2:] for line in shown(*commands)[2:]] == [["echo", "1"], ["echo", "2"]]


def test_the_morning_after() -> None:
    night = [
        run(
            f"dqn-b2x7m.{number}",
            "ended",
            outcome="failed" if number == 3 else "done",
            cause={"kind": "nan", "text": "nan in loss"} if number == 3 else None,
            sweep="dqn-b2x7m",
            name="nightly",
            ended_at=NOW - 600 * number,
            step=50_000,
            params={"seed": number, "steps": 50_000},
            metrics={"reward": 480.0 + number},
        )
        for number in (1, 2, 3)
    ]
    alone = run("sac-t0w8e", "ended", outcome="done", ended_at=NOW - 3 * 86_400, pulled=True)
    before = SweepScore(494.0, 3, NOW - 86_400)
    scores = {"dqn-b2x7m": SweepScore(481.5, 2, NOW - 600, before)}
    rows, right = run_rows([*night, alone], NOW, scores=scores)
    assert [" ".join(line.split()) for line in table(rows, right=right)] == [
        "RUN STATE HOST STEPS RETURN ENDED NOTE",
        f"dqn-b2x7m 3 of 3 gpu1 {moment(NOW - 600, NOW)} nightly; "
        f"IQM 482 (494 on {moment(NOW - 86_400, NOW).split()[0]})",
        f".3 FAILED gpu1 50k/50k 100% 483 {moment(NOW - 1800, NOW)} seed=3; nan in loss",
        f"sac-t0w8e DONE gpu1 {moment(NOW - 3 * 86_400, NOW)} pulled",
    ]
    failed = {"outcome": "failed", "sweep": "cmd-b2x7m", "ended_at": NOW - 60}
    alike = [run(f"cmd-b2x7m.{n}", "ended", argv=["echo", str(n)], **failed) for n in (1, 2)]
    assert [row[-1].count("echo") for row in run_rows(alike, NOW, scores={})[0][1:]] == [0, 1, 1]
    everything, _ = run_rows(night, NOW, everyone=True, scores={})
    assert [row[0] for row in everything] == ["RUN", "dqn-b2x7m", "  .1", "  .2", "  .3"]
