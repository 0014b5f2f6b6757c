"""Memory that options ask for at the least, held against what there is, before all else."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any

from options import Refused

LEAST: tuple[tuple[tuple[str, ...], int], ...] = (
    (("num_envs",), 4096),  # the smallest environment with its generator
    (("buffer_size",), 12),
    (("eval_episodes",), 8),
    (("episodes",), 8),
    (("hidden", "hidden"), 16),  # weights between two layers, their gradients, Adam's averages
    (("rollout", "num_envs"), 16),  # an observation of one number, action, reward, ends
    (("updates", "batch_size"), 8),  # which rows are drawn
    (("n_step", "num_envs"), 52),  # an open window, and a power of gamma
)
"""Options by which memory grows, and bytes that each of their product takes, whatever the rest."""


def check_room(options: Any, room: int | None = None) -> None:
    """Raise Refused, with a line for each, where options need more than `room` bytes.

    options: of any agent, a dataclass. room: what is available now, by default.
    """
    room = available_bytes() if room is None else room
    values: Mapping[str, Any] = {f.name: getattr(options, f.name) for f in fields(options)}
    bad: dict[str, str] = {}
    for names, each in LEAST:
        if all(name in values and name not in bad for name in names):
            need = each * prod(int(values[name]) for name in names)
            if need > room:
                given = " and ".join(f"{name}={values[name]}" for name in dict.fromkeys(names))
                lower = " or ".join(dict.fromkeys(names))
                s = "" if len(set(names)) > 1 else "s"
                bad[names[0]] = (
                    f"{given} need{s} {amount(need)} of memory at the least, "
                    f"{amount(room)} are free; lower {lower}"
                )
    if bad:
        raise Refused("\n".join(bad.values()))


def amount(count: float) -> str:
    """Bytes in powers of ten: `812 B`, `1.5 MB`, `58 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB" if count < 999.5 else "over 1000 PB"


def available_bytes() -> int:
    """Memory this process may still take: the kernel's estimate, and its cgroup's limit."""
    room = sys.maxsize
    try:
        text = Path("/proc/meminfo").read_text()
        room = int(re.search(r"MemAvailable:\s+(\d+) kB", text)[1]) * 1024  # type: ignore[index]
    except (OSError, TypeError):
        pass
    for group in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory"):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            try:
                allowed = int(Path(group, limit).read_text())
                room = min(room, allowed - int(Path(group, usage).read_text()))
            except (OSError, ValueError):
                continue  # no such group, or "max"
    return room
