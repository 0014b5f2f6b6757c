"""What came of the cells, as a table of faults by phases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.faults.cells import CELLS, FAULTS, MEANING, PHASES, Cell

Row = Mapping[str, Any]
"""What a test kept of its cell: `id`, `text`, `right`, and the figures that are added up."""
SUMS = ("starts", "double_starts", "steps_repeated")


def render(rows: list[Row], minutes: float) -> str:
    """Markdown: totals, the table, what is left out and why."""
    told = {str(row["id"]): row for row in rows}
    lines = ["| fault | " + " | ".join(PHASES) + " |", "|---" * (len(PHASES) + 1) + "|"]
    for fault in FAULTS:
        boxes = [_box([c for c in CELLS if (c.fault, c.phase) == (fault, p)], told) for p in PHASES]
        lines.append(f"| {fault} | " + " | ".join(boxes) + " |")
    return "\n".join([*_totals(rows, minutes), "", *lines])


def _totals(rows: list[Row], minutes: float) -> list[str]:
    right = [row for row in rows if row["right"]]
    figures = {name: sum(int(row[name]) for row in rows if name in row) for name in SUMS}
    return [
        f"{len(rows)} cells tried in {minutes:.1f} minutes, {len(right)} as they must be, "
        f"{len(rows) - len(right)} not; {len(_not_tried(rows))} were not tried.",
        f"Runs lost {_count(rows, 'lost')}, double starts {figures['double_starts']}, "
        f"false failures {_count(rows, 'false_failure')}, "
        f"wrong causes {_count(rows, 'wrong_cause')}; "
        f"{figures['starts']} starts, {figures['steps_repeated']} steps repeated.",
    ]


def _not_tried(rows: list[Row]) -> set[str]:
    return {c.id for c in CELLS if not c.left_out} - {str(row["id"]) for row in rows}


def _count(rows: list[Row], name: str) -> int:
    return sum(bool(row.get(name)) for row in rows)


def _box(cells: list[Cell], told: Mapping[str, Row]) -> str:
    """What the record said, each answer once, with the cells that gave it where they differ."""
    answers: dict[str, list[str]] = {}
    for cell in cells:
        row = told.get(cell.id)
        if row is not None:
            text = str(row["text"]) if row["right"] else f"**{row['text']}**"
            answers.setdefault(text, []).append(f"{cell.runtime} {cell.nproc}")
    if not answers:
        reasons = {cell.left_out for cell in cells} - {""}
        return "–" if reasons or not cells else "not tried"
    if len(answers) == 1:
        return next(iter(answers))
    return "; ".join(f"{text} ({', '.join(who)})" for text, who in answers.items())


def left_out() -> list[str]:
    """Why cells are left out, each reason once."""
    return sorted({cell.left_out for cell in CELLS if cell.left_out})


def meanings() -> str:
    """What each fault is."""
    rows = [f"| {fault} | {MEANING[fault]} |" for fault in FAULTS]
    return "\n".join(["| fault | what is done |", "|---|---|", *rows])
