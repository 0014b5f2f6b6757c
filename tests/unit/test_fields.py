from __future__ import annotations

from collections.abc import Callable

import pytest

from runner.errors import SpecError
from runner.fields import Fields, near, parse_duration, parse_size, said, valid_name


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("12h", 43200),
        ("2d", 172800),
        ("1h30m", 5400),
        ("1d2h3m4s", 93784),
    ],
)
def test_durations_are_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "1.5", "1_000", "5x", "30m1h", "h", "-5s", "1 h", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="90s, 15m, 12h, 2d or 1h30m"):
        parse_duration(text)


@pytest.mark.parametrize("parse", [parse_duration, parse_size])
def test_a_bare_number_is_told_that_it_lacks_a_unit(parse: Callable[[str], float]) -> None:
    with pytest.raises(ValueError, match="a bare number has no unit"):
        parse("90")


def test_sizes_are_powers_of_ten() -> None:
    assert [parse_size(text) for text in ("512m", "8g", "8G", "1k", "2t")] == [
        512 * 10**6,
        8 * 10**9,
        8 * 10**9,
        1000,
        2 * 10**12,
    ]


@pytest.mark.parametrize("text", ["8", "8gb", "8 g", "g", "-1g", "1.5g"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="512m or 8g"):
        parse_size(text)


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("worksapce", ["workspace", "image"], "workspace"),
        ("learnig_rate", ["lr", "learning_starts"], "lr"),
        ("lr", ["learning_rate", "gamma"], "learning_rate"),
        ("SSH", ["ssh", "jump"], "ssh"),
        ("zzz", ["ssh", "jump"], None),
    ],
)
def test_near_names(word: str, known: list[str], meant: str | None) -> None:
    assert near(word, known) == meant


@pytest.mark.parametrize("name", ["a", "gpu1", "A.b_c-9", "0" * 63])
def test_names(name: str) -> None:
    assert valid_name(name)


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a\n", "ä", "0" * 64, "a/b"])
def test_what_is_no_name(name: str) -> None:
    assert not valid_name(name)


def test_every_problem_is_told_at_once() -> None:
    fields = Fields(
        {
            "slots": "four",
            "transport": "fabrik",
            "worksapce": "~/x",
            "limits": {"shm": 8},
            "data": {},
        },
        where="hosts/gpu1.toml",
    )
    fields.integer("slots", None)
    fields.one_of("transport", "auto", ("auto", "fabric"))
    fields.text("workspace")
    fields.table("limits").size("shm", None)
    fields.later("data")
    with pytest.raises(SpecError) as caught:
        fields.finish()
    assert caught.value.message == "hosts/gpu1.toml:"
    assert caught.value.advice == (
        "slots is 'four'; it must be a whole number",
        "transport is 'fabrik'; it must be one of auto, fabric (did you mean 'fabric'?)",
        "limits.shm is 8; it must be a size such as '8g'",
        "data is not in this version yet",
        "worksapce is not known here (did you mean 'workspace'?)",
    )


def test_one_problem_stands_on_one_line() -> None:
    fields = Fields({"nproc": True}, where="agents/dqn.toml")
    fields.integer("nproc", 1)
    with pytest.raises(
        SpecError, match=r"^agents/dqn.toml: nproc is True; it must be a whole number$"
    ):
        fields.finish()


def test_unknown_keys_of_inner_tables_are_errors() -> None:
    fields = Fields({"limits": {"shmm": "8g"}}, where="f")
    fields.table("limits").size("shm", None)
    with pytest.raises(SpecError, match=r"limits.shmm is not known here \(did you mean 'shm'"):
        fields.finish()


def test_control_characters_never_reach_a_value_or_break_a_message() -> None:
    fields = Fields({"a": "x\x1b[31m", "b\nc": 1}, where="f")
    assert fields.text("a") is None
    with pytest.raises(SpecError) as caught:
        fields.finish()
    assert all(line.isprintable() for line in caught.value.advice)


def test_a_good_table_raises_nothing() -> None:
    fields = Fields({"a": "x", "n": 3, "d": "25s", "c": ["python", ""]}, where="f")
    assert (fields.text("a"), fields.integer("n", None, least=3)) == ("x", 3)
    assert (fields.duration("d", 1.0), fields.texts("c")) == (25.0, ("python", ""))
    fields.finish()


def test_long_values_are_cut_when_quoted() -> None:
    assert len(said("x" * 500)) == 60
