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
    assert judge(asked=asked, code=-15)["kind"] == asked
    assert judge(asked=asked, code=0)["kind"] == asked


@pytest.mark.parametrize(
    ("facts", "kind", "text"),
    [
        ({"code": 3, "rank": 1}, "exit", "exit 3"),
        ({"code": -11, "rank": 1}, "signal", "rank 1 killed by SIGSEGV"),
        ({"code": -9, "rank": None}, "signal", "torchrun's agent killed by SIGKILL"),
        ({"code": -9, "oom_kills": 1}, "oom", "out of memory"),
        ({"code": 1, "oom_kills": 2}, "oom", "out of memory"),
        ({"code": 137, "oom_kills": 1}, "oom", "out of memory"),
        ({"code": 2, "oom_kills": 1}, "exit", "exit 2"),
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
