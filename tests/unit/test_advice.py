from __future__ import annotations

import shlex

import pytest

from runner.show.advice import MOST_WORDS, advise, listed, said


def test_a_command_is_one_line_for_a_shell() -> None:
    (item,) = advise("then:", "gc", "host=a b", "--dry-run")
    assert (item.text, item.command) == ("then:", "runner gc 'host=a b' --dry-run")
    assert shlex.split(item.command) == ["runner", "gc", "host=a b", "--dry-run"]


@pytest.mark.parametrize(
    "name", ["", "--all", "a b", "a;b", "a\n", "\x1b", "$(x)", "a" * 129, "../a"]
)
def test_a_name_that_is_none_of_ours_makes_no_command(name: str) -> None:
    assert advise("", "why", name, names=[name]) == ()
    assert advise("", "why", "dqn-9x2mp.4", names=["dqn-9x2mp.4"]) != ()


def test_what_was_said_is_bounded() -> None:
    assert said("x" * MOST_WORDS) == "x" * MOST_WORDS
    assert len(said("x" * 10**6)) == MOST_WORDS
    assert said(None) == "None"


def test_lists_in_words() -> None:
    found = [listed(parts) for parts in ([], ["a"], ["a", "b"], ["a", "b", "c"])]
    assert found == ["", "a", "a and b", "a, b and c"]
