"""What is said of runs that were to be stopped and could not be (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.errors import NotFound, OutcomeUnknown

if TYPE_CHECKING:
    from runner.app.reports import CancelReport

KEEP_TRYING = "1h"
"""How long is advised to try where a host did not answer."""
MOST_NAMED = 5


def missed_lines(reports: Sequence[CancelReport], *, whole: bool = False) -> list[str]:
    """A line for all runs of a host that something kept from their end, and the way out below it.

    whole: all runs of the host were meant, so its name stands for them in advice.
    """
    groups: dict[tuple[str, str, int, bool], list[CancelReport]] = {}
    for report in reports:
        if report.error is not None:
            key = (report.host, report.error, report.status, report.asked)
            groups.setdefault(key, []).append(report)
    lines = []
    for (host, error, status, asked), rows in groups.items():
        ids = [row.run for row in rows]
        verb = "was" if len(ids) == 1 else "were"
        command = "  " + shlex.join(["runner", "cancel", *([f"host={host}"] if whole else ids)])
        if status == NotFound.status:
            lines += [error, *(f"  {line}" for line in rows[0].advice)]
        elif status == OutcomeUnknown.status:
            lines += [f"{error}; {_named(ids)} may or may not be stopped; the same settles it:"]
            lines += [command]
        elif asked:
            lines += [f"{error}; {_named(ids)} {verb} asked to stop and may not have ended yet"]
        else:
            text = f"{error}; {_named(ids)} {verb} NOT stopped"
            if rows[0].retry:
                lines += [f"{text}; to keep trying:", f"{command} --until {KEEP_TRYING}"]
            else:
                lines += [text, *(f"  {line}" for line in rows[0].advice)]
    return lines


def _named(ids: Sequence[str]) -> str:
    more = len(ids) - MOST_NAMED
    return ", ".join(ids[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
