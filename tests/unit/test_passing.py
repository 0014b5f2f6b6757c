from __future__ import annotations

from typing import Any

import pytest

from runner.passing import hydra_value, is_empty, passed_words, read_spelling, spelling_of


def flags(params: dict[str, Any], **spellings: str) -> list[str]:
    return passed_words({"how": "flags", "flags": spellings}, params)


def hydra(params: dict[str, Any], **spellings: str) -> list[str]:
    return passed_words({"how": "hydra", "flags": spellings}, params)


def test_a_file_alone_says_nothing() -> None:
    assert passed_words(None, {"lr": 1}) == []
    assert passed_words({"how": "file"}, {"lr": 1}) == []
    assert passed_words("nonsense", {"lr": 1}) == []


def test_flags_are_two_words() -> None:
    params = {"lr": 2.5e-4, "env": "CartPole-v1", "steps": 50_000}
    assert flags(params, env="--env-id") == [
        *("--env-id", "CartPole-v1"),
        *("--lr", "0.00025"),
        *("--steps", "50000"),
    ]


@pytest.mark.parametrize("odd", ["", "a b", "$HOME", "a'b\"c", "é\n", "--", "*", "x=y", "\udcff"])
def test_values_travel_as_they_are(odd: str) -> None:
    words = flags({"x": odd})
    assert words in (["--x", odd], [f"--x={odd}"])


def test_what_looks_like_an_option_is_one_word_with_its_name() -> None:
    assert flags({"x": "-x", "y": -0.5, "z": "--"}) == ["--x=-x", "--y=-0.5", "--z=--"]


@pytest.mark.parametrize(
    ("spelling", "when_true", "when_false"),
    [
        ("--cuda", ["--cuda"], []),
        ("--cuda/--no-cuda", ["--cuda"], ["--no-cuda"]),
        ("/--no-cuda", [], ["--no-cuda"]),
        ("--cuda/", ["--cuda"], []),
        ("--cuda=", ["--cuda=true"], ["--cuda=false"]),
        ("--cuda=true/--cuda=", ["--cuda=true"], ["--cuda="]),
        ("-c", ["-c"], []),
    ],
)
def test_switches(spelling: str, when_true: list[str], when_false: list[str]) -> None:
    assert flags({"cuda": True}, cuda=spelling) == when_true
    assert flags({"cuda": False}, cuda=spelling) == when_false


def test_lists() -> None:
    assert flags({"layers": [64, 64]}) == ["--layers", "64", "64"]
    assert flags({"layers": ["a", "-b"]}, layers="--layer*") == ["--layer", "a", "--layer=-b"]
    assert flags({"layers": []}, layers="--layers?") == []
    assert flags({"layers": []}) == ["--layers"]


def test_words_without_a_name_come_first_and_in_their_order() -> None:
    params = {"lr": 1, "out": "o", "env": "e", "more": ["x", "y"]}
    assert flags(params, out="2", env="1", more="3") == ["e", "o", "x", "y", "--lr", "1"]


def test_what_is_empty_may_be_left_out() -> None:
    assert flags({"entity": "", "kl": "0.1"}, entity="--entity?", kl="--kl?") == ["--kl", "0.1"]
    assert flags({"entity": ""}, entity="--entity!") == ["--entity", ""]
    assert (is_empty(""), is_empty([]), is_empty(0), is_empty(False)) == (True, True, False, False)


@pytest.mark.parametrize(
    "bad", ["", "lr", "--", "--a b", "--a/b", "/", "--a/--b?", "0", "100", "--a?!", "*", "--é", "?"]
)
def test_spellings_that_are_none(bad: str) -> None:
    assert read_spelling(bad, "flags") is None
    # a spec of a newer client is no reason to fail
    assert spelling_of("lr", "flags", {"lr": bad}).name == "--lr"


def test_overrides() -> None:
    params = {"lr": 1e-5, "user": "me", "on": True, "none": "", "layers": [1, "a b"]}
    assert hydra(params, user="+db.user", none="none?") == [
        *("layers=[1,'a b']", "lr=1e-05"),
        *("on=true", "+db.user=me"),
    ]
    assert read_spelling("-x", "hydra") is None
    assert spelling_of("model.lr", "hydra", {}).name == "model.lr"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("CartPole-v1", "CartPole-v1"),
        ("ALE/Pong-v5", "ALE/Pong-v5"),
        ("", "''"),
        ("1e3", "'1e3'"),
        ("True", "'True'"),
        ("null", "'null'"),
        ("nan", "'nan'"),
        ("a,b", "'a,b'"),
        ("a b", "'a b'"),
        ("it's", "'it\\'s'"),
        ("a\\'b", "'a\\\\\\'b'"),
        ("end\\", "'end\\\\'"),
        ("c:\\dir", "'c:\\dir'"),
        ("[x]", "'[x]'"),
        ("x=1", "'x=1'"),
        ({"a": [1, "b c"]}, "{a:[1,'b c']}"),
        (-1, "-1"),
        (False, "false"),
    ],
)
def test_values_of_overrides(value: Any, written: str) -> None:
    assert hydra_value(value) == written
