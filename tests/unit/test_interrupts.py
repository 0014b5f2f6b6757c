"""Ctrl-C is held back only between `begin` and the end of the context, and only once."""

from __future__ import annotations

import os
import signal

import pytest

from runner.interrupts import Held


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_before_begin_it_acts_at_once() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Held():
        interrupt()
        done.append("after")
    assert not done


def test_after_begin_it_waits_for_the_end() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Held() as held:
        held.begin()
        interrupt()
        done.append("after")
    assert done == ["after"]


def test_after_withdraw_it_acts_at_once() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Held() as held:
        held.begin()
        held.withdraw()
        assert not held.began
        interrupt()
        done.append("after")
    assert not done


def test_one_held_back_acts_at_withdraw() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Held() as held:
        held.begin()
        interrupt()
        done.append("before")
        held.withdraw()
        done.append("after")
    assert done == ["before"]


def test_a_second_one_acts_at_once() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), Held() as held:
        held.begin()
        interrupt()
        interrupt()
        done.append("after")
    assert not done


def test_error_within_is_not_replaced_and_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="ours"), Held() as held:
        held.begin()
        interrupt()
        raise ValueError("ours")
    assert signal.getsignal(signal.SIGINT) is before
