"""Cells as the parameters of a test."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.cells import SAMPLE, Cell


def params(cells: list[Cell]) -> list[Any]:
    """Those outside the sample are slow; what is known to be wrong must fail."""
    found = []
    for cell in cells:
        marks = [] if cell in SAMPLE else [pytest.mark.slow]
        if cell.wrong:
            marks.append(pytest.mark.xfail(strict=True, reason=cell.wrong))
        found.append(pytest.param(cell, id=cell.id, marks=marks))
    return found
