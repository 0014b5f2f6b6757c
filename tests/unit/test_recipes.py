from __future__ import annotations

from typing import Any

import pytest

from runner.errors import SpecError
from runner.recipes import LATER, parse_job


def parse(**table: Any) -> Any:
    return parse_job("dqn", table, where="agents/dqn.toml")


def test_an_entry_starts_python_from_the_root() -> None:
    job = parse(
        entry="dqn.py", nproc=2, grace="1m", metric="reward", params={"lr": 1e-3, "on": True}
    )
    assert job.command == ("python", "agents/dqn.py")
    assert (job.entry, job.nproc, job.grace_s, job.metric) == ("dqn.py", 2, 60.0, "reward")
    assert job.params == {"lr": 1e-3, "on": True}


def test_a_command_is_taken_as_it_is() -> None:
    job = parse(command=["python", "train.py", ""], **{"pass": "file"})
    assert job.command == ("python", "train.py", "")
    assert (job.entry, job.gpus, job.launcher, job.grace_s) == (None, "auto", "auto", 25.0)


@pytest.mark.parametrize("key", LATER)
def test_keys_of_later_versions_are_refused_by_name(key: str) -> None:
    with pytest.raises(SpecError, match=f"{key} is not in this version yet"):
        parse(entry="dqn.py", **{key: 1})


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "entry is missing"),
        ({"entry": "a.py", "command": ["b"]}, "command and entry are two ways"),
        ({"entry": "../a.py"}, "entry is '../a.py'; it must be a file beside this one"),
        ({"entry": "/a.py"}, "it must be a file beside this one"),
        ({"command": "python x"}, "command is 'python x'; it must be a list of texts"),
        ({"command": []}, "it must be a list that begins with a program"),
        ({"entry": "a.py", "nproc": 0}, "nproc is 0; it must be at least 1"),
        ({"entry": "a.py", "nproc": 1025}, "nproc is 1025; it must be at most 1024"),
        ({"entry": "a.py", "gpus": True}, "gpus is True; it must be 'auto' or a whole number"),
        ({"entry": "a.py", "gpus": -1}, "gpus is -1"),
        (
            {"entry": "a.py", "launcher": "mpirun"},
            "launcher is 'mpirun', which is not in this version yet",
        ),
        (
            {"entry": "a.py", "launcher": "direct", "nproc": 2},
            "launcher is 'direct', which starts one",
        ),
        ({"entry": "a.py", "pass": "flags"}, "pass is 'flags', which is not in this version yet"),
        ({"entry": "a.py", "grace": 25}, "grace is 25; it must be a duration such as '25s'"),
        ({"entry": "a.py", "metric": ""}, "metric is ''; it must be a text"),
        ({"entry": "a.py", "params": 3}, "params is 3; it must be a table"),
        ({"entry": "a.py", "params": {"a b": 1}}, "params.'a b' is no name for a parameter"),
        ({"entry": "a.py", "params": {"x": float("nan")}}, "params.x is nan"),
        ({"entry": "a.py", "params": {"x": [float("inf")]}}, "params.x is [inf]"),
        ({"entry": "a.py", "params": {"x": object()}}, "it must be what JSON can hold"),
        ({"entry": "a.py", "nprocs": 2}, "nprocs is not known here (did you mean 'nproc'?)"),
    ],
)
def test_a_wrong_recipe_is_refused_with_the_place(table: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(**table)
    assert caught.value.message.startswith("agents/dqn.toml: ")
    assert says in caught.value.message
