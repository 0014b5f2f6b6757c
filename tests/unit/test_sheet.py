from __future__ import annotations

import dataclasses
from typing import Any

from runner.model import Host
from runner.show.sheet import status_lines
from runner.show.units import moment
from tests.helpers.statuses import NOW, run


def test_words_that_say_parameters_are_shown_as_they_are_run() -> None:
    argv = ["python", "train.py", "--env", "a b"]
    lines = status_lines(run("t-1", "queued", job="t", params={"env": "a b"}, argv=argv), NOW)
    assert "argv         python train.py --env 'a b'" in lines
    lines = status_lines(run("t-1", "queued", job="t", params={}, argv=argv[:2]), NOW)
    assert not [line for line in lines if line.startswith("argv")]


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


def test_status_tells_where_a_run_comes_from_and_what_limits_it() -> None:
    lines = status_lines(
        run(
            "dqn-b2x7m",
            started_at=NOW - 60,
            ran_s=1800.0,
            time_limit_s=7200.0,
            restarts_left=2,
            priority=5,
            origin={"kind": "fork", "run": "dqn-7k3fa", "checkpoint": "step-10"},
            secrets=["WANDB_API_KEY", "TOKEN"],
            stuck={"since_at": NOW - 31 * 60, "action": "tell"},
            step=5,
        ),
        NOW,
    )
    assert lines[1:] == [
        "command",
        "host         gpu1",
        "origin       fork of dqn-7k3fa, from step-10",
        "priority     5",
        "limits       time limit 2h00m, 31m used  2 restarts left",
        "secrets      WANDB_API_KEY, TOKEN",
        "stuck        no step for 31m",
        "steps        5",
    ]
    again = run("x", "ended", outcome="done", origin={"kind": "reproduce", "run": "y"}, ran_s=60.0)
    assert "origin       reproduces y" in status_lines(again, NOW)


def test_dumps_of_stacks_are_named() -> None:
    attempts: list[dict[str, Any]] = [
        {"attempt": 1, "started_at": NOW, "stacks": ["stacks-1.txt", "stacks-2.txt"]},
        {"attempt": 2, "started_at": NOW, "stacks": 3},
    ]
    lines = status_lines(run("x", attempts=attempts), NOW, host=Host("gpu1", ssh="gpu1"))
    folder = "~/runner/runs/x/attempts/1"
    assert f"stacks       on gpu1: {folder}/stacks-1.txt  {folder}/stacks-2.txt" in lines


def test_what_a_queued_run_waits_for() -> None:
    lines = status_lines(run("x", "queued", position=2, reason="next after a", priority=-1), NOW)
    assert "waits        next after a  place 2 in the queue" in lines
    assert "priority     -1" in lines
    first = {"attempt": 1, "started_at": NOW, "ended_at": NOW, "cause": {"text": "exit 1"}}
    item = run("x", "queued", attempt=1, reason="waits for a slot", attempts=[first])
    at = f"{moment(NOW, NOW)}-{moment(NOW, NOW)}"
    lines = status_lines(item, NOW)
    assert "waits        for a slot" in lines
    assert f"attempts     1  {at}  exit 1" in lines


def test_attempts_that_ended_alike_are_said_once() -> None:
    def attempt(number: int, step: int) -> dict[str, Any]:
        cause = {"kind": "exit", "text": "exit 1", "step": step}
        return {"attempt": number, "started_at": NOW, "ended_at": NOW, "cause": cause}

    item = run(
        "x",
        "ended",
        outcome="failed",
        cause={"kind": "exit", "text": "exit 1", "step": 7, "repeated": 2},
        attempts=[attempt(1, 5), attempt(2, 7), attempt(3, 7)],
    )
    at = f"{moment(NOW, NOW)}-{moment(NOW, NOW)}"
    rows = [line for line in status_lines(item, NOW) if at in line]
    assert rows == [
        f"attempts     1  {at}  exit 1",
        f"             2  {at}  exit 1",
        f"             3  {at}  the same at the same step; not tried again",
    ]
    cause = {key: value for key, value in (item.status.cause or {}).items() if key != "repeated"}
    other = dataclasses.replace(item, status=item.status._replace(cause=cause))
    assert not [line for line in status_lines(other, NOW) if "the same" in line]


def test_status_of_a_command_shows_its_argv_quoted() -> None:
    lines = status_lines(run("cmd-1", argv=["echo", "a b", "\x1b[2J"], started_at=NOW - 3), NOW)
    assert lines[0] == "cmd-1  RUNNING  for 3s"
    assert lines[1] == "command      echo 'a b' '\\x1b[2J'"


def test_long_lines_break_between_parts_on_a_terminal() -> None:
    params = {f"param_{i}": i for i in range(20)}
    lines = status_lines(run(job="dqn", params=params), NOW, columns=60)
    assert max(map(len, lines)) <= 60
    assert lines[2].startswith(" " * 13 + "param_")


def test_what_was_set_aside_and_what_was_cut_is_said() -> None:
    facts: Any = {"log_bytes": 5_000_000, "log_cut_bytes": 3_000_000}
    lines = status_lines(run("dqn-1", "running", bad_checkpoints=[".bad-step-5"], **facts), NOW)
    assert "bad          .bad-step-5: set aside, did not verify" in lines
    assert "log          5 MB  3 MB of it cut (log_limit)" in lines


def test_what_became_of_a_log_is_said() -> None:
    lines = status_lines(run("dqn-1", "running", log_problem="rank-0.log was deleted"), NOW)
    assert "log          rank-0.log was deleted" in lines
    lines = status_lines(run(log_bytes=1000, log_problem="it was cut short"), NOW)
    assert "log          1 kB  it was cut short" in lines
