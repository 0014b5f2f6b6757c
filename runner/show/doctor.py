"""How findings are shown: faults first, each with its way out; what is well in short (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from runner.doctor.findings import FAULT, NOTE, OK, Check, HostHealth
from runner.show.screen import Paint, escaped, padded, width
from runner.show.units import plural, took

MOST_OK = 12
"""How many of the things that are well are named; the rest is counted."""
_WORDS = {FAULT: ("FAULT", "red"), NOTE: ("note", "yellow"), OK: ("ok", None)}
_SKIPPED = ("skip", "dim")
_GAP = "  "
_PLAIN_COLUMNS = 80
"""Where the things that are well go on to the next line, when piped too."""


def header(health: HostHealth) -> str:
    """`gpu1  drl@10.20.0.7 through login.lab, 0.9s, 31 checks`."""
    seconds = took(health.took_s)
    return f"{health.name}  {health.way}, {seconds}, {plural(len(health.checks), 'check')}"


def lines(
    health: HostHealth, *, everything: bool, columns: int | None = None, paint: Paint | None = None
) -> list[str]:
    """One host's findings; columns: where lines break, None for nowhere."""
    paint = paint or Paint()
    told = [check for check in health.checks if everything or check.state in (FAULT, NOTE)]
    topics = max((width(check.topic) for check in told), default=0)
    start = len("FAULT") + len(_GAP) + topics + len(_GAP)
    shown: list[str] = []
    for check in told:
        word, colour = _WORDS.get(check.state, _SKIPPED)
        first, *rest = _texts(check)
        head = paint(padded(word, len("FAULT")), colour) + _GAP + padded(check.topic, topics) + _GAP
        wrapped = _wrapped(escaped(first), columns, start)
        shown.append(head + wrapped[0])
        shown += [" " * start + line for line in wrapped[1:]]
        for line in rest:
            if line.startswith("  "):  # a command stays whole, ready to copy
                shown.append(" " * (start + 2) + escaped(line.strip()))
            else:
                shown += [" " * start + each for each in _wrapped(escaped(line), columns, start)]
    if not everything:
        shown += _fine(health, columns)
    if health.faults:
        shown.append(f"{plural(health.faults, 'fault')}: a run would not start")
    return shown


def _texts(check: Check) -> list[str]:
    """The fact and, joined to it, the first sentence of the way out; then the rest of that."""
    if not check.fix or check.fix[0].startswith("  "):
        return [check.text, *check.fix]
    sentence = check.fix[0]
    return [f"{check.text}. {sentence[:1].upper()}{sentence[1:]}", *check.fix[1:]]


def _fine(health: HostHealth, columns: int | None) -> list[str]:
    texts = list(dict.fromkeys(check.text for check in health.checks if check.state == OK))
    if not texts:
        return []
    named = texts[:MOST_OK]
    more = len(texts) - len(named)
    text = ", ".join(map(escaped, named)) + (f", and {more} more (--all)" if more > 0 else "")
    start = len("FAULT") + len(_GAP)
    wrapped = _wrapped(text, columns or _PLAIN_COLUMNS, start)
    head = padded("ok", len("FAULT")) + _GAP
    return [head + wrapped[0], *(" " * start + line for line in wrapped[1:])]


def _wrapped(text: str, columns: int | None, start: int) -> list[str]:
    """Lines broken between words, each at most so wide that it ends at `columns`."""
    if columns is None:
        return [text]
    room = max(20, columns - start)
    found, line = [], ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and width(longer) > room:
            found.append(line)
            line = word
        else:
            line = longer
    return [*found, line]


def document(healths: Sequence[HostHealth]) -> dict[str, Any]:
    """As `findings` describes it; all checks, those that are well too."""
    return {
        "format": 1,
        "hosts": [
            {
                "name": health.name,
                "contact": {"state": health.contact},
                "way": health.way,
                "took_s": round(health.took_s, 3),
                "faults": health.faults,
                "checks": [
                    {
                        "id": check.id,
                        "topic": check.topic,
                        "state": check.state,
                        "text": check.text,
                        "fix": list(check.fix),
                    }
                    for check in health.checks
                ],
            }
            for health in healths
        ],
    }
