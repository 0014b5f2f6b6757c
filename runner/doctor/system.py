"""The system itself: clock, limits of the account, names (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.doctor.answers import Seen
from runner.doctor.findings import Check, note, ok
from runner.show.units import duration

MOST_SKEW_S = 30.0
LEAST_FILES = 4096
LEAST_PROCESSES = 1024


def judge(seen: Seen) -> Iterator[Check]:
    """What of the system itself may bite."""
    if seen.facts is None:
        return
    yield from _clock(seen)
    yield from _limits(seen)
    yield from _names(seen)


def _clock(seen: Seen) -> Iterator[Check]:
    if seen.skew_s is None:
        return
    zone = (seen.lines("clock")[1:2] or [""])[0].strip()[:20]
    if abs(seen.skew_s) > MOST_SKEW_S:
        way = "ahead of" if seen.skew_s > 0 else "behind"
        yield note(
            "clock", "clock", f"its clock is {duration(abs(seen.skew_s))} {way} ours: times in its"
            " logs are so, and certificates may look invalid to it",
            f"{seen.there}:", "  sudo timedatectl set-ntp true",
        )  # fmt: skip
    elif not seen.is_here:
        yield ok("clock", "clock", f"clock ({seen.skew_s:+.1f}s)")
    if zone:
        yield ok("time-zone", "clock", f"time zone {zone}")


def _limit_of(seen: Seen, name: str) -> tuple[float, float] | None:
    """(soft, hard) of /proc/self/limits."""
    for line in seen.lines("limits"):
        match = re.match(rf"{name}\s+(\d{{1,20}}|unlimited)\s+(\d{{1,20}}|unlimited)", line)
        if match:
            soft, hard = (float("inf") if x == "unlimited" else float(x) for x in match.groups())
            return soft, hard
    return None


def _limits(seen: Seen) -> Iterator[Check]:
    """A container has its engine's limits, not those of the account."""
    if seen.host.runtime == "docker":
        return
    well = True
    files, count = _limit_of(seen, "Max open files"), _limit_of(seen, "Max processes")
    if files is not None and files[1] < LEAST_FILES:
        well = False
        yield note(
            "open-files", "limits", f"a run may hold {files[1]:.0f} open files; data loaders and"
            " many environments need more",
            "its keeper can raise it in /etc/security/limits.conf (nofile), or see for a  ulimit -n"
            "  in the account's start-up files",
        )  # fmt: skip
    if count is not None and count[1] < LEAST_PROCESSES:
        well = False
        yield note(
            "processes", "limits", f"the account may have {count[1]:.0f} processes and threads; two"
            " ranks take some hundreds",
            "its keeper can raise it in /etc/security/limits.conf (nproc), or look for a  ulimit -u"
            "  in the account's start-up files",
        )  # fmt: skip
    if well and files is not None:
        yield ok("limits", "limits", "limits")


def _names(seen: Seen) -> Iterator[Check]:
    lines = seen.lines("names")
    if len(lines) < 3:
        return
    own, local = lines[1].strip(), lines[2].strip()
    # a container's own name is in its own hosts file
    if own not in ("0", "") and seen.host.runtime != "docker":
        yield note(
            "own-name", "names", "the machine's own name does not resolve there; some programs wait"
            " long for it",
            f"{seen.there}:", "  echo \"127.0.1.1 $(uname -n)\" | sudo tee -a /etc/hosts",
        )  # fmt: skip
    elif local not in ("0", "") and seen.host.runtime != "docker":
        yield note(
            "localhost", "names", "localhost does not resolve there",
            f"{seen.there}:", "  echo \"127.0.0.1 localhost\" | sudo tee -a /etc/hosts",
        )  # fmt: skip
    else:
        yield ok("names", "names", "names")
