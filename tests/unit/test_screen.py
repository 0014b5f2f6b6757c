from __future__ import annotations

import random
import re

import pytest

from runner.show.screen import Paint, TailFilter, cut, escaped, padded, table, width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 日本", "plain ü 日本"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\tc\rd", "a\\nb\\tc\\x0dd"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("\x9b31m", "\\x9b31m"),
        ("\udcff", "\\xff"),
        ("\u00a0\u3000", "  "),
        ("\U000e0041", "\\U000e0041"),
        ("\u3164\u2800", "\\u3164\\u2800"),
        ("e\u0301", "e\u0301"),
    ],
)
def test_what_could_play_with_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_width_is_that_on_screen() -> None:
    assert [width(text) for text in ("abc", "日本", "e\u0301", "")] == [3, 4, 1, 0]


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 4, "abc…"),
        ("日本語", 4, "日…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
    ],
)
def test_a_long_text_is_cut_by_width(text: str, columns: int, shown: str) -> None:
    assert cut(text, columns) == shown
    assert width(cut(text, columns)) <= columns


def test_padding_counts_columns() -> None:
    assert padded("日", 4) + "|" == "日  |"
    assert padded("7", 3, right=True) == "  7"


def test_columns_are_aligned_and_numbers_stand_right() -> None:
    lines = table([("RUN", "N", "NOTE"), ("日本", "7", "a"), ("dqn-7k3fa", "1830", "")], right=[1])
    assert lines == ["RUN           N  NOTE", "日本          7  a", "dqn-7k3fa  1830"]


def test_only_a_terminal_cuts_the_last_column() -> None:
    rows = [("RUN", "NOTE"), ("dqn-7k3fa", "a long note that does not fit")]
    assert table(rows)[1].endswith("fit")
    assert table(rows, columns=20)[1] == "dqn-7k3fa  a long n…"


def test_colours_do_not_count_and_never_replace_a_word() -> None:
    rows = [(("FAILED", "red"), "x"), (("OK", None), "y")]
    assert table(rows, paint=Paint(True)) == ["\x1b[31mFAILED\x1b[0m  x", "OK      y"]
    assert table(rows) == ["FAILED  x", "OK      y"]


def test_cells_are_escaped() -> None:
    assert table([("\x1b[2J", "x")]) == ["\\x1b[2J  x"]


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m\n", "\x1b[1;31mred\x1b[0m\n"),
        (b"50%\r\x1b[K60%\tx", "50%\r\x1b[K60%\tx"),
        (b"\x1b[2Jx", "\\x1b[2Jx"),
        (b"\x1b]52;c;AAAA\x07", "\\x1b]52;c;AAAA\\x07"),
        (b"\x1b[8mhidden", "\\x1b[8mhidden"),
        (b"\x1b[38;5;8mgrey\x1b[m", "\x1b[38;5;8mgrey\x1b[m"),
        (b"\x1b[38:5:8mgrey\x1b[m", "\x1b[38:5:8mgrey\x1b[m"),
        (b"\x1b[38:5:1;2;8mhidden", "\\x1b[38:5:1;2;8mhidden"),
        (b"\x1b[38;5:1;8mhidden", "\\x1b[38;5:1;8mhidden"),
        (b"\x1b[48;2;8;8;8mx\x1b[0m", "\x1b[48;2;8;8;8mx\x1b[0m"),
        (b"a\x08b\x00", "a\\x08b\\x00"),
        (b"\xff\xe6\x97\xa5", "\\xff日"),
        (b"\xc2\x9b31m", "\\x9b31m"),
        (b"\xe2\x80\xae", "\\u202e"),
    ],
)
def test_tail_passes_colours_and_line_keeping_only(data: bytes, shown: str) -> None:
    passed = TailFilter()
    assert passed.feed(data) + passed.finish() == shown


def test_cuts_anywhere_change_nothing() -> None:
    data = (
        "ü日\x1b[1;31mred\x1b[0m \x1b[K\x1b]0;t\x07 \x1b[9999".encode() + b"\xe6\x97 \xff\r\n\x1b"
    )
    whole = TailFilter()
    wanted = whole.feed(data) + whole.finish()
    for seed in range(200):
        rng, passed, shown, rest = random.Random(seed), TailFilter(), "", data
        while rest:
            size = rng.randint(1, 4)
            shown += passed.feed(rest[:size])
            rest = rest[size:]
        assert shown + passed.finish() == wanted


def test_without_colours_theirs_are_dropped_and_the_text_stays() -> None:
    passed = TailFilter(colours=False)
    assert (
        passed.feed(b"\x1b[1;31mred\x1b[0m\x1b[K\x1b[2J") + passed.finish() == "red\x1b[K\\x1b[2J"
    )


def test_a_colour_left_on_is_ended() -> None:
    passed = TailFilter()
    assert passed.feed(b"\x1b[31mred") + passed.finish() == "\x1b[31mred\x1b[0m"


def test_an_endless_sequence_is_not_waited_for() -> None:
    passed = TailFilter()
    shown = "".join(passed.feed(b"1" * 10) for _ in range(1))
    shown = passed.feed(b"\x1b[" + b"1;" * 100)
    assert shown.startswith("\\x1b[1;1;")


def test_text_before_an_unfinished_sequence_is_shown_at_once() -> None:
    passed = TailFilter()
    assert passed.feed(b"line\n\x1b[3") == "line\n"
    assert passed.feed(b"2mok") == "\x1b[32mok"


ALPHABET = [
    *(bytes([byte]) for byte in range(256)),
    *(
        b"\x1b[31m",
        b"\x1b[K",
        b"\x1b[2K",
        b"\x1b[2J",
        b"\x1b]0;t\x07",
        b"\x1b[",
        b"\x1b",
        b"m",
        b"8;",
    ),
    *(b"\x9b31m", b"\xc2\x9b", "\u202e".encode(), "\u200b".encode(), "日本e\u0301".encode()),
    *(b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe6\x97", b"text of a job ", b"\r\n", b"\t"),
    *("\U000e0041".encode(), "\u2028".encode(), "\ufeff".encode(), "\u3164".encode()),
]
PASSED = re.compile(r"\x1b\[[0-9;:]*m|\x1b\[[0-2]?K|[\r\n\t]")
"""All that may reach a terminal beside what can be printed."""


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("colours", [True, False])
def test_no_bytes_whatever_reach_a_terminal_as_more_than_text(seed: int, colours: bool) -> None:
    rng = random.Random(seed)
    data = b"".join(rng.choices(ALPHABET, k=2000))
    passed = TailFilter(colours=colours)
    wanted = passed.feed(data) + passed.finish()
    left = PASSED.sub("", wanted)
    assert left.isprintable() and escaped(left) == left
    assert colours or "m" not in "".join(re.findall(r"\x1b\[[0-9;:]*(.)", wanted))
    passed, shown, rest = TailFilter(colours=colours), "", data
    while rest:
        size = rng.choice([1, 2, 3, 50])
        shown += passed.feed(rest[:size])
        rest = rest[size:]
    assert shown + passed.finish() == wanted
