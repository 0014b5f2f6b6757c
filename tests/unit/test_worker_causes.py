from __future__ import annotations

from typing import Any

import causes
import pytest

from runner import states

ROOMY = 10**12


def judge(**facts: Any) -> Any:
    base: dict[str, Any] = {
        "asked": None,
        "code": 0,
        "rank": 0,
        "fault": None,
        "oom_kills": 0,
        "disk_free": ROOMY,
    }
    return causes.judge(**{**base, **facts})


def test_a_good_end_has_no_cause() -> None:
    assert judge() is None


@pytest.mark.parametrize("asked", ["cancelled", "shutdown"])
def test_what_was_asked_for_is_the_cause_whatever_the_code(asked: str) -> None:
    cause = causes.plain(asked)
    assert judge(asked=cause, code=-15) == cause
    assert judge(asked=cause, code=0) == cause


@pytest.mark.parametrize(
    ("facts", "kind", "text"),
    [
        ({"code": 3, "rank": 1}, "exit", "exit 3"),
        ({"code": -11, "rank": 1}, "signal", "rank 1 killed by SIGSEGV"),
        ({"code": -9, "rank": None}, "signal", "torchrun's agent killed by SIGKILL"),
        ({"code": -9, "rank": None, "front": "mpirun"}, "signal", "mpirun killed by SIGKILL"),
        ({"code": -9, "oom_kills": 1}, "oom", "out of memory"),
        ({"code": 1, "oom_kills": 2}, "oom", "out of memory"),
        ({"code": 137, "oom_kills": 1}, "oom", "out of memory"),
        ({"code": 2, "oom_kills": 1}, "exit", "exit 2"),
        ({"code": 1, "cuda_oom": "CUDA out of memory. Tried"}, "cuda-oom", "Tried"),
        ({"code": 3, "cuda_oom": "CUDA out of memory. Tried"}, "exit", "exit 3"),
        ({"code": -11, "oom_kills": 1}, "signal", "SIGSEGV"),
        ({"code": 1, "disk_free": 0}, "disk-full", "disk is full"),
        ({"code": 127}, "exit", "exit 127"),
        ({"code": 127, "absent": "foo"}, "exit", "foo: no such program"),
        ({"code": None, "front_says": "no driver"}, "exit", "no driver"),
        ({"code": None}, "exit", "could not be started"),
        ({"code": -64}, "signal", "SIGRTMAX"),
        ({"code": -99}, "signal", "signal 99"),
    ],
)
def test_the_cause_follows_from_what_was_seen(facts: Any, kind: str, text: str) -> None:
    cause = judge(**facts)
    assert cause["kind"] == kind
    assert text in cause["text"]
    assert kind in states.CAUSES


def test_the_jobs_own_word_comes_first() -> None:
    fault = {"fault": "cuda-oom", "step": 7, "text": "CUDA out of memory"}
    cause = judge(code=1, rank=1, fault=fault)
    assert cause == {
        "kind": "cuda-oom",
        "step": 7,
        "text": "CUDA out of memory",
        "rank": 1,
        "code": 1,
    }


def test_a_job_that_cannot_start_as_it_is_says_so_itself() -> None:
    cause = judge(code=2, rank=0, fault={"fault": "setup", "text": "no GPU here"})
    assert (cause["kind"], cause["text"], cause["code"]) == ("setup", "no GPU here", 2)
    assert cause["kind"] in states.FINAL_CAUSES


@pytest.mark.parametrize("word", ["host-restart", "shutdown", "made-up"])
def test_a_job_cannot_claim_a_cause_that_is_not_its_own(word: str) -> None:
    cause = judge(code=1, fault={"fault": word, "text": "t"})
    assert (cause["kind"], cause["text"]) == ("exit", f"{word}: t")


def test_every_cause_from_outside_has_a_text() -> None:
    for kind in states.FROM_OUTSIDE:
        assert causes.plain(kind)["text"] != kind
    assert causes.plain("cancelled", more=1) == {
        "kind": "cancelled",
        "text": "cancelled",
        "more": 1,
    }


def test_where_it_broke_stands_beside_what_broke() -> None:
    cause = judge(code=1, rank=0, traceback='File "a.py", line 3, in f\nValueError: x')
    assert cause["kind"] == "exit"
    assert cause["traceback"] == 'File "a.py", line 3, in f\nValueError: x'
    assert "traceback" not in judge(code=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0s"),
        (45, "45s"),
        (59.9, "59s"),
        (60, "1m"),
        (90, "1m30s"),
        (31 * 60, "31m"),
        (43200, "12h"),
        (5400, "1h30m"),
        (3605, "1h"),
        (86400 * 2 + 5, "2d"),
        (86400 + 3661, "1d1h"),
    ],
)
def test_a_span_is_written_as_one_types_it(seconds: float, text: str) -> None:
    assert causes.span(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(812, "812 B"), (10**10, "10 GB"), (1_500_000, "1.5 MB"), (5 * 10**12, "5 TB")],
)
def test_sizes(count: int, text: str) -> None:
    assert causes.size(count) == text


def test_what_the_launcher_itself_stops_for() -> None:
    assert causes.time_limit(43200) == {
        "kind": "time-limit",
        "text": "ran for 12h, its time limit",
    }
    told = causes.reserve_reached(10**10)
    assert told["kind"] == "disk-full"
    assert told["text"].startswith("less than 10 GB free, the host's reserve; ")
    stuck = causes.stuck(1860, 7, by_steps=True, final=False)
    assert stuck == {"kind": "stuck", "text": "no step for 31m", "step": 7}
    assert causes.stuck(60, None, by_steps=False, final=True) == {
        "kind": "stuck",
        "text": "no output for 1m",
        "step": None,
        "final": True,
    }
