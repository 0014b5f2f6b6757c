from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.intents import (
    door_argv,
    door_kind,
    intent_words,
    is_readable,
    make_intent,
    make_spec,
    specs_of,
)
from runner.manifest import Snapshot
from runner.model import Host, JobSpec, Project
from runner.spec import parse_submit, resolve

HOST = Host("gpu1", ssh="gpu1", env={"PROXY": "p", "TOKEN": "old"})
JOB = JobSpec("dqn", ("python", "agents/dqn.py"), params={"seed": -1, "lr": 0.1}, keep=3)
PROJECT = Project(Path("/nowhere"), "p-1", "p")


def intent(*words: str, command: list[str] | None = None, **options: Any) -> dict[str, Any]:
    request = parse_submit([*words, *([] if command else ["job=dqn"])], command)
    plan = resolve(request, None if command else JOB, HOST)
    snapshot = Snapshot((), "0" * 64, {"files": 0})
    body = make_intent(
        PROJECT,
        HOST,
        plan,
        snapshot,
        random.Random(1),
        given=request.params,
        after=options.get("after", ()),
    )
    assert json.loads(json.dumps(body)) == body
    assert is_readable(body)
    return body


def test_how_parameters_are_said_and_what_is_installed_are_of_the_spec() -> None:
    (spec,) = specs_of(intent())
    assert (spec["pass"], spec["setup"]) == (None, None)
    flags = {"lr": "--learning-rate"}
    job = replace(JOB, how="flags", flags=flags, requirements=("tyro",))
    plan = resolve(parse_submit(["job=dqn"], None), job, HOST)
    spec = make_spec(PROJECT, HOST, plan, Snapshot((), "0" * 64, {}), random.Random(1))
    assert spec["pass"] == {"how": "flags", "flags": flags}
    assert spec["setup"] == {"requirements": ["tyro"]}


def test_a_run_is_its_own_spec() -> None:
    body = intent("lr=1", after=["dqn-00000"])
    (spec,) = specs_of(body)
    assert spec == body["spec"]
    assert "members" not in body
    assert (spec["id"], spec["sweep"], spec["after"]) == (body["id"], None, ["dqn-00000"])
    assert (spec["restarts"], spec["keep"], spec["given"]) == (3, 3, ["lr", "seed"])
    assert spec["params"]["seed"] >= 0


def test_runs_of_a_sweep_differ_in_what_was_swept() -> None:
    body = intent("lr=1,2", "image=a,b")
    specs = specs_of(body)
    assert [spec["id"] for spec in specs] == [f"{body['id']}.{n}" for n in (1, 2, 3, 4)]
    assert {spec["sweep"] for spec in specs} == {body["id"]}
    assert [(spec["params"]["lr"], spec["image"]) for spec in specs] == [
        (1.0, "a"),
        (1.0, "b"),
        (2.0, "a"),
        (2.0, "b"),
    ]
    assert len({spec["params"]["seed"] for spec in specs}) == 4
    assert {key for spec in specs for key in spec} == set(body["spec"])


def test_a_swept_command_has_its_words_filled_in() -> None:
    specs = specs_of(intent("each.n=1..2", command=["go", "{n}"]))
    assert [spec["argv"] for spec in specs] == [["go", "1"], ["go", "2"]]
    assert [spec["params"] for spec in specs] == [{}, {}]


def test_a_secret_is_a_name_that_wins_over_the_hosts_variable() -> None:
    (spec,) = specs_of(intent("secret.TOKEN", "env.B=c"))
    assert spec["secrets"] == ["TOKEN"]
    assert spec["env"] == {"PROXY": "p", "B": "c"}


def test_words_hide_values_of_variables_alone() -> None:
    words = ["lr=1,2", "env.TOKEN=s3cr3t", "secret.A=@some/file", "secret.B"]
    found = intent_words(parse_submit(["job=dqn", *words], None))
    assert found[:3] == ["host=local", "job=dqn", "lr=1,2"]
    assert found[3].startswith("env.TOKEN=sha256:")
    assert found[4:] == ["secret.A=@some/file", "secret.B"]


@pytest.mark.parametrize(
    "damage",
    [
        {"spec": None},
        {"spec": {"id": "x"}},
        {"id": "dqn-other"},
        {"members": 3},
        {"members": [3]},
        {"members": [{}]},
    ],
)
def test_a_damaged_one_is_not_readable(damage: dict[str, Any]) -> None:
    assert not is_readable({**intent("lr=1,2"), **damage})


def test_a_door_has_an_id_of_its_kind() -> None:
    assert intent(command=list(door_argv("lab")))["id"].startswith("lab-")
    assert intent(command=["echo", "door", "lab"])["id"].startswith("cmd-")
    assert (door_kind(door_argv("shell")), door_kind(["true"])) == ("shell", None)
