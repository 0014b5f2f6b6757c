"""A stream that begins again: with programs of this machine in ssh's place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.carriers.failures import Dropped
from runner.carriers.local import ChildCarrier
from runner.carriers.steady import SteadyCarrier
from runner.errors import AuthRefused, RunnerError, Unreachable
from tests.helpers.wait import wait_for

SILENT = "exec sleep 60"
SPEAKS = "echo two; exec cat"


class Starts:
    """Starts the scripts one after the other, the last again and again."""

    def __init__(
        self, *scripts: str, was_there: bool = False, error: RunnerError | None = None
    ) -> None:
        self._scripts = list(scripts)
        self._was_there = was_there
        self._error = error or Unreachable("lost")
        self.children: list[ChildCarrier] = []
        self.let_go = 0

    def __call__(self) -> tuple[ChildCarrier, Callable[[], None] | None]:
        script = self._scripts[min(len(self.children), len(self._scripts) - 1)]
        self.children.append(ChildCarrier(["sh", "-c", script], explain=lambda *_: self._error))
        return self.children[-1], self._let_go if self._was_there else None

    def _let_go(self) -> None:
        self.let_go += 1

    def all_ended(self) -> bool:
        return all(child._child.poll() is not None for child in self.children)


def steady(starts: Starts, silence_s: float = 0.3) -> SteadyCarrier:
    return SteadyCarrier(starts, silence_s=silence_s, limit_s=10)


def read_all(carrier: SteadyCarrier) -> bytes:
    data = b""
    while piece := carrier.read(100):
        data += piece
    carrier.failure()  # asked before it is closed, as by whoever reads to the end
    carrier.close()
    return data


def test_silence_over_a_connection_that_was_there_makes_a_new_one() -> None:
    starts = Starts(SILENT, SPEAKS, was_there=True)
    carrier = steady(starts)
    assert carrier.read(100) == b"two\n"
    carrier.write(b"more")
    assert carrier.read(100) == b"more"
    carrier.close()
    assert (len(starts.children), starts.let_go, starts.all_ended()) == (2, 1, True)


def test_a_host_that_is_only_slow_is_not_given_up() -> None:
    starts = Starts("sleep 1; echo one; exec sleep 60", SILENT, was_there=True)
    carrier = steady(starts)
    assert carrier.read(100) == b"one\n"
    carrier.close()
    assert len(starts.children) == 2 and starts.all_ended()


def test_a_new_connection_is_waited_for(tmp_path: Path) -> None:
    starts = Starts("sleep 1; echo one", SPEAKS)
    assert read_all(steady(starts)) == b"one\n" and len(starts.children) == 1


def test_what_spoke_is_never_started_again() -> None:
    starts = Starts("echo one; exit 1", SPEAKS, was_there=True, error=Dropped("x"))
    carrier = steady(starts)
    assert read_all(carrier) == b"one\n"
    assert isinstance(carrier.failure(), Dropped) and len(starts.children) == 1


def test_what_was_written_to_is_never_started_again() -> None:
    starts = Starts("read line; exit 1", SPEAKS, was_there=True, error=Dropped("x"))
    carrier = steady(starts)
    carrier.write(b"line\n")
    assert read_all(carrier) == b"" and len(starts.children) == 1


def test_a_dropped_connection_is_made_again_with_its_input_ended_too() -> None:
    starts = Starts("exit 255", "exit 255", "cat; echo end", error=Dropped("x"))
    carrier = steady(starts)
    carrier.close_write()
    assert read_all(carrier) == b"end\n" and len(starts.children) == 3
    assert carrier.failure() is None


def test_a_shared_connection_that_ended_is_made_again_once() -> None:
    starts = Starts("exit 255", was_there=True)
    carrier = steady(starts)
    assert read_all(carrier) == b"" and isinstance(carrier.failure(), Unreachable)
    assert (len(starts.children), starts.let_go) == (2, 1)


@pytest.mark.parametrize("was_there", [False, True])
def test_a_refused_key_is_not_tried_again(was_there: bool) -> None:
    starts = Starts("exit 255", was_there=was_there, error=AuthRefused("no"))
    carrier = steady(starts)
    assert read_all(carrier) == b"" and isinstance(carrier.failure(), AuthRefused)
    assert len(starts.children) == 1


def test_of_two_that_fail_the_new_ones_reason_is_told() -> None:
    starts = Starts("sleep 1; exit 0", "exit 255", was_there=True, error=AuthRefused("no"))
    carrier = steady(starts)
    assert read_all(carrier) == b"" and isinstance(carrier.failure(), AuthRefused)


def test_closing_ends_both_while_they_are_waited_for() -> None:
    starts = Starts(SILENT, was_there=True)
    carrier = steady(starts, 0.1)
    threading.Timer(0.6, carrier.close).start()
    began = time.monotonic()
    assert carrier.read(1) == b"" and time.monotonic() - began < 8
    wait_for(starts.all_ended, 5, "both to end")
    assert len(starts.children) == 2
