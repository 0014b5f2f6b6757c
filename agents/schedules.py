"""Options that change while a training goes on, by its steps alone."""

from __future__ import annotations


def straight(start: float, end: float, done: float) -> float:
    """From start to end in a straight line. done: share of the way, more than 1 counts as 1."""
    return start + (end - start) * min(1.0, done)
