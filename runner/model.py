"""Values of the operator's side: frozen, without behaviour beyond what their fields say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Param = bool | int | float | str | list[Any] | dict[str, Any] | None
"""A job parameter's value: what TOML and JSON can hold."""
MOST_RANKS = 1024
ON_STUCK = ("tell", "restart", "stop")
"""What may be done with a run that no longer moves."""


@dataclass(frozen=True)
class Limits:
    """What the worker's container may use; sizes in bytes."""

    shm_bytes: int = 8 * 10**9
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Host:
    """One machine, as its TOML file describes it."""

    name: str
    runtime: str = "docker"
    """`docker`, `venv` (a virtual environment there), or `local`: this machine's own Python."""
    ssh: str | None = None
    """Whatever `ssh` takes; `local` is this machine's own Docker; None for runtime local."""
    jump: str | None = None
    jump_key: str | None = None
    host_key: str | None = None
    image: str = "torch-2.6"
    workspace: str = "~/runner"
    gpus: str | tuple[int, ...] = "all"
    """`all`, `none`, or the indices nvidia-smi shows."""
    slots: int | None = None
    """Runs at once that lease no GPU; None is the CPU count there."""
    disk_reserve_bytes: int = 0
    """What stays free on the workspace's disk: below it nothing starts, what runs stops."""
    transport: str = "auto"
    limits: Limits = field(default_factory=Limits)
    network: str = "full"
    """What runs may reach: `full`, `none`, or `host` for the machine's own (docker)."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    data: Mapping[str, str] = field(default_factory=dict)
    """Folders there that jobs read, by name."""
    python: str | None = None
    """The interpreter a venv is made from; None for `python3` of the account."""
    source: Path | None = None
    """The file it came from; None for the embedded default."""

    def settings(self) -> dict[str, Any]:
        """What its worker is told of it, whatever the runtime."""
        return {
            "gpus": list(self.gpus) if isinstance(self.gpus, tuple) else self.gpus,
            "slots": self.slots,
            "disk_reserve": self.disk_reserve_bytes,
            "env": dict(self.env),
        }


@dataclass(frozen=True)
class ImagePin:
    """What a host's `image` names: a base to build on and what it needs of the machine."""

    name: str
    base: str
    torch: str
    cuda: str
    driver_min: str
    capabilities: tuple[str, ...]
    pip: tuple[str, ...] = ()
    source: Path | None = None


@dataclass(frozen=True)
class JobSpec:
    """A recipe: one TOML file in agents/."""

    name: str
    command: tuple[str, ...]
    """The argv to run from the snapshot's root; `python` stands for the job's Python."""
    entry: str | None = None
    """The file beside the TOML file that `command` starts; None when the file gives a command."""
    nproc: int = 1
    gpus: str | int = "auto"
    launcher: str = "auto"
    grace_s: float = 25.0
    metric: str | None = None
    params: Mapping[str, Param] = field(default_factory=dict)
    time_limit_s: float | None = None
    """Running time, summed over attempts."""
    restarts: int = 3
    """How many faults of its own are forgiven."""
    stuck_after_s: float | None = None
    """Without a sign of life for so long it counts as stuck; None: never."""
    on_stuck: str = "tell"
    log_limit_bytes: int | None = None
    keep: int | None = None
    """The newest checkpoints that stay; None: all."""
    keep_best: int | None = None
    """The best ones by `metric` that stay besides."""
    resumable: tuple[str, ...] = ()
    """Parameters that `runner resume` may change."""
    how: str = "file"
    """`pass` in its file: how parameters reach the program (passing.py), or `none`."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """How the program spells parameters that are not said as usual."""
    requirements: tuple[str, ...] = ()
    """Packages beside those of the image."""
    requirements_file: str | None = None
    """The file in the project that lists them instead."""
    source: Path | None = None


SCHEDULES = "~/.local/state/runner/schedules"
"""Where the account's schedules are kept (schedule_files.py)."""


@dataclass(frozen=True)
class Project:
    """The operator's project folder."""

    root: Path
    id: str
    name: str
    code_limit_bytes: int = 500 * 10**6
    """How much code may travel in all."""
    records: Path | None = None
    """The folder whose `.runner/` holds its records, where that is not `root`."""
