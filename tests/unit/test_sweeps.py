from __future__ import annotations

import pytest

from runner.errors import SpecError
from runner.grammar.sweeps import Member, check_count, filled, parse_choices, product, typed_values
from runner.model import Param


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("5", ["5"]),
        ("", [""]),
        ("1..3", ["1", "2", "3"]),
        ("-1..1", ["-1", "0", "1"]),
        ("1e3..1_001", ["1000", "1001"]),
        ("1..2,9,a", ["1", "2", "9", "a"]),
        ("a..b", ["a..b"]),
        ("../x,..", ["../x", ".."]),
    ],
)
def test_a_text_stands_for_these_values(text: str, values: list[str]) -> None:
    choices = parse_choices("k", text)
    assert list(choices.texts()) == values
    assert choices.count == len(values)


def test_a_range_is_counted_before_it_is_listed() -> None:
    assert parse_choices("k", "0..999999999999999999").count == 10**18


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3..1", "a..b counts up: 1..3"),
        ("-1..-3", "a..b counts up: -3..-1"),
        ("1.5..3", "a..b counts whole numbers"),
        ("1..2..3", "a..b counts whole numbers"),
        ("0..1e30", "at most 64 bits"),
        ("-1e30..0", "at most 64 bits"),
        ("1,", "a value between its commas is empty"),
        (",", "a value between its commas is empty"),
    ],
)
def test_what_stands_for_nothing_is_refused(text: str, says: str) -> None:
    with pytest.raises(SpecError, match=says.replace(".", r"\.")) as caught:
        parse_choices("k", text)
    assert caught.value.advice == ("nothing was sent",)


def test_a_text_with_commas_is_told_the_way_out() -> None:
    with pytest.raises(SpecError) as caught:
        typed_values("env", "a,", "x")
    assert caught.value.advice == ("as one text:", "  'env:=\"a,\"'", "nothing was sent")


@pytest.mark.parametrize(
    ("text", "default", "values"),
    [
        ("1..3", 0.5, [1.0, 2.0, 3.0]),
        ("1e-3,.5", 0.5, [1e-3, 0.5]),
        ("1..2", "x", ["1", "2"]),
        ("on,off", True, [True, False]),
        ("1e6,2_000", 1, [1_000_000, 2000]),
    ],
)
def test_values_have_the_type_of_the_default(
    text: str, default: Param, values: list[Param]
) -> None:
    found = typed_values("k", text, default)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_the_same_run_is_not_made_twice() -> None:
    with pytest.raises(SpecError, match="k is 'yes,true'; True is there twice"):
        typed_values("k", "yes,true", False)


def test_a_product_changes_the_last_first() -> None:
    found = product([("param", "a", [1, 2]), ("each", "n", ["x", "y"])], {"m": "z"}, many=False)
    assert found == (
        Member({"a": 1}, {"m": "z", "n": "x"}),
        Member({"a": 1}, {"m": "z", "n": "y"}),
        Member({"a": 2}, {"m": "z", "n": "x"}),
        Member({"a": 2}, {"m": "z", "n": "y"}),
    )
    assert product([], {"m": "z"}, many=False) == ()


def test_counts_have_two_bounds() -> None:
    check_count(1000, many=False)
    check_count(100_000, many=True)
    with pytest.raises(SpecError, match="1,001 runs; more than 1,000 need --yes"):
        check_count(1001, many=False)
    for many in (False, True):
        with pytest.raises(SpecError, match="100,001 runs; at most 100,000"):
            check_count(100_001, many=many)


def test_only_these_names_are_filled_in() -> None:
    assert filled(["{a}{b}", "{a", "{c.d}"], {"a": "{b}", "c.d": "1"}) == ("{b}{b}", "{a", "1")
