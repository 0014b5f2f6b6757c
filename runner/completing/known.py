"""The names this disk knows, for completion: a wrong or hostile file only offers nothing.

No host is asked and nothing is written. What is long to read is read for `PATIENCE_S` at most, the
newest first.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.errors import RunnerError
from runner.fields import valid_name, valid_parameter
from runner.files import open_regular, read_regular
from runner.inventory import find_project, job_names, read_images, read_job, read_toml
from runner.model import JobSpec, Param, Project
from runner.store import Store

PATIENCE_S = 0.1
"""With 1,000 records (1.8 kB each) 0.03 s are needed; Tab may take 0.2 s in all."""
ZONES = Path("/usr/share/zoneinfo")
_HEAD = 300
"""Bytes of a job file that its first comment is looked for in."""
_ONE_OF = re.compile(r"#.*\bone of ([^;#]+)")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A job's name, five characters, and a number in a sweep."""
_COMMA = re.compile(r",\s*|\s+or\s+")
_CHOICE = re.compile(r"[A-Za-z0-9._+-]{1,60}")


@dataclass(frozen=True)
class Run:
    """A run as last seen; texts are names, or empty."""

    id: str
    host: str
    state: str
    """Its outcome once it has ended."""
    ended: bool
    job: str
    name: str
    tags: tuple[str, ...]
    secrets: tuple[str, ...]
    params: Mapping[str, Param]


class Known:
    """What is known in one folder."""

    def __init__(self, start: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        """start: the current folder, None where it is gone."""
        self._start = start
        self._clock = clock

    @cached_property
    def project(self) -> Project | None:
        """The project that the folder lies in."""
        try:
            return None if self._start is None else find_project(self._start)
        except (RunnerError, OSError):
            return None

    def hosts(self) -> dict[str, str]:
        """Hosts, and how each is reached."""
        found = {"local": "this machine"}
        if self.project is None:
            return found
        deadline = self._clock() + PATIENCE_S
        for path in sorted((self.project.root / "hosts").glob("[!.]*.toml")):
            if valid_name(path.stem) and path.stem != "local":
                found[path.stem] = "" if self._clock() > deadline else _target(path)
        return found

    def jobs(self) -> dict[str, str]:
        """Jobs, and the comment that each file begins with."""
        if self.project is None:
            return {}
        folder = self.project.root / "agents"
        return {name: _first_comment(folder / f"{name}.toml") for name in job_names(self.project)}

    def job(self, name: str) -> JobSpec | None:
        """A job, whose file may be wrong."""
        try:
            return None if self.project is None else read_job(self.project, name)
        except (RunnerError, OSError):
            return None

    def choices(self, job: str, param: str) -> list[str]:
        """What a comment in the job's file says of a parameter: `# …; one of a, b`."""
        if self.project is None or job not in job_names(self.project):
            return []
        try:
            data = read_regular(self.project.root / "agents" / f"{job}.toml")
        except OSError:
            return []
        for line in data.decode("utf-8", "replace").splitlines():
            key = line.partition("=")[0].strip().strip('"')
            if key == param and (said := _ONE_OF.search(line)):
                return [word for word in _COMMA.split(said[1].strip()) if _CHOICE.fullmatch(word)]
        return []

    def images(self) -> dict[str, str]:
        """Image pins, and their torch."""
        try:
            pins = {} if self.project is None else read_images(self.project)
        except (RunnerError, OSError):
            return {}
        return {name: f"torch {pin.torch}" for name, pin in pins.items() if valid_name(name)}

    def ids(self) -> list[str]:
        """Runs known here, the last written first."""
        return [] if self._store is None else list(filter(_ID.fullmatch, self._store.ids()))

    def runs(self, ids: Iterable[str]) -> Iterator[Run]:
        """These runs as last seen, as far as they can be read in time."""
        deadline = self._clock() + PATIENCE_S
        for each in ids:
            found = None if self._store is None else self._store.glance(each)
            if found is not None:
                yield _run(each, *found)
            if self._clock() > deadline:
                return

    def schedules(self) -> dict[str, str]:
        """Schedules of this project, and when each fires."""
        if self.project is None:
            return {}
        from runner.schedule_files import read_all

        try:
            found = read_all(self.project.root)
        except (RunnerError, OSError):
            return {}
        return {each.name: f"{each.cron}  {each.zone}" for _, each in found}

    def zones(self, begun: str) -> list[str]:
        """Zones of the world one level further than what was typed; areas end with a slash."""
        area = begun.rpartition("/")[0]
        if ".." in area or area.startswith("/"):
            return []
        found = []
        try:
            with os.scandir(ZONES / area) as entries:
                for entry in entries:
                    if entry.name[0].isupper() and valid_name(entry.name):
                        slash = "/" if entry.is_dir() else ""
                        found.append(f"{area}/{entry.name}{slash}".lstrip("/"))
        except OSError:
            return []
        return sorted(found)

    @cached_property
    def _store(self) -> Store | None:
        return None if self.project is None else Store(self.project)


def _run(name: str, host: str, status: Mapping[str, Any]) -> Run:
    """What is shown of a run; parts that are not of the type that they should have are left out."""
    tags, secrets, params = (status.get(key) for key in ("tags", "secrets", "params"))
    return Run(
        id=name,
        host=_name(host),
        state=_name(status.get("outcome")) or _name(status.get("state")),
        ended=status.get("state") == "ended",
        job=_name(status.get("job")),
        name=_name(status.get("name")),
        tags=tuple(filter(None, map(_name, tags))) if isinstance(tags, list) else (),
        secrets=tuple(filter(None, map(_name, secrets))) if isinstance(secrets, list) else (),
        params={key: value for key, value in params.items() if valid_parameter(key)}
        if isinstance(params, dict)
        else {},
    )


def _name(value: object) -> str:
    return value if isinstance(value, str) and valid_name(value) else ""


def _target(path: Path) -> str:
    """What ssh is told for a host."""
    try:
        target = read_toml(path).get("ssh")
    except RunnerError:
        return "its file is wrong"
    return target if isinstance(target, str) else ""


def _first_comment(path: Path) -> str:
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
    except OSError:
        return ""
    line = head.partition(b"\n")[0].decode("utf-8", "replace")
    return line.lstrip("# ").rstrip() if line.startswith("#") else ""
