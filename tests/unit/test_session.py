"""Commands framed by a mark, so that what login shells print never mixes into results."""

from __future__ import annotations

import pytest

from runner.carriers.session import ChildSession, Collector, completed, framed, new_mark
from runner.errors import HostError, TimedOut, Unreachable


def test_what_comes_before_the_mark_is_dropped() -> None:
    out = Collector("MARK")
    for piece in (b"Welcome!\nMA", b"RK", b"answer", b"\n"):
        out.feed(piece)
    assert bytes(out.data) == b"answer\n" and out.before == "Welcome!"


def test_lines_are_told_whole_and_only_after_the_mark() -> None:
    lines: list[str] = []
    out = Collector("MARK", lines.append)
    for piece in (b"junk\nMARKone\ntw", b"o\r\nthree"):
        out.feed(piece)
    assert lines == ["one", "two"]


def test_of_output_without_an_end_the_first_and_the_last_bytes_are_kept() -> None:
    lines: list[str] = []
    out = Collector("MARK", lines.append)
    out.feed(b"MARKfirst\n")
    for _ in range(50):
        out.feed(b"x" * (1 << 20))
    out.feed(b"\nlast\n")
    assert out.data.startswith(b"first\n") and out.data.endswith(b"x\nlast\n")
    assert len(out.data) < 34 << 20
    assert [lines[0], lines[-1]] == ["first", "last"] and len(lines[1]) < 3 << 20


def test_a_shell_that_runs_nothing_is_an_error_that_quotes_it() -> None:
    out, err = Collector("MARK"), Collector("MARK")
    out.feed(b"This account is currently not available.\n")
    with pytest.raises(HostError, match="runs no commands") as caught:
        completed("gpu1", 1, out, err)
    assert caught.value.advice == ("it said: This account is currently not available.",)


def test_a_command_without_its_status_was_cut() -> None:
    out, err = Collector("MARK"), Collector("MARK")
    out.feed(b"MARKhalf")
    err.feed(b"MARKoops")
    with pytest.raises(Unreachable, match="lost"):
        completed("gpu1", 255, out, err)
    err.feed(b"MARK255")
    done = completed("gpu1", 255, out, err)
    assert (done.status, done.stdout, done.stderr) == (255, b"half", b"oops")


def test_marks_differ_each_time() -> None:
    assert new_mark() != new_mark()


def test_a_framed_command_gives_exactly_its_own_output() -> None:
    chatty = ["sh", "-c", 'echo RC; echo rc >&2; "$@"', "-"]
    session = ChildSession("here", lambda argv: [*chatty, *argv], explain=lambda status, said: None)
    done = session.run(["sh", "-c", "cat; echo err >&2; exit 255"], input=b"\0in\n", timeout_s=10)
    assert (done.status, done.stdout, done.stderr) == (255, b"\0in\n", b"err\n")
    assert framed("m", ["a"])[-1] == "a"


def test_a_command_that_takes_too_long_is_ended() -> None:
    with pytest.raises(TimedOut, match="no answer for"):
        ChildSession("here", list).run(["sleep", "30"], timeout_s=0.2)


def test_a_program_that_is_not_there_is_status_127() -> None:
    assert ChildSession("here", list).run(["no-such-program"], timeout_s=5).status == 127
