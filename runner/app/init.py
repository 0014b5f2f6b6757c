"""Writes a project, so that an empty folder works right after the installation."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner import content
from runner.errors import SpecError
from runner.inventory import PROJECT_FILE, folder_name

_IGNORE = """\
# What is not sent to a host, beside what git ignores; written as in .gitignore.
# A line with ! brings something back. Always left here: .git .venv __pycache__ .runner results
# build dist *.egg-info hosts
"""
_NOT_COPIED = ("__pycache__", ".pyc", "~")


@dataclass(frozen=True)
class InitReport:
    """What was made; paths are relative to the folder."""

    folder: Path
    made: tuple[str, ...]
    left: tuple[str, ...]
    """Files that were there already."""


def init(folder: Path) -> InitReport:
    """Writes what is missing of a project, and changes nothing that is there. Raises SpecError."""
    folder = folder.expanduser().absolute()
    made: list[str] = []
    left: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "hosts").mkdir(exist_ok=True)
        for name, data, mode in _files(folder):
            (made if _write_new(folder / name, data, mode) else left).append(name)
    except OSError as error:
        raise SpecError(f"{error.filename or folder}: {error.strerror or error}") from error
    return InitReport(folder, tuple(made), tuple(left))


def _files(folder: Path) -> Iterator[tuple[str, bytes, int]]:
    """Name, content and mode of every file of a new project."""
    yield PROJECT_FILE, _project_file(folder), 0o644
    yield ".runnerignore", _IGNORE.encode(), 0o644
    for path in sorted(content.hosts_folder().glob("*.example")):
        yield f"hosts/{path.name}", path.read_bytes(), 0o644
    agents = content.agents_folder()
    for path in sorted(agents.rglob("*")):
        parts = path.relative_to(agents).parts
        if path.is_file() and not any(part.endswith(_NOT_COPIED) for part in parts):
            yield "/".join(("agents", *parts)), path.read_bytes(), path.stat().st_mode & 0o755


def _project_file(folder: Path) -> bytes:
    """The name, and an id by which hosts know this project, wherever its folder goes."""
    name, project_id = json.dumps(folder_name(folder)), json.dumps(f"p-{secrets.token_hex(6)}")
    return f"name = {name}\nid = {project_id}\n".encode()


def _write_new(path: Path, data: bytes, mode: int) -> bool:
    """Writes a file that is not there yet; False when something has its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("xb") as file:
            file.write(data)
    except FileExistsError:
        return False
    path.chmod(mode | 0o600)
    return True
