"""What is told of a run, in words."""

from __future__ import annotations

import json
from typing import Any

import wording

from runner import messages

SPEC: dict[str, Any] = {
    "id": "ppo-c41hd",
    "job": "ppo",
    "argv": ["python", "train.py", "s3cr3t-argv"],
    "env": {"TOKEN": "s3cr3t-env"},
    "params": {"steps": 10_000_000, "token": "s3cr3t-param"},
    "metric": None,
}
STATE: dict[str, Any] = {
    "outcome": "failed",
    "cause": {"kind": "disk-full", "text": "no disk left", "traceback": "s3cr3t-place"},
    "ended_at": 1796263320.0,
    "ran_s": 7865.0,
    "attempt": 2,
    "final": {"step": 1_400_000, "metrics": {"reward": 912.0, "loss/policy": 1.0}, "t": None},
}


def ended(**changes: Any) -> dict[str, Any]:
    return wording.ended(
        SPEC, {**STATE, **changes}, ident="m-1", host="gpu2", zone="Europe/Berlin",
        checkpoint="step-001400000",
    )  # fmt: skip


def test_an_end_is_told_as_one_would_tell_it() -> None:
    found = ended()
    assert found["text"].splitlines() == [
        "ppo-c41hd FAILED on gpu2 at 03:02 after 2h11m: no disk left",
        "step 1.4M of 10M, return 912; last checkpoint step-001400000",
        "runner why ppo-c41hd",
    ]
    assert found["title"] == "ppo-c41hd FAILED on gpu2"
    assert (found["kind"], found["outcome"]) == ("ended", "failed")
    assert (found["step"], found["steps"], found["attempt"]) == (1_400_000, 10_000_000, 2)


def test_a_good_end_and_one_that_somebody_wanted_need_no_cause() -> None:
    done = ended(outcome="done", cause=None)
    assert done["text"].splitlines()[0] == "ppo-c41hd DONE on gpu2 at 03:02 after 2h11m"
    assert done["text"].splitlines()[-1] == "runner status ppo-c41hd"
    cancelled = ended(outcome="cancelled", cause={"kind": "cancelled", "text": "cancelled"})
    assert ": " not in cancelled["text"].splitlines()[0]


def swept(*outcomes: str, **changes: Any) -> dict[str, Any]:
    spec = {**SPEC, "id": "ppo-c41hd.2", "sweep": "ppo-c41hd", **changes}
    return wording.sweep_ended(spec, outcomes, ident="m-2", host="gpu2", at=1796263320.0)


def test_a_sweep_is_told_of_with_how_its_runs_ended() -> None:
    found = swept("done", "done", "done")
    assert found["text"].splitlines() == [
        "ppo-c41hd DONE on gpu2 at 02:02 UTC: all 3 runs",
        "runner compare ppo-c41hd",
    ]
    assert (found["run"], found["sweep"], found["outcome"]) == (None, "ppo-c41hd", "done")
    mixed = swept("done", "failed", "done", "skipped")
    assert (
        mixed["text"]
        .splitlines()[0]
        .endswith("ENDED on gpu2 at 02:02 UTC: 2 done, 1 failed, 1 skipped")
    )
    assert mixed["outcome"] == "failed" and messages.is_bad(mixed)
    assert mixed["counts"] == {"done": 2, "failed": 1, "skipped": 1}
    assert swept("failed", "failed")["text"].endswith("\nrunner ps --ended")
    assert swept("done", job=None)["text"].endswith(": its one run\nrunner ps --ended")


def test_no_parameter_variable_or_argument_goes_out() -> None:
    for message in (
        ended(),
        wording.stuck(SPEC, STATE, "no step", ident="m", host="h", at=0.0, again=True),
    ):
        assert "s3cr3t" not in json.dumps(message)


def test_what_a_job_said_plays_with_no_screen() -> None:
    text = "\x1b]0;x\x07 boom\nrunner cancel --all \u202e" + "x" * 10_000
    found = ended(cause={"kind": "exit", "text": text})
    assert found["text"].count("\n") == 2
    assert "\x1b" not in found["text"]
    assert "\u202e" not in found["text"]
    assert len(found["text"]) < 2000


def test_a_run_that_told_nothing_of_itself_has_a_short_message() -> None:
    spec = {"id": "cmd-1", "job": None, "argv": ["true"]}
    state = {"outcome": "done", "ended_at": 0.0, "final": {"step": None, "metrics": {}}}
    found = wording.ended(spec, state, ident="m", host="h")
    assert found["text"] == "cmd-1 DONE on h at 00:00 UTC\nrunner status cmd-1"


def test_an_unknown_zone_is_told_in_utc() -> None:
    assert wording.clock(0.0, "No/Where") == "00:00 UTC"
    assert wording.clock(0.0, "../../etc/passwd") == "00:00 UTC"
    assert wording.clock(0.0, None) == "00:00 UTC"


def test_counts_are_short() -> None:
    assert [wording.count(n) for n in (0, 812, 999, 1000, 31_400, 4_118_000, 2e9)] == [
        "0", "812", "999", "1k", "31.4k", "4.1M", "2G",
    ]  # fmt: skip


def test_a_disk_that_runs_low_names_the_way_out() -> None:
    found = wording.disk(
        ident="m", host="gpu1", at=0.0, free=3_100_000_000, reserve=14_000_000_000, waiting=2
    )
    assert found["text"].splitlines() == [
        "gpu1: disk runs low, 3.1 GB free and 14 GB are to stay free; nothing starts there,"
        " 2 runs wait",
        "runner gc host=gpu1 --dry-run",
    ]
