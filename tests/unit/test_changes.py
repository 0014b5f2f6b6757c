from __future__ import annotations

import pytest

from runner.errors import SpecError
from runner.grammar.changes import (
    check_resumable,
    check_secrets,
    line,
    more_steps,
    parse_changes,
    told,
    typed_params,
)
from runner.model import Param

KNOWN: dict[str, Param] = {"steps": 100, "lr": 0.5, "env": "a", "layers": [64], "name": "x"}


def test_words_are_sorted() -> None:
    words = ["lr=1", "env.A=b=c", "secret.K", "secret.L=@f", "name=n", "tags=a,b", "grace=2m"]
    words += ["priority=-3", "time_limit=1h", "restarts=0", "gpus=auto", "param.name=y"]
    found = parse_changes("fork", words)
    assert typed_params("r", found.params, KNOWN) == {"lr": 1.0, "name": "y"}
    assert found.env == {"A": "b=c"}
    assert found.secrets == {"K": None, "L": "f"}
    assert found.settings == {
        "name": "n",
        "tags": ["a", "b"],
        "priority": -3,
        "grace_s": 120.0,
        "time_limit_s": 3600.0,
        "restarts": 0,
        "gpus": "auto",
    }


def test_what_was_not_typed_is_not_set() -> None:
    assert parse_changes("fork", ["lr=1"]).settings == {}
    assert parse_changes("resume", []).words == ()


def test_a_value_of_a_variable_is_neither_remembered_nor_shown() -> None:
    found = parse_changes("resume", ["env.TOKEN=s3cr3t", "steps=3"])
    assert "s3cr3t" not in repr(found)
    assert found.words[0].startswith("env.TOKEN=sha256:")
    assert found.words[1] == "steps=3"
    assert found.words != parse_changes("resume", ["env.TOKEN=other", "steps=3"]).words


@pytest.mark.parametrize(
    ("command", "word", "match"),
    [
        ("resume", "name=x", "name cannot be changed by resume"),
        ("resume", "gpus=1", "gpus cannot be changed by resume"),
        ("fork", "host=x", "host cannot be changed by fork"),
        ("fork", "image=x", "image cannot be changed by fork"),
        ("fork", "after=x", "after cannot be changed by fork"),
        ("fork", "nodes=2", "nodes is not a key of fork"),
        ("resume", "each.x=1..3", "each.x is not a key of resume"),
        ("fork", "word", "word is not key=value"),
        ("fork", "secret.K=value", "secret.K takes no value here"),
        ("resume", "env.RANK=1", "env.RANK is set by the runner itself"),
        ("fork", "priority=1001", "priority is '1001'"),
        ("fork", "name=a b", "name is 'a b'; a name has"),
        ("fork", "grace=5", "grace is '5'"),
        ("reproduce", "lr=1", "lr cannot change in a reproduction"),
        ("reproduce", "layers:=[1]", "layers cannot change in a reproduction"),
        ("reproduce", "env.A=1", "env.A cannot change in a reproduction"),
    ],
)
def test_what_a_command_does_not_take(command: str, word: str, match: str) -> None:
    with pytest.raises(SpecError, match=match):
        parse_changes(command, [word])


def test_twice_is_refused() -> None:
    with pytest.raises(SpecError, match="lr is given twice"):
        parse_changes("fork", ["lr=1", "param.lr=2"])


def test_a_reproduction_takes_secrets_alone() -> None:
    assert parse_changes("reproduce", ["secret.K=@f"]).secrets == {"K": "f"}


def test_parameters_are_typed_by_their_values() -> None:
    found = parse_changes("resume", ["steps=1e3", "layers:=[1, 2]", "lr=3e-4"])
    params = typed_params("r", found.params, KNOWN)
    assert params == {"steps": 1000, "layers": [1, 2], "lr": 3e-4}
    assert isinstance(params["steps"], int)
    for word, match in (("steps=x", "a whole number"), ("lrr=1", r"did you mean lr\?")):
        with pytest.raises(SpecError, match=match):
            typed_params("r", parse_changes("resume", [word]).params, KNOWN)
    with pytest.raises(SpecError, match="x is not a parameter of r") as caught:
        typed_params("r", parse_changes("fork", ["x=1"]).params, {})
    assert "a command stays as it is" in caught.value.advice[0]


def test_only_what_is_resumable_changes() -> None:
    check_resumable("r", ["steps"], ["steps", "lr"])
    for resumable, says in ((["steps"], "resume may change steps"), ([], "resume changes none")):
        with pytest.raises(SpecError, match="env of r cannot be changed by resume") as caught:
            check_resumable("r", ["env"], resumable)
        assert caught.value.advice[0].startswith(says)
        assert "runner fork r env=…" in caught.value.advice[1]


def test_missing_secrets_are_named() -> None:
    check_secrets("resume", "r", ["A"], ["A"])
    check_secrets("fork", "r", ["A"], ["A", "B"])
    with pytest.raises(SpecError, match="give them again") as caught:
        check_secrets("resume", "r", ["A", "B", "C"], ["B"])
    assert caught.value.advice[0] == "runner resume r secret.A secret.C"
    with pytest.raises(SpecError, match="r has no secret B"):
        check_secrets("reproduce", "r", ["A"], ["A", "B"])


@pytest.mark.parametrize(
    ("changed", "more"),
    [({"steps": 101}, True), ({"steps": 100}, False), ({"lr": 9.0}, False), ({}, False)],
)
def test_more_steps(changed: dict[str, Param], more: bool) -> None:
    assert more_steps(KNOWN, changed) is more
    assert not more_steps({}, changed)


def test_changes_are_told_with_both_values() -> None:
    changed: dict[str, Param] = {"steps": 200, "lr": 0.5, "env": "b", "layers": [1, 2]}
    assert told(KNOWN, changed) == "steps 100 → 200, env a → b, layers [64] → [1, 2]"
    assert told(KNOWN, {"lr": 0.5}) == ""


def test_a_line_can_be_copied() -> None:
    assert line("status", "a b") == "runner status 'a b'"
