"""What came of links that were cut, as a table: printed, and written where it is wanted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

KEPT = "cut"
DOCUMENT = "RUNNER_CUTS_DOCUMENT"
"""Names the file whose part below `MARK` becomes the table; set by `make faults`."""
MARK = "<!-- what follows is written by make faults -->"
HEAD = (
    *("command", "cuts", "places", "exit 0", "exit 3, 4", "exit 9"),
    *("runs", "log bytes", "files", "the same words again", "wrong"),
)
Row = Mapping[str, Any]


def summarize(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the cuts of this session came to."""
    rows = [
        body
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, body in report.user_properties
        if name == KEPT and isinstance(body, dict)
    ]
    if not rows:
        return
    text = render(rows)
    terminalreporter.section("cuts")
    terminalreporter.write_line(text)
    named = os.environ.get(DOCUMENT)
    if named:
        path = Path(named)
        head = path.read_text().partition(MARK)[0] if path.exists() else "# Cuts\n\n"
        path.write_text(f"{head}{MARK}\n\n{text}\n")


def render(rows: Iterable[Row]) -> str:
    """Markdown: a line for each command."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["name"]), []).append(row)
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    lines += ["| " + " | ".join(_line(name, each)) + " |" for name, each in found.items()]
    wrong = [row for each in found.values() for row in each if "wrong" in row]
    lines += ["", f"{sum(map(len, found.values()))} cuts, {len(wrong)} of them wrong."]
    lines += [f"- {row['name']}, {row['cut']}, {row['how']}: {row['wrong']}" for row in wrong]
    return "\n".join(lines)


def _line(name: str, rows: list[Row]) -> list[str]:
    ends = Counter(row.get("status") for row in rows)
    again = len(rows) - ends[0]
    return [
        name,
        str(len(rows)),
        str(len({row["cut"] for row in rows})),
        *(str(ends[0]), str(ends[3] + ends[4]), str(ends[9])),
        _told(rows, "runs", "{0:g} for each submit"),
        _told(rows, "lost", "{0:g} lost, {1:g} repeated", "repeated"),
        _told(rows, "broken", "{0:g} not whole"),
        f"right {again} times" if again else "–",
        str(sum("wrong" in row for row in rows)),
    ]


def _told(rows: list[Row], key: str, text: str, *others: str) -> str:
    """The worst of what the rows say."""
    if not any(key in row for row in rows):
        return "–"
    return text.format(*(max(row.get(name, 0) for row in rows) for name in (key, *others)))
