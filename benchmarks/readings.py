"""Figures that are no pair: a number a round, held against a number that it is to stay below."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pairs


@dataclass(frozen=True)
class Reading:
    """One thing that was measured, once a round or oftener."""

    what: str
    unit: str
    values: Sequence[float]
    at_most: float | None = None
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the median keeps to the goal; None without one."""
        return None if self.at_most is None else pairs.spread(self.values).median <= self.at_most


# pure


def percentile(numbers: Sequence[float], share: float) -> float:
    """The smallest of `numbers` that `share` of them do not exceed."""
    ordered = sorted(numbers)
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]


def shown(reading: Reading) -> str:
    """Median (lowest to highest) with the unit."""
    found = pairs.spread(reading.values)
    text = f"{found.median:.4g}"
    if found.low != found.high:
        text += f" ({found.low:.4g} to {found.high:.4g})"
    return f"{text} {reading.unit}"


def verdict(reading: Reading) -> str:
    """What was asked for, and whether it was reached; empty without a goal."""
    if reading.at_most is None:
        return ""
    word = "reached" if reading.is_met else "MISSED"
    return f"at most {reading.at_most:g} {reading.unit}: {word}"


def lines(title: str, found: Sequence[Reading]) -> list[str]:
    """For people."""
    width = max(len(reading.what) for reading in found)
    body = [title]
    for reading in found:
        extra = "; ".join(filter(None, (verdict(reading), reading.note)))
        body.append(f"  {reading.what:{width}}  {shown(reading):>32}  {extra}".rstrip())
    return body


def document(name: str, title: str, found: Sequence[Reading]) -> dict[str, object]:
    """The same with every number, for a JSON file."""
    rows = [
        {
            "what": reading.what,
            "unit": reading.unit,
            "values": list(reading.values),
            "at_most": reading.at_most,
            "met": reading.is_met,
            "note": reading.note,
        }
        for reading in found
    ]
    return {"format": 1, "name": name, "title": title, "readings": rows}


# doing


def report(name: str, title: str, found: Sequence[Reading]) -> None:
    """Print the lines and leave all numbers in results/bench/."""
    print("\n".join(lines(title, found)), flush=True)
    pairs.RESULTS.mkdir(parents=True, exist_ok=True)
    path = pairs.RESULTS / f"{name}.json"
    path.write_text(json.dumps(document(name, title, found), indent=1) + "\n")
    print(f"  all numbers: {path}\n", flush=True)
