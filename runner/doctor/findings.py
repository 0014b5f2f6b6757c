"""What a check found: one line a fact, with its way out (pure).

The document of `runner doctor --json`: {"format": 1, "hosts": [{"name", "contact": {"state"},
"way", "took_s", "faults", "checks": [{"id", "topic", "state", "text", "fix": []}]}]}. `state`:
`ok`; `note`, which stops no run; `fault`, with which a run would not start, or not be what was
asked for; and `skipped`, which could not be looked at, for the reason in `text`. Lines of `fix`
that begin with two blanks are commands. `contact.state`: `ok`, or `unreachable` when there was no
session.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

OK, NOTE, FAULT, SKIPPED = "ok", "note", "fault", "skipped"
TOPICS = (
    *("ssh", "shell", "docker", "python", "driver", "gpus", "worker", "torch"),
    *("shm", "disk", "memory", "clock", "limits", "names", "boot"),
)
"""In the order in which they bite people."""

MOST_TEXT = 600
"""Characters of a fact; a host may have said more."""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    id: str
    topic: str
    state: str
    text: str
    """The fact; of an `ok`, what is well in a word or two. May hold what a host said."""
    fix: tuple[str, ...] = ()
    """Sentences and commands, these with two blanks in front; none of it is a host's own text."""


@dataclass(frozen=True)
class HostHealth:
    """All that was found about one host, in the order to be shown."""

    name: str
    contact: str
    way: str
    """How it is reached, as the operator wrote it."""
    took_s: float
    checks: tuple[Check, ...]

    @property
    def faults(self) -> int:
        """How many of the checks found that a run would not start."""
        return sum(check.state == FAULT for check in self.checks)


def ok(id: str, topic: str, text: str) -> Check:
    """What is well."""
    return Check(id, topic, OK, _cut(text))


def note(id: str, topic: str, text: str, *fix: str) -> Check:
    """What one should know."""
    return Check(id, topic, NOTE, _cut(text), fix)


def fault(id: str, topic: str, text: str, *fix: str) -> Check:
    """What keeps a run from starting."""
    return Check(id, topic, FAULT, _cut(text), fix)


def commands_apart(advice: Iterable[str]) -> tuple[str, ...]:
    """An error's advice as a fix: what is to be typed has two blanks in front."""
    return tuple(f"  {line}" if line.startswith("runner ") else line for line in advice)


def skipped(id: str, topic: str, text: str) -> Check:
    """What could not be looked at."""
    return Check(id, topic, SKIPPED, _cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


def in_order(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Faults first, then notes; within each as they bite."""
    states = (FAULT, NOTE, OK, SKIPPED)
    return tuple(
        sorted(checks, key=lambda each: (states.index(each.state), TOPICS.index(each.topic)))
    )
