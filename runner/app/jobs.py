"""Which jobs the project has. No host is asked or even read."""

from __future__ import annotations

from pathlib import Path

from runner import inventory
from runner.model import JobSpec


def list_jobs(start: Path) -> list[JobSpec]:
    """Every job of the project `start` lies in. Raises SpecError."""
    return inventory.read_jobs(inventory.find_project(start))


def one_job(start: Path, name: str) -> JobSpec:
    """The job of that name. Raises SpecError with the nearest one."""
    return inventory.read_job(inventory.find_project(start), name)
