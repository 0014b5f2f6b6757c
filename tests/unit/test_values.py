from __future__ import annotations

import pytest

from runner.errors import SpecError
from runner.grammar.values import RawValue, decode_json, typed
from runner.model import Param


def text(value: str) -> RawValue:
    return RawValue(value)


def js(value: str) -> RawValue:
    return RawValue(value, is_json=True)


@pytest.mark.parametrize(
    ("raw", "default", "value"),
    [
        (text("50_000"), 1, 50000),
        (text("1e6"), 1, 1000000),
        (text("2.5e3"), 1, 2500),
        (text("-3"), 1, -3),
        (text("0e999999999"), 1, 0),
        (text("9223372036854775807"), 1, 2**63 - 1),
        (text("1e-5"), 1.0, 1e-5),
        (text(".99"), 1.0, 0.99),
        (text("3"), 1.0, 3.0),
        (text("1_000.5"), 1.0, 1000.5),
        (text("False"), True, False),
        (text("no"), True, False),
        (text("off"), True, False),
        (text("on"), False, True),
        (text("YES"), False, True),
        (text("a=b=c"), "x", "a=b=c"),
        (text(""), "x", ""),
        (text("../data"), "x", "../data"),
        (text("a..b"), "x", "a..b"),
        (text("5"), "x", "5"),
        (js('"a,b"'), "x", "a,b"),
        (js("[64, 64]"), [1], [64, 64]),
        (js('{"a": 1}'), {}, {"a": 1}),
        (js("1e6"), 1, 1000000),
        (js("3"), 1.0, 3.0),
        (js("true"), False, True),
    ],
)
def test_values_take_the_type_of_their_default(raw: RawValue, default: Param, value: Param) -> None:
    result = typed("key", raw, default)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("raw", "default", "says"),
    [
        (text("1.5"), 1, "a whole number"),
        (text("x"), 1, "a whole number"),
        (text("1e400"), 1, "64 bits"),
        (text("9223372036854775808"), 1, "64 bits"),
        (text("9" * 5000), 1, "64 bits"),
        (text("1e-400"), 1, "a whole number"),
        (text("٣"), 1, "a whole number"),
        (text("__1"), 1, "a whole number"),
        (text("nan"), 1.0, "a number"),
        (text("inf"), 1.0, "a number"),
        (text("1e999"), 1.0, "64 bits"),
        (text("0"), True, "true or false"),
        (text("1"), False, "true or false"),
        (text("maybe"), True, "true or false"),
        (text("1..5"), 1, "a..b means a sweep, and this is of one run"),
        (text("1..5"), "x", "a..b means a sweep"),
        (text("1,2"), 1, "a comma means a sweep"),
        (text("a,b"), "x", "a comma means a sweep"),
        (text("64,64"), None, "written as JSON"),
        (text("64,64"), [1], "a list, written as JSON"),
        (js("true"), 1, "a whole number"),
        (js("1"), True, "true or false"),
        (js("1"), "x", "a text"),
        (js("NaN"), 1.0, "not JSON"),
        (js("[1e999]"), [1], "not JSON"),
        (js("hi"), "x", "not JSON"),
        (js("[" * 100000), [1], "not JSON"),
        (js("null"), 1, "a whole number"),
    ],
)
def test_other_values_are_refused_with_the_type(raw: RawValue, default: Param, says: str) -> None:
    with pytest.raises(SpecError, match=says.replace(".", r"\.")) as caught:
        typed("key", raw, default)
    assert caught.value.advice[-1] == "nothing was sent"


def test_a_text_with_a_comma_is_told_the_way_out() -> None:
    with pytest.raises(SpecError) as caught:
        typed("env", text("a,it's"), "x")
    assert caught.value.advice[1] == """  'env:="a,it'"'"'s"'"""
    assert typed("env", js('"a,it\'s"'), "x") == "a,it's"


def test_no_line_of_a_refusal_is_long() -> None:
    with pytest.raises(SpecError) as told:
        decode_json("lr", "x" * 5000)
    assert all(len(line) < 300 for line in (told.value.message, *told.value.advice))
