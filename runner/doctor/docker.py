"""Docker there: present, allowed, new enough, and what happens when it restarts (pure)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from runner.doctor.answers import Seen
from runner.doctor.findings import Check, fault, note, ok
from runner.host_facts import read_table

LEAKS_BEFORE = (28, 3, 3)
"""Engines older than this let neighbours on the link reach a port published on loopback."""
OLDEST = (20, 10)
_HUNG = ("124", "137", "143")
"""How `timeout` ends what it had to end."""


def judge(seen: Seen) -> Iterator[Check]:
    """Nothing where the runtime needs no Docker."""
    facts = seen.facts
    if seen.host.runtime != "docker" or facts is None or "docker" not in seen.parts:
        return
    if not facts.has_docker and seen.stopped_in != "docker":
        yield fault(
            "docker", "docker", "there is no Docker",
            "its keeper can install it (Docker Engine, docs.docker.com/engine/install);",
            'or do without:  runtime = "venv" in its host file',
        )  # fmt: skip
        return
    if facts.docker_version is None:
        yield _unusable(seen)
        return
    version = _numbers(facts.docker_version)
    if version and version < OLDEST:
        yield fault(
            "docker-version", "docker",
            f"Docker {facts.docker_version} is older than 20.10, the oldest that is known to work",
            "its keeper can upgrade it",
        )  # fmt: skip
    else:
        yield ok("docker-version", "docker", f"Docker {facts.docker_version}")
    info = seen.docker_info
    if version < LEAKS_BEFORE and _publishes(seen):
        yield note(
            "docker-port", "docker",
            f"Docker {facts.docker_version} and a container with a published port: neighbours on"
            " its network may reach that, even one on 127.0.0.1",
            "upgrade Docker to 28.3.3, or publish nothing; the runner itself never does",
        )  # fmt: skip
    if info.get("LiveRestoreEnabled") is True:
        yield ok("live-restore", "docker", "live restore")
    elif info:
        yield note(
            "live-restore", "docker",
            "live restore is off: a restart of Docker, as upgrades do, interrupts every run",
            'its keeper can put  {"live-restore": true}  into /etc/docker/daemon.json, then:',
            "  sudo systemctl reload docker",
            "(runs save, and go on from there, either way)",
        )  # fmt: skip
    if "rootless" not in json.dumps(info.get("SecurityOptions")):
        yield note(
            "docker-root", "docker",
            f"{facts.user} may use Docker: whoever holds this key is root on {seen.host.name}",
        )  # fmt: skip


def _unusable(seen: Seen) -> Check:
    facts = seen.facts
    assert facts is not None
    hangs = seen.parts.get("docker-status", "").strip() in _HUNG
    said = [] if hangs else facts.docker_error.strip().splitlines()
    if "permission denied" in " ".join(said).lower():
        return fault(
            "docker-rights", "docker", f"{facts.user} may not use Docker",
            "its keeper can allow it (whoever is in that group is root there), then log in anew:",
            f"  sudo usermod -aG docker {facts.user}",
            'or do without:  runtime = "venv" in its host file',
        )  # fmt: skip
    if not said:
        return fault(
            "docker", "docker", "Docker does not answer within 5 s", f"{seen.there}:",
            "  sudo systemctl restart docker",
        )  # fmt: skip
    return fault(
        "docker", "docker", f"Docker does not run: {said[-1][:120]}", f"{seen.there}:",
        "  sudo systemctl start docker",
    )  # fmt: skip


def _publishes(seen: Seen) -> bool:
    """Whether a container of this workspace publishes a port."""
    settings = [read_table(line).get("HostConfig") for line in seen.lines("containers")]
    return any(isinstance(each, dict) and each.get("PortBindings") for each in settings)


def _numbers(version: str) -> tuple[int, ...]:
    """`28.3.3` as numbers to compare; () when it is none."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?", version)
    return tuple(int(part) for part in found.groups() if part) if found else ()
