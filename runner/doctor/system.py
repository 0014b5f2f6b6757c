"""Clock, limits, names, the Python for a virtual environment, and what ends with a login (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.doctor.answers import Seen
from runner.doctor.findings import Check, fault, note, ok
from runner.show.units import duration

MOST_SKEW_S = 30.0
LEAST_FILES = 4096
LEAST_PROCESSES = 1024
_PYTHON = (3, 9)


def judge(seen: Seen) -> Iterator[Check]:
    """What of the system itself may bite."""
    if seen.facts is None:
        return
    yield from _python(seen)
    yield from _clock(seen)
    yield from _limits(seen)
    yield from _names(seen)
    yield from _boot(seen)


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


def limit_of(seen: Seen, name: str) -> tuple[float, float] | None:
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
    files, count = limit_of(seen, "Max open files"), limit_of(seen, "Max processes")
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


def _python(seen: Seen) -> Iterator[Check]:
    if seen.host.runtime != "venv" or "python" not in seen.parts:
        return
    wanted = seen.host.python or "python3"
    lines = seen.lines("python")
    version = re.fullmatch(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})", lines[1]) if len(lines) > 1 else None
    name = f"python in hosts/{seen.host.name}.toml"
    if version is None:
        yield fault(
            "python", "python", f"{wanted} does not run there" if lines else f"no {wanted} there",
            f"name another one: {name}, as  python = \"/opt/conda/bin/python3\"",
        )  # fmt: skip
        return
    if (int(version[1]), int(version[2])) < _PYTHON:
        yield fault(
            "python", "python", f"{wanted} is {version[0]}; 3.9 is the oldest that works",
            f"name a newer one: {name}, as  python = \"/opt/conda/bin/python3\"",
        )  # fmt: skip
    elif lines[2:3] != ["venv"]:
        yield fault(
            "venv-module", "python", f"{wanted} makes no virtual environments (venv or ensurepip is"
            " missing)",
            "its keeper can install it (Debian and Ubuntu):", "  sudo apt install python3-venv",
            f"or name another one: {name}",
        )  # fmt: skip
    else:
        yield ok("python", "python", f"Python {version[0]}")


def _boot(seen: Seen) -> Iterator[Check]:
    """Whether a venv worker outlives the login, and the machine's restart."""
    if seen.host.runtime != "venv":
        return
    lines = [line.strip() for line in seen.lines("boot")]
    kills = any(re.match(r"(?i)KillUserProcesses *= *(yes|true|on|1)", line) for line in lines)
    lingers = "Linger=yes" in lines
    if kills and not lingers:
        yield fault(
            "linger", "boot", "whatever the account started ends with its last login"
            " (KillUserProcesses), runs too",
            f"{seen.there}:", "  loginctl enable-linger",
        )  # fmt: skip
    else:
        yield ok("linger", "boot", "runs outlive the login")
    if "cron-line" in lines or (lingers and seen.worker is not None and seen.worker.get("at_boot")):
        yield ok("at-boot", "boot", "started at boot")
    elif "made" not in seen.parts or seen.lines("made")[:1] == ["yes"]:
        yield note(
            "at-boot", "boot", "after a restart of the machine runs go on at the next contact with"
            " it, not before",
            f"  runner provision host={seen.host.name} --at-boot",
        )  # fmt: skip
