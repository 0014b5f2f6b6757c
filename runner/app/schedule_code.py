"""The code that a schedule trains: taken once, read each time, or from a branch of git.

A firing gets a context of its own: the project's hosts and records, but the code of the schedule.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner import wire
from runner.app.context import Context
from runner.app.submit import read_code
from runner.code import tree
from runner.code.git import clone_branch, work_tree_of
from runner.errors import IntegrityError, SpecError
from runner.files import read_regular
from runner.manifest import Snapshot
from runner.schedule.definition import FIXED, GIT, TREE, Schedule
from runner.schedule_files import Shelf, write

_OLD, _OLD_LIST = "code.old", "code.old.json"
"""What was there, while something else takes its place."""


def take_code(ctx: Context, schedule: Schedule, shelf: Shelf) -> None:
    """Copy the project's code as it is now, for `code=fixed`. Raises SpecError."""
    if schedule.code != FIXED:
        shutil.rmtree(shelf.code, ignore_errors=True)
        return
    snapshot = read_code(ctx)
    new = shelf.folder / "code.new"
    shutil.rmtree(new, ignore_errors=True)
    try:
        _copy(ctx.project.root, snapshot, new)
        shutil.rmtree(shelf.code, ignore_errors=True)
        os.rename(new, shelf.code)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise SpecError(f"the code cannot be copied to {new}: {error.strerror}") from error
    diff = None if snapshot.diff is None else base64.b64encode(snapshot.diff).decode("ascii")
    body = {"rows": snapshot.rows, "code": dict(snapshot.code), "diff": diff}
    write(shelf.folder / "code.json", body)


@contextlib.contextmanager
def code_kept(shelf: Shelf) -> Iterator[None]:
    """The code that was there is there again where what is done inside fails, or is killed."""
    put_back(shelf)
    listed, old, gone = (shelf.folder / name for name in ("code.json", _OLD, "code.gone"))
    if shelf.code.exists():
        if listed.exists():
            shutil.copyfile(listed, shelf.folder / _OLD_LIST)
        os.rename(shelf.code, old)
    try:
        yield
    except BaseException:
        put_back(shelf)
        raise
    if old.exists():
        os.rename(old, gone)  # from here on it is the new one
    _clear(shelf)


def put_back(shelf: Shelf) -> None:
    """Have the code that was there, where a change of it was not carried through.

    The caller holds the shelf's lock.
    """
    old, rows = shelf.folder / _OLD, shelf.folder / _OLD_LIST
    if old.exists():
        if rows.exists():
            shutil.copyfile(rows, shelf.folder / "code.json.tmp")
            os.replace(shelf.folder / "code.json.tmp", shelf.folder / "code.json")
        shutil.rmtree(shelf.code, ignore_errors=True)
        os.rename(old, shelf.code)
    _clear(shelf)


def _clear(shelf: Shelf) -> None:
    for name in ("code.gone", "code.new"):
        shutil.rmtree(shelf.folder / name, ignore_errors=True)
    (shelf.folder / _OLD_LIST).unlink(missing_ok=True)


def _copy(root: Path, snapshot: Snapshot, to: Path) -> None:
    to.mkdir(mode=0o700)
    for path, kind, mode, size, what in snapshot.rows:
        place = to / path
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if kind == "d":
            place.mkdir(mode=0o700, exist_ok=True)
        elif kind == "l":
            os.symlink(what, place)
        else:
            with open(place, "xb") as file:
                file.writelines(tree.read_content(root, path, size, what))
            place.chmod(0o700 if mode & 0o100 else 0o600)


def code_context(ctx: Context, schedule: Schedule, shelf: Shelf) -> tuple[Context, Snapshot | None]:
    """A context whose project is the code to train, and what was read of it already.

    Raises SpecError, and IntegrityError where the copy is damaged.
    """
    if schedule.code == TREE:
        return ctx, None
    if schedule.code == FIXED:
        snapshot, root = _read_frozen(shelf), shelf.code
    else:
        snapshot, root = None, _clone(ctx, schedule.code.removeprefix(GIT), shelf.code)
    project = replace(ctx.project, root=root, records=ctx.project.records or ctx.project.root)
    return replace(ctx, project=project), snapshot


def _read_frozen(shelf: Shelf) -> Snapshot:
    path = shelf.folder / "code.json"
    try:
        body: Any = json.loads(read_regular(path))
        rows = tuple(tuple(row) for row in body["rows"])
        diff = None if body["diff"] is None else base64.b64decode(body["diff"])
        return Snapshot(rows, wire.tree_digest(rows), dict(body["code"]), diff=diff)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IntegrityError(
            f"{path} is gone or damaged", "take the code once more: runner schedule update NAME"
        ) from error


def _clone(ctx: Context, branch: str, to: Path) -> Path:
    """The project as that branch has it now, apart from the work tree; its folder."""
    root = ctx.project.root
    top = work_tree_of(root)
    if top is None:
        raise SpecError(f"code=git:{branch}: {root} is in no git repository")
    shutil.rmtree(to, ignore_errors=True)
    problem = clone_branch(top, branch, to)
    if problem is not None:
        raise SpecError(f"code=git:{branch}: {problem}")
    inside = os.path.relpath(os.path.realpath(root), top)
    folder = to if inside == "." else to / inside
    if not folder.is_dir():
        raise SpecError(f"code=git:{branch}: that branch has no {inside}")
    return folder


def changed_files(shelf: Shelf, current: Snapshot) -> int:
    """How many files of the project as it is now differ from the code that was taken."""
    frozen = {row[0]: row for row in _read_frozen(shelf).rows}
    now = {row[0]: tuple(row) for row in current.rows}
    return sum(frozen.get(path) != now.get(path) for path in {*frozen, *now})
