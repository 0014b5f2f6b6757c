"""Where schedules are kept: a folder for each, in the account's state and not in the project.

    ~/.local/state/runner/schedules/KEY/
        schedule.json   what was added (0600)
        progress.json   up to when it was looked after, and what became of its firings
        looked          touched each time that cron came by
        lock            held by whoever fires or changes it
        code/           the code of `code=fixed`, its list in code.json; of `code=git:` a clone
        log             what firings said

Cron finds a schedule by its key alone, and what a crontab leads to does not come with a project
from elsewhere, nor goes with a `.runner/` that is deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.errors import Conflict, IntegrityError, NotFound, SpecError
from runner.fields import did_you_mean
from runner.files import lock_within, read_regular, write_whole
from runner.model import SCHEDULES
from runner.schedule.definition import (
    Progress,
    Schedule,
    from_json,
    key_of,
    progress_from_json,
    progress_to_json,
    to_json,
)

LOCK_LIMIT_S = 15.0
MOST_LOG = 1 << 20
_TRIES = 5


def schedules_folder(home: str | None = None) -> Path:
    """The folder of all of the account's schedules."""
    return Path(home or os.path.expanduser("~")) / SCHEDULES.removeprefix("~/")


class Shelf:
    """One schedule's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def key(self) -> str:
        """The name that stands in the crontab."""
        return self.folder.name

    @property
    def code(self) -> Path:
        """Where its code lies."""
        return self.folder / "code"

    @property
    def log(self) -> Path:
        """What firings said."""
        return self.folder / "log"

    def exists(self) -> bool:
        """Whether a schedule was added here."""
        return (self.folder / "schedule.json").exists()

    def read(self) -> Schedule:
        """The schedule. Raises NotFound, IntegrityError."""
        path = self.folder / "schedule.json"
        body = _read(path)
        if body is None and not path.exists():
            raise NotFound(f"there is no schedule {self.key}", "runner schedule list")
        return from_json(body, str(path))

    def write(self, schedule: Schedule) -> None:
        """Keep it. Raises SpecError."""
        write(self.folder / "schedule.json", to_json(schedule))

    def progress(self) -> Progress:
        """How far it is. Raises IntegrityError."""
        path = self.folder / "progress.json"
        return progress_from_json(_read(path), str(path))

    def put_progress(self, progress: Progress) -> None:
        """Remember how far it is, durably: what was begun must be known after a crash."""
        write(self.folder / "progress.json", progress_to_json(progress))

    def change(self, change: Callable[[Progress], Progress]) -> Progress:
        """Read, change and write how far it is; the lock is held by the caller."""
        progress = change(self.progress())
        self.put_progress(progress)
        return progress

    def looked(self) -> float | None:
        """When cron came by last."""
        try:
            return (self.folder / "looked").stat().st_mtime
        except OSError:
            return None

    def put_looked(self) -> None:
        """Cron came by."""
        with contextlib.suppress(OSError):
            (self.folder / "looked").touch(mode=0o600)

    def say(self, text: str) -> None:
        """A line for the log, which is begun anew when it grows large."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S%z ")
        with contextlib.suppress(OSError):
            if self.log.exists() and self.log.stat().st_size > MOST_LOG:
                os.replace(self.log, self.log.with_name("log.1"))
            fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(f"{stamp}{line}\n" for line in text.splitlines())

    def said_last(self) -> str:
        """The last line of the log, without its time."""
        try:
            with open(self.log, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return lines[-1].partition(" ")[2].partition(" ")[2] if lines else ""

    @contextlib.contextmanager
    def locked(self, *, wait_s: float = LOCK_LIMIT_S) -> Iterator[None]:
        """Nobody else fires or changes it meanwhile. Raises Conflict, NotFound when it is gone."""
        try:
            fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NotFound(f"there is no schedule {self.key}", "runner schedule list") from error
        try:
            if not lock_within(fd, wait_s):
                raise Conflict(f"{self.key}: it is firing, or being changed, just now")
            if not os.fstat(fd).st_nlink:
                raise NotFound(f"there is no schedule {self.key} any more")
            yield
        finally:
            os.close(fd)

    def remove(self) -> None:
        """Nothing of it is left; its name goes first."""
        with contextlib.suppress(OSError):
            (self.folder / "schedule.json").unlink()
        for top, folders, _ in os.walk(self.code):
            for name in folders:
                with contextlib.suppress(OSError):
                    os.chmod(os.path.join(top, name), 0o700, follow_symlinks=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def shelf_of(root: Path, name: str) -> Shelf:
    """The folder that a schedule of this project has, or would have."""
    return Shelf(schedules_folder() / key_of(str(root), name))


def find_shelf(root: Path, name: str) -> Shelf:
    """The folder of a schedule of this project. Raises NotFound with the nearest name."""
    shelf = shelf_of(root, name)
    if shelf.exists():
        return shelf
    known = [schedule.name for _, schedule in read_all(root)]
    raise NotFound(
        f"there is no schedule {name if name.isprintable() else ascii(name)} of this project"
        f"{did_you_mean(name, known)}",
        "runner schedule list",
    )


@contextlib.contextmanager
def new_shelf(root: Path, name: str) -> Iterator[Shelf]:
    """A new schedule's folder, locked. Raises Conflict when its name is taken, SpecError."""
    shelf = shelf_of(root, name)
    with contextlib.ExitStack() as stack:
        for left in reversed(range(_TRIES)):
            _check_new(shelf, name)
            try:
                shelf.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise SpecError(f"{shelf.folder} cannot be made: {error.strerror}") from error
            try:
                stack.enter_context(shelf.locked())
                break
            except NotFound:  # whoever had it gave it up, and its folder went
                if not left:
                    raise
        _check_new(shelf, name)  # another one may have added it while we waited
        yield shelf


def _check_new(shelf: Shelf, name: str) -> None:
    if shelf.exists():
        raise Conflict(
            f"there is a schedule {name} of this project",
            f"runner schedule update {name}",
            f"or first: runner schedule remove {name}",
        )


def read_all(root: Path | None = None) -> list[tuple[Shelf, Schedule]]:
    """Every schedule (of a project) that can be read, by name."""
    found = []
    for shelf in all_shelves():
        with contextlib.suppress(NotFound, IntegrityError):
            schedule = shelf.read()
            if root is None or schedule.root == str(root):
                found.append((shelf, schedule))
    return sorted(found, key=lambda each: (each[1].name, each[0].key))


def all_shelves() -> list[Shelf]:
    """Every folder that may be one."""
    folder = schedules_folder()
    try:
        return [Shelf(folder / name) for name in sorted(os.listdir(folder)) if name[:1] != "."]
    except OSError:
        return []


def write(path: Path, body: Mapping[str, Any]) -> None:
    """Write a record, 0600, whole or not at all, durably. Raises SpecError."""
    try:
        write_whole(path, json.dumps(body).encode("ascii"), durable=True)
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}") from error


def _read(path: Path) -> Any:
    try:
        return json.loads(read_regular(path))
    except (OSError, RecursionError, ValueError):
        return None
