"""Schedules: where they begin and end."""

from __future__ import annotations

import pytest

import tests.helpers.agents  # noqa: F401  puts agents/ on the path

# isort: split
from schedules import straight


def test_the_end_is_reached_at_the_last_step_only_and_kept() -> None:
    values = [straight(0.01, 0.001, step / 1000) for step in range(1001)]
    assert values[0] == 0.01 and values[500] == pytest.approx(0.0055)
    assert values[1000] == pytest.approx(0.001) and min(values[:1000]) > 0.001
    assert straight(0.01, 0.001, 1.01) == values[1000]
    assert straight(0.0, 2.0, 0.25) == 0.5
