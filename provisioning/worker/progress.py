"""What a job says of itself in its progress file: lines of JSON, one write each."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import records
from plain import is_number


def last(path: str) -> Dict[str, Any]:
    """{"step", "metrics", "t"} as last said; metrics holds the newest value of each name seen."""
    out: Dict[str, Any] = {"step": None, "metrics": {}, "t": None}
    for row in records.read_last_lines(path):
        if is_number(row.get("step")):
            out["step"] = int(row["step"])
        if is_number(row.get("t")):
            out["t"] = row["t"]
        out["metrics"].update(_numbers(row.get("metrics")))
    return out


def last_fault(path: str, start: int = 0) -> Optional[Dict[str, Any]]:
    """The fault that the job named last, from a byte offset on: {"fault", "step", "text"}."""
    fault = None
    for _, row in records.read_lines(path, start):
        if isinstance(row.get("fault"), str):
            fault = row
    return fault


def points(path: str, most: int) -> List[List[Any]]:
    """[[step, metrics], …] by step, thinned to about `most`; the last word on a step counts."""
    by_step: Dict[int, Dict[str, float]] = {}
    for _, row in records.read_lines(path):
        if is_number(row.get("step")):
            by_step.setdefault(int(row["step"]), {}).update(_numbers(row.get("metrics")))
    rows: List[List[Any]] = [[step, by_step[step]] for step in sorted(by_step) if by_step[step]]
    stride = max(1, len(rows) // max(1, most))
    rare = [row for row in rows if "eval/return" in row[1]]
    thinned = rows[::stride] + rows[-1:]
    keep: Dict[int, List[Any]] = {
        row[0]: row for row in thinned + (rare if len(rare) <= most else rare[::stride])
    }
    return [keep[step] for step in sorted(keep)]


def _numbers(table: Any) -> Dict[str, float]:
    if not isinstance(table, dict):
        return {}
    return {str(name): value for name, value in table.items() if is_number(value)}
