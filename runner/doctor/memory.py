"""Shared memory and memory (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.doctor.answers import Seen, parse_disk
from runner.doctor.findings import Check, note, ok
from runner.show.units import memory, size

LEAST_SHM_BYTES = 1 << 30
"""NCCL and data loaders of a few workers."""
LEAST_MEMORY_MIB = 1024


def judge(seen: Seen) -> Iterator[Check]:
    """Whether a run has enough of both."""
    if seen.facts is None:
        return
    yield from _shm(seen)
    yield from _memory(seen)


def _shm(seen: Seen) -> Iterator[Check]:
    limit = seen.host.limits
    if seen.host.runtime == "docker":
        if limit.shm_bytes < LEAST_SHM_BYTES:
            yield note(
                "shm", "shm", f"its runs get {size(limit.shm_bytes)} of shared memory; NCCL and"
                " data loaders need 1 GB or more",
                f"in hosts/{seen.host.name}.toml, then provision again:", "  [limits]",
                '  shm = "8g"',
            )  # fmt: skip
        elif limit.memory_bytes is not None and limit.shm_bytes >= limit.memory_bytes:
            yield note(
                "shm", "shm", f"shared memory ({size(limit.shm_bytes)}) counts as memory, of which"
                f" its runs get {size(limit.memory_bytes)}",
                f"make it less in hosts/{seen.host.name}.toml:", "  [limits]", '  shm = "1g"',
            )  # fmt: skip
        else:
            yield ok("shm", "shm", "shm")
        return
    disk = parse_disk(seen.lines("shm"))
    if disk is None:
        return
    if disk.total < LEAST_SHM_BYTES:
        yield note(
            "shm", "shm", f"/dev/shm has {size(disk.total)}; NCCL and data loaders need 1 GB or"
            " more",
            "in a container of your own, start it with  --shm-size=8g; on a machine:",
            "  sudo mount -o remount,size=8G /dev/shm",
        )  # fmt: skip
    elif disk.free < disk.total // 10:
        yield note(
            "shm", "shm", f"/dev/shm: {size(disk.free)} free of {size(disk.total)}; something left"
            " its files there",
            f"{seen.there}, see whose they are:", "  ls -l /dev/shm",
        )  # fmt: skip
    else:
        yield ok("shm", "shm", "shm")


def _memory(seen: Seen) -> Iterator[Check]:
    told = _meminfo(seen)
    total, free = told.get("MemTotal"), told.get("MemAvailable")
    if total is None or free is None:
        return
    limit = seen.host.limits.memory_bytes
    if seen.host.runtime == "docker" and limit is not None and limit > total * 1024:
        yield note(
            "memory-limit", "memory", f"limits.memory is {size(limit)}, the machine has"
            f" {memory(total / 1024)}",
            f"make it less in hosts/{seen.host.name}.toml, so that a run that takes too much is"
            " ended, and not another one",
        )  # fmt: skip
    if free / 1024 < LEAST_MEMORY_MIB:
        yield note(
            "memory", "memory", f"{memory(free / 1024)} free of {memory(total / 1024)}; a run may"
            " be ended for want of it",
            f"{seen.there}, see who uses it:", "  ps aux --sort=-rss | head",
        )  # fmt: skip
    else:
        yield ok("memory", "memory", "memory")


def _meminfo(seen: Seen) -> dict[str, int]:
    """KiB by name."""
    found = {}
    for line in seen.lines("memory"):
        match = re.match(r"(\w+):\s+(\d{1,12}) kB", line)
        if match:
            found[match[1]] = int(match[2])
    return found
