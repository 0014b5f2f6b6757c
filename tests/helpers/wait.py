"""Waiting for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# short beside everything waited for here, long beside one look
STEP_S = 0.02


def wait_for(look: Callable[[], T], limit_s: float, what: str, step_s: float = STEP_S) -> T:
    """The first true value that `look` gives; AssertionError naming `what` after `limit_s`.

    When the last look gave something false but telling (a list, a string), it is quoted.
    """
    deadline = time.monotonic() + limit_s
    while True:
        seen = look()
        if seen:
            return seen
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {limit_s:g} s for {what}; last seen: {seen!r}")
        time.sleep(step_s)


def stays(look: Callable[[], object], for_s: float, what: str, step_s: float = STEP_S) -> None:
    """AssertionError when `look` gives something false at any time within `for_s`."""
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        assert look(), f"{what} did not stay so for {for_s:g} s"
        time.sleep(step_s)


def settles(look: Callable[[], object], for_s: float, limit_s: float, what: str) -> None:
    """Returns once `look` has given something true for `for_s` without a break.

    AssertionError naming `what` after `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    since = None
    while since is None or time.monotonic() - since < for_s:
        assert time.monotonic() < deadline, f"waited {limit_s:g} s for {what} to stay so"
        if not look():
            since = None
        elif since is None:
            since = time.monotonic()
        time.sleep(STEP_S)
