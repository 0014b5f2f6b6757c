"""Every fault at every phase of a run: what must come of it, or why there is nothing to try.

A cell is one row of the suite. Its `allowed` are the causes that its attempts may have on record,
the true ones; None stands for a good end. Cells of `SAMPLE` run always, all with `--slow`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

QUEUED, STARTING, RUNNING = "queued", "starting", "running"
CHECKPOINTING, STOPPING, ENDED = "checkpointing", "stopping", "just ended"
PHASES = (QUEUED, STARTING, RUNNING, CHECKPOINTING, STOPPING, ENDED)

OF_PROCESSES = (
    "rank",
    "torchrun's agent",
    "launcher",
    "dispatcher",
    "supervisord",
    "supervisord and dispatcher",
    "machinery",
    "everything",
    "host",
)
OF_CONTAINERS = ("container restarted", "container killed", "dockerd", "dockerd, /run emptied")
OF_DISK = ("disk full", "disk full, job gives up")
OF_CLOCK = ("clock +1 day", "clock -1 day")
OF_LINK = ("link",)
FAULTS = OF_PROCESSES + OF_CONTAINERS + OF_DISK + OF_CLOCK + OF_LINK

MEANING = {
    "rank": "kill -9 of one rank",
    "torchrun's agent": "kill -9 of the agent of a run with two ranks; these live on for a moment",
    "launcher": "kill -9 of the launcher; the ranks live on for a moment",
    "dispatcher": "kill -9",
    "supervisord": "kill -9",
    "supervisord and dispatcher": "kill -9 of both at once; `local` needs the next contact",
    "machinery": "kill -9 of supervisord, dispatcher and launcher at once; the ranks live on",
    "everything": "kill -9 of these and the ranks; in a container of all its processes",
    "host": "kill -9 of everything there is on the host, /run emptied, another boot id",
    "container restarted": "docker restart",
    "container killed": "docker kill, docker start",
    "dockerd": "kill -9 of dockerd, containerd and its shims; then they are started again",
    "dockerd, /run emptied": "the same, and the next dockerd knows nothing of a live container",
    "disk full": "no byte is free; the job waits for room; then there is room",
    "disk full, job gives up": "no byte is free; the job ends with what its write raised",
    "clock +1 day": "the clock of the worker and the job jumps",
    "clock -1 day": "the clock of the worker and the job jumps",
    "link": "packets between operator and host vanish both ways; mended after some seconds",
}

Causes = tuple[str | None, ...]
GOOD: Causes = (None,)
KINDS: dict[str, str | None] = {
    "rank": "signal",
    "torchrun's agent": "signal",
    "launcher": "launcher-lost",
    "machinery": "launcher-lost",
    "everything": "launcher-lost",
    "host": "host-restart",
    "container restarted": "shutdown",
    "container killed": "worker-lost",
    "dockerd": "worker-lost",
}
"""What an attempt that the fault ends has on record; nothing for faults that end none."""
PAUSED: Causes = (*["launcher-lost"] * 4, None)
"""A run that was repeated so often waits some seconds before it is started again."""
SEED = 20
PER_FAULT = {"local": 2, "docker": 1}
"""How many cells of a fault are always run, in each runtime."""


@dataclass(frozen=True)
class Cell:
    """One fault at one phase of a run."""

    fault: str
    phase: str
    runtime: str
    nproc: int
    outcome: str = "done"
    allowed: tuple[Causes, ...] = (GOOD,)
    left_out: str = ""
    """Why there is nothing to try."""

    @property
    def id(self) -> str:
        name = f"{self.fault}-{self.phase}-{self.runtime}-{self.nproc}"
        return "".join(c for c in name.replace(" ", "_") if c not in ",/'")


def cell(fault: str, phase: str, runtime: str, nproc: int) -> Cell:
    """What must come of a fault at a phase."""
    reason = nothing_to_try(fault, phase, nproc)
    if reason:
        return Cell(fault, phase, runtime, nproc, left_out=reason)
    if phase == STOPPING:
        return Cell(fault, phase, runtime, nproc, "cancelled", (("cancelled",),))
    if fault == "disk full, job gives up":
        return Cell(fault, phase, runtime, nproc, "failed", (("disk-full",),))
    if fault in OF_CLOCK and phase == QUEUED:
        return Cell(fault, phase, runtime, nproc, allowed=(PAUSED,))
    allowed = [GOOD]
    kind = "worker-lost" if (fault, runtime) == ("everything", "docker") else KINDS.get(fault)
    if phase in (STARTING, RUNNING, CHECKPOINTING) and kind:
        allowed = [(kind, None)]
    if phase == STARTING and kind != "signal":
        allowed.append(("not-started", None))
    return Cell(fault, phase, runtime, nproc, allowed=tuple(allowed))


def nothing_to_try(fault: str, phase: str, nproc: int) -> str:
    """Why a fault cannot happen at a phase; "" where it can."""
    if fault == "torchrun's agent" and nproc == 1:
        return "a run of one rank has no agent"
    if fault in ("rank", "torchrun's agent"):
        if phase == QUEUED:
            return f"no {fault} exists while the run is queued"
        if phase == ENDED:
            return f"no {fault} lives once the end is on record"
    if fault == "launcher" and phase == QUEUED:
        return "no launcher exists while the run is queued"
    if fault == "disk full, job gives up" and phase not in (RUNNING, CHECKPOINTING):
        return "the job writes nothing then, or nothing hangs on it"
    return ""


def _all() -> Iterator[Cell]:
    for phase in PHASES:
        for fault in OF_PROCESSES:
            yield from (cell(fault, phase, "local", nproc) for nproc in (1, 2))
            yield cell(fault, phase, "docker", 2 if fault == "torchrun's agent" else 1)
        for fault in OF_CONTAINERS:
            yield from (cell(fault, phase, "docker", nproc) for nproc in (1, 2))
        for fault in OF_DISK + OF_CLOCK:
            yield cell(fault, phase, "local", 1)
        for fault in OF_LINK:
            yield cell(fault, phase, "docker", 1)


CELLS = tuple(_all())


def _sample() -> frozenset[Cell]:
    draw = random.Random(SEED)
    drawn: set[Cell] = set()
    for fault in FAULTS:
        for runtime, count in PER_FAULT.items():
            there = [c for c in CELLS if (c.fault, c.runtime) == (fault, runtime) if not c.left_out]
            drawn |= set(draw.sample(there, min(count, len(there))))
    return frozenset(drawn)


SAMPLE = _sample()


def cells_of(faults: tuple[str, ...], runtime: str) -> list[Cell]:
    """The cells of a family that have something to try."""
    return [c for c in CELLS if c.fault in faults and c.runtime == runtime and not c.left_out]
