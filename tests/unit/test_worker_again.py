from __future__ import annotations

from typing import Any

import pytest
from verbs import Refused, again

SPEC: dict[str, Any] = {
    "format": 1,
    "id": "dqn-abcde.3",
    "job": "dqn",
    "argv": ["python", "agents/dqn.py"],
    "params": {"steps": 10, "lr": 0.5, "seed": 7},
    "given": ["lr", "seed"],
    "env": {"A": "1", "B": "2"},
    "secrets": ["K"],
    "snapshot": "0" * 64,
    "gpus": 2,
    "gpus_asked": "auto",
    "sweep": "dqn-abcde",
    "after": ["dqn-other"],
    "priority": 3,
    "restarts": 2,
    "name": "base",
    "accepted_at": 1.0,
    "worker_image": "torch-2.6",
    "origin": None,
    "client": "0.0.1",
}


def request(kind: str = "fork", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "id": "dqn-fghjk", "source": SPEC["id"], "client": "0.0.2", **more}


def test_a_new_spec_is_the_old_one_but_for_what_is_of_one_run_alone() -> None:
    made = again.new_spec(SPEC, request("reproduce"))
    changed = {key for key in {*SPEC, *made} if SPEC.get(key) != made.get(key)}
    assert changed == {
        *("id", "gpus", "gpus_asked", "sweep", "after", "accepted_at", "worker_image"),
        *("origin", "client"),
        "name",
    }
    assert (made["id"], made["client"]) == ("dqn-fghjk", "0.0.2")
    assert made["gpus"] == "auto", "as asked then, for whoever settles it"
    assert (made["sweep"], made["after"]) == (None, [])
    assert made["origin"] == {"kind": "reproduce", "run": SPEC["id"], "checkpoint": None}


def test_changes_go_over_what_was_there() -> None:
    made = again.new_spec(
        SPEC,
        request(
            params={"steps": 20},
            env={"B": "3", "C": "4"},
            changes={"name": "more", "priority": 0, "gpus": 1, "argv": ["no"]},
        ),
    )
    assert made["params"] == {"steps": 20, "lr": 0.5, "seed": 7}
    assert made["given"] == ["lr", "seed", "steps"]
    assert made["env"] == {"A": "1", "B": "3", "C": "4"}
    assert (made["name"], made["priority"], made["gpus"]) == ("more", 0, 1)
    assert (made["argv"], made["restarts"]) == (SPEC["argv"], 2)
    assert SPEC["params"]["steps"] == 10


def test_a_secret_takes_the_place_of_a_variable() -> None:
    made = again.new_spec(SPEC, request(secrets={"K": "eA==", "A": "eA=="}))
    assert made["secrets"] == ["A", "K"]
    assert made["env"] == {"B": "2"}


def test_a_parameter_it_does_not_have() -> None:
    with pytest.raises(Refused) as caught:
        again.new_spec(SPEC, request(params={"step": 1}))
    assert caught.value.body["code"] == "bad-request"


def test_a_spec_of_an_earlier_version() -> None:
    old = {"id": "a-1", "gpus": 1, "params": {}, "snapshot": "0" * 64}
    made = again.new_spec(old, request())
    assert (made["gpus"], made["secrets"], made["env"], made["given"]) == (1, [], {}, [])
    assert again.image_of(old) is None
    assert again.image_of({"image": "a"}) == "a"
    assert again.image_of(SPEC) == "torch-2.6"
