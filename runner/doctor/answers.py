"""A host's answer to `questions`, and all else that findings are made of (pure)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.errors import RunnerError
from runner.host_facts import Container, HostFacts, parse_facts, read_table, sections
from runner.model import Host, ImagePin
from runner.placement import worker_key
from runner.venv_facts import VenvFacts
from runner.venv_facts import parse as parse_venv
from runner.worker_plan import container_name


@dataclass(frozen=True)
class KeyFile:
    """A private key that the ssh configuration names."""

    path: str
    mode: int | None
    """None where only its public half is there."""
    locked: bool = False
    """It has a passphrase."""
    in_agent: bool = False


@dataclass(frozen=True)
class Here:
    """What the operator's own side is like."""

    has_ssh: bool = True
    keys: tuple[KeyFile, ...] = ()
    identities_only: bool = False
    agent_keys: int = 0
    home_problem: str | None = None
    """Why nothing can be written in the home."""


@dataclass(frozen=True)
class Disk:
    """A file system, as df tells of it."""

    total: int
    free: int
    mount: str
    inodes: int | None = None
    inodes_free: int | None = None


@dataclass(frozen=True)
class Seen:
    """All that is known of one host."""

    host: Host
    pin: ImagePin
    pins: Mapping[str, ImagePin]
    here: Here = field(default_factory=Here)
    error: RunnerError | None = None
    """Why there was no session."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Sections of the answer."""
    facts: HostFacts | None = None
    venv: VenvFacts | None = None
    """Of a `venv` host alone."""
    stopped_in: str | None = None
    """The section in which the answer broke off."""
    skew_s: float | None = None
    worker: Mapping[str, Any] | None = None
    """What the worker's `probe` told."""
    worker_error: RunnerError | None = None
    stale: bool = False
    """A provision would make the worker anew."""

    @property
    def is_here(self) -> bool:
        """Whether it is this machine."""
        return self.host.ssh in (None, "local")

    @property
    def there(self) -> str:
        """Where commands of a fix are to be typed."""
        return "here" if self.is_here else f"on {self.host.name}"

    def lines(self, part: str) -> list[str]:
        """A section's lines."""
        return self.parts.get(part, "").splitlines()

    def disk(self, name: str) -> Disk | None:
        """`workspace` or `docker`."""
        return parse_disk(self.lines(f"disk {name}"))

    @property
    def docker_info(self) -> dict[str, Any]:
        """What `docker info` said; {} when that cannot be read."""
        return read_table(self.parts.get("info", ""))

    @property
    def container(self) -> Container | None:
        """The one that starts runs of the host's image; None when there is none."""
        if self.facts is None:
            return None
        name = container_name(self.facts.uid, self.host)
        return next((each for each in self.facts.containers if each.name == name), None)


_DF = re.compile(r"\s(\d{1,15})\s+(\d+|-)\s+(-?\d{1,15})\s+(?:\d+%|-)\s+(/.*)\Z")
_DF_NONE = re.compile(r"\s(\d{1,15}|-)\s+(\d+|-)\s+(\d{1,15}|-)\s+(?:\d+%|-)\s+(/.*)\Z")


def parse_disk(lines: list[str]) -> Disk | None:
    """From the last lines of `df -Pk` and `df -Pi`; None when the first cannot be read."""
    found = _DF.search(lines[0]) if lines else None
    if found is None:
        return None
    inodes = _DF_NONE.search(lines[1]) if len(lines) > 1 else None
    counted = inodes is not None and inodes[1].isdigit() and int(inodes[1]) > 0
    return Disk(
        total=int(found[1]) * 1024,
        free=max(0, int(found[3])) * 1024,
        mount=found[4],
        inodes=int(inodes[1]) if counted and inodes else None,
        inodes_free=int(inodes[3]) if counted and inodes and inodes[3].isdigit() else None,
    )


@dataclass(frozen=True)
class Answer:
    """A host's answer, read; what did not come is missing."""

    parts: Mapping[str, str]
    facts: HostFacts | None
    venv: VenvFacts | None
    stopped_in: str | None


def parse_answer(text: str, cut: str, host: Host) -> Answer:
    """Of an answer that broke off, what came."""
    parts = sections("\n" + text, cut)
    stopped = None if "done" in parts else next(reversed(parts), "")
    key = worker_key(host)
    facts: HostFacts | None = None
    venv: VenvFacts | None = None
    try:
        if host.runtime == "venv":
            venv = parse_venv(f"\n{text}\n{cut} end\n\n{cut} venv-end\n", cut, key)
            facts = venv.machine
        else:
            facts = parse_facts(f"\n{text}\n{cut} end\n", cut, key)
    except ValueError:
        pass
    return Answer(parts, facts, venv, stopped)
