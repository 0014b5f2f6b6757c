"""The tables of docs/figures.md, in Markdown, of the last runs in results/bench/.

    python benchmarks/figures.py [NAME …]            # say `submit-near cut`; all without a word
    python benchmarks/figures.py docs/figures.md     # put them where that file has their marks

A table stands there between `<!-- NAME -->` and `<!-- end -->`; one that was not measured here is
left as it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pairs
from pairs import Goal, Pairs, Sample
from readings import Reading, shown

END = "<!-- end -->"
MARKED = re.compile(rf"<!-- ([\w.-]+) -->\n.*?{END}", re.S)


def pairs_table(body: Mapping[str, Any]) -> list[str]:
    """Of a comparison: a row for each side."""
    samples = {name: [Sample(**row) for row in rows] for name, rows in body["samples"].items()}
    goals = [
        Goal(row["side"], factor=row["factor"], extra_s=row["extra_s"]) for row in body["goals"]
    ]
    found = Pairs(str(body["name"]), samples, goals)
    rounds = len(found.samples[found.sides[0]])
    lines = [f"`{found.name}`, {_count(rounds, 'round')}", ""]
    lines += [f"| | wall | times {found.sides[0]} | goal |", "|---|---|---|---|"]
    for side in found.sides:
        wall = _seconds(pairs.spread(found.walls(side)).median)
        ratio = ""
        if side != found.sides[0]:
            ratio = _spread(pairs.spread(found.ratios(side)), 2 if _is_plain(found, side) else 3)
        words = [_goal(found, goal) for goal in goals if goal.side == side]
        lines.append(f"| {side} | {wall} | {ratio} | {'; '.join(words)} |")
    return lines


def readings_table(body: Mapping[str, Any]) -> list[str]:
    """Of readings: a row for each."""
    lines = [f"`{body['name']}`: {body['title']}", "", "| | | goal |", "|---|---|---|"]
    for row in body["readings"]:
        found = Reading(row["what"], row["unit"], row["values"], row["at_most"], row["note"])
        goal = ""
        if found.at_most is not None:
            goal = f"at most {found.at_most:g} {found.unit}: {_word(bool(found.is_met))}"
        cells = [found.what, "; ".join(filter(None, (shown(found), found.note))), goal]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _goal(found: Pairs, goal: Goal) -> str:
    word = _word(pairs.is_met(found, goal))
    if goal.factor is not None:
        return f"at most {goal.factor:g}: {word}"
    assert goal.extra_s is not None
    return f"at most {1000 * goal.extra_s:g} ms more: {word}"


def _word(met: bool) -> str:
    return "reached" if met else "**missed**"


def _is_plain(found: Pairs, side: str) -> bool:
    """Whether two digits are enough for its ratio."""
    return pairs.spread(found.ratios(side)).median >= 0.1


def _spread(found: pairs.Spread, digits: int) -> str:
    if found.low == found.high:
        return f"{found.median:.{digits}f}"
    return f"{found.median:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.0f} ms"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def table(body: Mapping[str, Any]) -> list[str]:
    """Of any result; empty for those that have a form of their own."""
    if "samples" in body:
        return pairs_table(body)
    return readings_table(body) if "readings" in body else []


def filled(text: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """A document with what was measured at its marks."""

    def put(found: re.Match[str]) -> str:
        lines = table(results.get(found[1], {}))
        return "\n\n".join([f"<!-- {found[1]} -->", "\n".join(lines), END]) if lines else found[0]

    return MARKED.sub(put, text)


def main(words: list[str]) -> int:
    """Print or put them; 1 when there is none."""
    documents = [Path(word) for word in words if word.endswith(".md")]
    names = [word for word in words if not word.endswith(".md")]
    files = [pairs.RESULTS / f"{name}.json" for name in names]
    files = files or sorted(pairs.RESULTS.glob("*.json"))
    results = {path.stem: read(path) for path in files}
    tables = list(filter(None, map(table, results.values())))
    if not tables:
        print("nothing was measured yet: make bench", file=sys.stderr)
        return 1
    for path in documents:
        path.write_text(filled(path.read_text(), results))
    if not documents:
        print("\n\n".join("\n".join(lines) for lines in tables))
    return 0


def read(path: Path) -> dict[str, Any]:
    """One result. Exits where there is none."""
    try:
        body: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        sys.exit(f"{path}: not there; run its benchmark, or name one of results/bench/")
    return body


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
