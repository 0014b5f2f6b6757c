from __future__ import annotations

import pytest

from runner.errors import SpecError
from runner.grammar.words import RESERVED, Words, meant


def test_words_are_sorted_and_keep_their_order() -> None:
    words = Words(["lr=1,2", "image=a,b", "secret.A", "each.n=1..2", "param.host=x", "env.B=c=d"])
    assert words.order == [("param", "lr"), ("image", "image"), ("each", "n"), ("param", "host")]
    assert words.params["lr"].text == "1,2"
    assert (words.each, words.env, words.secrets) == ({"n": "1..2"}, {"B": "c=d"}, {"A": None})
    assert words.images() == ("a", "b")


def test_words_for_other_runs_come_once_each() -> None:
    word = "after=dqn-7k3fa,name:base,tag:x,dqn-7k3fa,dqn-9x2mp.3"
    assert Words([word]).after() == ("dqn-7k3fa", "name:base", "tag:x", "dqn-9x2mp.3")
    assert Words([]).after() == ()


@pytest.mark.parametrize("key", RESERVED)
def test_a_reserved_key_takes_no_json(key: str) -> None:
    with pytest.raises(SpecError, match=f"{key} takes {key}=VALUE, not JSON"):
        Words([f"{key}:=1"])


@pytest.mark.parametrize(("text", "number"), [("-5", -5), ("007", 7), ("-0", 0), ("1000", 1000)])
def test_whole_numbers_may_be_negative(text: str, number: int) -> None:
    assert Words([f"priority={text}"]).count("priority", least=-1000, most=1000) == number


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("secrets.A", " (did you mean secret.A?)"),
        ("evn.A", " (did you mean env.A?)"),
        ("each.n", " (did you mean each.n?)"),
        ("prioritty", " (did you mean priority?)"),
        ("stpes", " (did you mean steps?)"),
        ("xyz", ""),
        ("xyz.q", ""),
    ],
)
def test_a_key_that_is_none_is_told_the_nearest(key: str, hint: str) -> None:
    assert meant(key, ["steps"]) == hint
