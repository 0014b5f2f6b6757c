"""What this worker is: the record its maker left, outside the workspace or in it."""

from __future__ import annotations

import os
from typing import Any, Dict, NamedTuple, Optional

import records
from paths import Workspace


class Config(NamedTuple):
    """A worker's own facts (worker.json, format 1)."""

    worker: str
    runtime: str
    image: Optional[str] = None
    image_id: Optional[str] = None
    """Of the base image that its own was made of, for docker workers."""
    generation: int = 0
    """The how-manieth worker of its image in this workspace it is; the highest starts runs."""
    gpus: Any = "all"
    slots: int = 1
    disk_reserve: int = 0
    """Bytes that stay free on the workspace's disk: below it nothing starts, what runs stops."""
    env: Dict[str, str] = {}
    facts: Dict[str, Any] = {}
    """The rest of the record, for `version`."""


def read(workspace: Workspace) -> Config:
    """The record that RUNNER_WORKER_CONFIG names, else the workspace's own, else plain defaults."""
    body = records.read(_path(workspace)) or {}
    image = body.get("image")
    slots, reserve = body.get("slots"), body.get("disk_reserve")
    generation = body.get("generation")
    return Config(
        worker=str(body.get("worker", "w-unknown")),
        runtime=str(body.get("runtime", "local")),
        image=image.get("pin") if isinstance(image, dict) else image,
        image_id=image.get("id") if isinstance(image, dict) else None,
        generation=generation if isinstance(generation, int) else 0,
        gpus=body.get("gpus", "all"),
        slots=slots if isinstance(slots, int) and slots > 0 else cpu_count(),
        disk_reserve=reserve if isinstance(reserve, int) and reserve > 0 else 0,
        env={str(k): str(v) for k, v in (body.get("env") or {}).items()},
        facts={k: v for k, v in body.items() if k != "env"},
    )


def mark(workspace: Workspace) -> Any:
    """Something that differs once the record was written anew."""
    try:
        found = os.stat(_path(workspace))
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _path(workspace: Workspace) -> str:
    return os.environ.get("RUNNER_WORKER_CONFIG") or workspace.config


def cpu_count() -> int:
    """CPUs this worker may use."""
    return len(os.sched_getaffinity(0))
