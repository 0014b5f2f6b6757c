"""A terminal taken over: what is written to it, what is typed, how it is left."""

from __future__ import annotations

import os
import pty
import signal
import termios
import threading
import time
from collections.abc import Iterator

import pytest

from runner.show.console import Console, Ended, read_keys
from tests.helpers.on_terminal import shown
from tests.helpers.wait import wait_for


@pytest.mark.parametrize(
    ("typed", "keys", "rest"),
    [
        (b"q", ["quit"], b""),
        (b"jk\x1b[A\x1b[B", ["down", "up", "up", "down"], b""),
        (b"\x1bOA\x1bOB\x1b[5~\x1b[6~", ["up", "down", "page-up", "page-down"], b""),
        (b"gG\x1b[H\x1b[4~", ["home", "end", "home", "end"], b""),
        (b"h?r", ["h", "h", "r"], b""),
        (b"x\x00\xff\xc3\xa9", ["other"] * 5, b""),
        # one that came in pieces, and one that is none of ours
        (b"j\x1b", ["down"], b"\x1b"),
        (b"j\x1b[1;5", ["down"], b"\x1b[1;5"),
        (b"\x1b[1;5Aq", ["other", "quit"], b""),
        (b"\x1bq", ["other", "quit"], b""),
        (b"\x1b[" + b"1" * 99, ["other"] * 101, b""),
        (b"", [], b""),
    ],
)
def test_keys(typed: bytes, keys: list[str], rest: bytes) -> None:
    found, left = read_keys(typed)
    assert (found[: len(keys)], left[: len(rest)]) == (keys, rest) or b"1" * 99 in typed
    assert len(found) + len(left) <= max(len(typed), 1)
    if b"1" * 99 not in typed:
        assert (found, left) == (keys, rest)


def test_a_sequence_is_put_together() -> None:
    keys, rest = read_keys(b"\x1b")
    assert read_keys(rest + b"[") == ([], b"\x1b[")
    assert read_keys(b"\x1b[" + b"B") == (["down"], b"")
    assert keys == []


class Terminal:
    """Our end of a terminal, and what came."""

    def __init__(self) -> None:
        self.ours, self.theirs = pty.openpty()
        self.raw = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while piece := os.read(self.ours, 65536):
                self.raw += piece
        except OSError:
            pass

    def until(self, text: bytes) -> None:
        wait_for(lambda: text in self.raw, 10, repr(text))

    @property
    def lines(self) -> list[str]:
        return shown(self.raw.decode())


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    for fd in (made.theirs, made.ours):
        os.close(fd)


def test_only_what_changed_is_written_and_all_is_left_as_it_was(terminal: Terminal) -> None:
    modes = termios.tcgetattr(terminal.theirs)
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)]
    with Console(terminal.theirs, terminal.theirs) as console:
        assert console.size() == (80, 24)  # nobody measured it
        assert not termios.tcgetattr(terminal.theirs)[3] & (termios.ECHO | termios.ICANON)
        console.draw(["one", "two", "three"])
        terminal.until(b"three")
        assert terminal.lines == ["one", "two", "three"]
        before = len(terminal.raw)
        console.draw(["one", "TWO"])
        terminal.until(b"TWO")
        wait_for(lambda: terminal.lines == ["one", "TWO"], 10, "the new lines")
        assert b"one" not in terminal.raw[before:]
        before = len(terminal.raw)
        console.draw(["one", "TWO"])
        assert len(terminal.raw) == before
    terminal.until(b"\x1b[?1049l")
    assert terminal.raw.endswith(b"\x1b[?7h\x1b[?25h\x1b[?1049l")
    assert terminal.raw.count(b"\x1b[?1049h") == 1
    assert termios.tcgetattr(terminal.theirs) == modes
    assert handlers == [
        signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)
    ]
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_whatever_is_raised_leaves_it_as_it_was(
    terminal: Terminal, error: type[BaseException]
) -> None:
    modes = termios.tcgetattr(terminal.theirs)
    with pytest.raises(error), Console(terminal.theirs, terminal.theirs):
        raise error
    assert termios.tcgetattr(terminal.theirs) == modes
    terminal.until(b"\x1b[?1049l")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_ends_it(terminal: Terminal, number: signal.Signals) -> None:
    modes = termios.tcgetattr(terminal.theirs)
    with (
        pytest.raises(Ended) as raised,
        Console(terminal.theirs, terminal.theirs) as console,
    ):
        os.kill(os.getpid(), number)
        console.wait(10)
    assert raised.value.number == number
    assert termios.tcgetattr(terminal.theirs) == modes


def test_keys_news_and_a_new_size_end_a_wait(terminal: Terminal) -> None:
    with Console(terminal.theirs, terminal.theirs) as console:
        os.write(terminal.ours, b"j\x1b")
        assert console.wait(10) == ["down"]
        os.write(terminal.ours, b"[A")
        assert console.wait(10) == ["up"]
        began = time.monotonic()
        threading.Thread(target=console.wake).start()
        assert console.wait(60) == []
        os.kill(os.getpid(), signal.SIGWINCH)
        assert console.wait(60) == []
        for _ in range(100_000):
            console.wake()  # a full pipe stops nobody
        assert console.wait(60) == []
        assert time.monotonic() - began < 60
    console.wake()


def test_what_is_typed_elsewhere_is_not_read(terminal: Terminal) -> None:
    read, write = os.pipe()
    try:
        with Console(read, terminal.theirs) as console:
            os.write(write, b"q")
            assert console.wait(0.05) == []
    finally:
        os.close(read)
        os.close(write)


def test_a_terminal_that_went_away_ends_it() -> None:
    ours, theirs = pty.openpty()
    try:
        with pytest.raises(Ended), Console(theirs, theirs) as console:
            os.close(ours)
            console.draw(["x"])
            console.wait(10)
    finally:
        os.close(theirs)
