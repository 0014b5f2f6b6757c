"""Fixtures of the unit tests."""

from tests.helpers.agents import at_walks, run, walks

__all__ = ["at_walks", "run", "walks"]
