"""What a job says of itself in its progress file: lines of JSON, one write each."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import records
from paths import RunPaths
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


def said(paths: RunPaths) -> Dict[str, Any]:
    """The same of a run: by rank 0's lines, or where it writes none by what its launcher read in
    event files (`scalars.py`)."""
    found = last(paths.progress(0))
    if found["step"] is not None or found["metrics"]:
        return found
    kept = records.read(paths.scalars) or {}
    return {
        "step": int(kept["step"]) if is_number(kept.get("step")) else None,
        "metrics": _numbers(kept.get("metrics")),
        "t": kept["t"] if is_number(kept.get("t")) else None,
    }


def last_fault(path: str, start: int = 0) -> Optional[Dict[str, Any]]:
    """The fault that the job named last, from a byte offset on: {"fault", "step", "text"}."""
    fault = None
    for _, row in records.read_lines(path, start):
        if isinstance(row.get("fault"), str):
            fault = row
    return fault


def points(path: str, most: int, names: Optional[List[str]] = None) -> List[List[Any]]:
    """[[step, metrics, t], …] by step, thinned to about `most`; the last word on a step counts.

    names: the metrics that are wanted; steps that have none of them are left out. t is None where
    the job said no time.
    """
    by_step: Dict[int, List[Any]] = {}
    for _, row in records.read_lines(path):
        if is_number(row.get("step")):
            numbers = _numbers(row.get("metrics"), names)
            point = by_step.setdefault(int(row["step"]), [{}, None])
            point[0].update(numbers)
            if numbers and is_number(row.get("t")):
                point[1] = row["t"]
    return thinned([[step, *by_step[step]] for step in sorted(by_step) if by_step[step][0]], most)


def thinned(rows: List[List[Any]], most: int) -> List[List[Any]]:
    """About `most` of the rows; evaluations, which are rare, stay."""
    stride = max(1, len(rows) // max(1, most))
    rare = [row for row in rows if "eval/return" in row[1]]
    even = rows[::stride] + rows[-1:]
    keep: Dict[int, List[Any]] = {
        row[0]: row for row in even + (rare if len(rare) <= most else rare[::stride])
    }
    return [keep[step] for step in sorted(keep)]


def ran_at(t: Any, attempts: List[Tuple[float, Optional[float]]]) -> Optional[float]:
    """How long a run had run at a time of the clock, without the pauses between its attempts.

    attempts: when each began and ended (None: it did not), oldest first. None where t is no time
    of theirs.
    """
    if not is_number(t):
        return None
    ran, found = 0.0, None
    for began, ended in attempts:
        if t >= began:
            last = t if ended is None else min(t, ended)
            found = ran + max(0.0, last - began)
        ran += max(0.0, (began if ended is None else ended) - began)
    return None if found is None else round(found, 3)


def _numbers(table: Any, names: Optional[List[str]] = None) -> Dict[str, float]:
    if not isinstance(table, dict):
        return {}
    return {
        str(name): value
        for name, value in table.items()
        if is_number(value) and (names is None or name in names)
    }
