"""What is said of a run, and what to type next (pure): words bounded, commands quoted for a shell.

Commands are made of the operator's own words alone; where a name in one is none that we would have
made, there is no command. What a host or a job said is escaped by whoever shows it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.app.results import RunOnHost
from runner.show.readings import time_left
from runner.show.units import duration
from runner.wire import RunStatus

MOST_WORDS = 300
"""Characters of what a host or a job said in one go."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Advice:
    """What to type next, and what for."""

    text: str
    command: str


@dataclass(frozen=True)
class Reason:
    """Why a run is where it is."""

    kind: str
    """For programs: what a queued run waits for, how a live one goes, the cause of an end."""
    text: str
    """A sentence for people; it begins with the run's state where that says more than waiting."""
    detail: tuple[str, ...] = ()
    """Lines that a job or Python wrote."""
    advice: tuple[Advice, ...] = ()


def said(value: Any) -> str:
    """Something a host or a job said, bounded."""
    text = str(value)
    return text if len(text) <= MOST_WORDS else text[: MOST_WORDS - 1] + "…"


def advise(text: str, *words: str, names: Sequence[str] = ()) -> tuple[Advice, ...]:
    """A command, or nothing where a name in it is none of ours. names: those to be checked."""
    if not all(_NAME.fullmatch(name) for name in names):
        return ()
    return (Advice(text, shlex.join(("runner", *words))),)


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def time_to_go(status: RunStatus | None, clock: float) -> str:
    """` (about 11m left)` where that is no guess."""
    if status is None:
        return ""
    left = time_left(status)
    if left is not None and status.progress_at is not None:
        left = max(0.0, left - max(0.0, clock - status.progress_at))
        return f" (about {duration(left)} left)"
    if status.time_limit_s is not None and status.started_at is not None:
        spent = (status.ran_s or 0.0) + clock - status.started_at
        return f" ({duration(max(0.0, status.time_limit_s - spent))} left at most)"
    return ""


def gc(run: RunOnHost) -> tuple[Advice, ...]:
    """How to look for room on a run's host."""
    return advise("what could go:", "gc", f"host={run.host}", "--dry-run")
