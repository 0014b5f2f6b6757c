"""What a virtual environment needs of a host: a Python, and to outlive the login (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from runner.doctor.answers import Seen
from runner.doctor.findings import Check, fault, note, ok
from runner.errors import ProvisionError, SpecError
from runner.venv_facts import ANSWERS_IN_S, Python
from runner.venv_plan import LEAST_PYTHON, check_request, choose_python


def judge(seen: Seen) -> Iterator[Check]:
    """Nothing where the runtime is another one."""
    if seen.host.runtime != "venv" or seen.facts is None:
        return
    yield from _pin(seen)
    yield from _python(seen)
    yield from _boot(seen)
    yield from _terminal(seen)


def _pin(seen: Seen) -> Iterator[Check]:
    try:
        check_request(seen.host, seen.pin)
    except SpecError as error:
        yield fault("venv-pin", "python", error.message, *error.advice)


def _python(seen: Seen) -> Iterator[Check]:
    if seen.venv is None or "venv-end" not in seen.parts:
        return
    try:
        chosen, _ = choose_python(seen.host, seen.pin, seen.venv)
    except ProvisionError:
        yield _no_python(seen, seen.venv.pythons)
    else:
        yield ok("python", "python", f"Python {_version(chosen)}")


def _no_python(seen: Seen, there: Sequence[Python]) -> Check:
    wanted = seen.host.python or "python3"
    name = f"python in hosts/{seen.host.name}.toml"
    if not there and seen.venv is not None and seen.venv.silent:
        return fault(
            "python", "python",
            f"{seen.venv.silent[0]} does not answer within {ANSWERS_IN_S} s",
            f"name another one: {name}, as  python = \"/opt/conda/bin/python3\"",
        )  # fmt: skip
    if not there:
        looked = any(part.startswith("python ") for part in seen.parts)
        return fault(
            "python", "python", f"{wanted} does not run there" if looked else f"no {wanted} there",
            f"name another one: {name}, as  python = \"/opt/conda/bin/python3\"",
        )  # fmt: skip
    first = there[0]
    if first.version < LEAST_PYTHON:
        return fault(
            "python", "python",
            f"{first.path} is {_version(first)}; 3.9 is the oldest that works",
            f"name a newer one: {name}, as  python = \"/opt/conda/bin/python3\"",
        )  # fmt: skip
    return fault(
        "venv-module", "python",
        f"{first.path} makes no virtual environments (venv or ensurepip is missing)",
        "its keeper can install it (Debian and Ubuntu):", "  sudo apt install python3-venv",
        f"or name another one: {name}",
    )  # fmt: skip


def _version(python: Python) -> str:
    return ".".join(map(str, python.version))


def _boot(seen: Seen) -> Iterator[Check]:
    """Whether a venv worker outlives the login, and the machine's restart."""
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


def _terminal(seen: Seen) -> Iterator[Check]:
    """Whether a session can have a terminal: only root may give one to the group `tty`."""
    if seen.facts is None or seen.facts.uid == 0:
        return
    mounts = [line.split(" ") for line in seen.lines("mounts")]
    options = [words[3] for words in mounts if len(words) > 3 and words[1] == "/dev/pts"]
    if options and "gid=" not in options[-1]:
        yield note(
            "terminal", "shell", "/dev/pts is mounted without gid=, so `runner shell` has no"
            " terminal there; commands go",
            "its keeper can mend it:", "  sudo mount -o remount,gid=5,mode=620 /dev/pts",
        )  # fmt: skip
