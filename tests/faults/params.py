"""Cells as the parameters of a test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.cells import SAMPLE, Cell


def params(cells: list[Cell]) -> list[Any]:
    """Those outside the sample are slow."""
    found = []
    for cell in cells:
        marks = [] if cell in SAMPLE else [pytest.mark.slow]
        found.append(pytest.param(cell, id=cell.id, marks=marks))
    return found
