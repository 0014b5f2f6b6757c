"""Connections are made one at a time; who waits never waits for long."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from runner.carriers import gate


@pytest.fixture
def control(tmp_path: Path) -> Path:
    return tmp_path / "c"


def test_the_second_waits_until_the_first_has_its_socket(control: Path) -> None:
    gate.wait_turn(control)
    passed: list[float] = []
    began = time.monotonic()

    def second() -> None:
        gate.wait_turn(control)
        passed.append(time.monotonic() - began)

    thread = threading.Thread(target=second)
    thread.start()
    time.sleep(0.2)
    assert not passed
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(control))
        listener.listen()
        thread.join(2)
        assert passed and passed[0] < 2


def test_a_first_that_never_gets_there_holds_nobody_for_long(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "_HOLD_S", 0.3)
    gate.wait_turn(control)
    began = time.monotonic()
    gate.wait_turn(control)
    assert time.monotonic() - began < 2


def test_an_attempt_that_ended_lets_the_next_begin(control: Path) -> None:
    release = gate.wait_turn(control)
    release()
    began = time.monotonic()
    gate.wait_turn(control)()
    assert time.monotonic() - began < 1


def test_a_socket_that_was_left_behind_is_none(control: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(control))
    assert control.exists()
    began = time.monotonic()
    gate.wait_turn(control)
    assert time.monotonic() - began < 1
