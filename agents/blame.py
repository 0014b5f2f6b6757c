"""Errors of an environment's own code, each told in one line that names the place, not a traceback.

What shows while an environment is only looked at is refused; what shows later is a fault.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from options import Refused
from runtime import Fault

API = "gymnasium's API"
LONGEST = 300  # characters of what an error says
_HERE = Path(__file__).parent
_OWN = {"environments", "episodes", "evaluation", "team_environments", "teams", "blame"}


def told(error: BaseException, api: str = API) -> str:
    """What went wrong and where: `KeyError: 'x', at walks.py:12 in step; mend it there`.

    An error of ours when we took what an environment gave says that it does not follow `api`.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[0][:LONGEST] if lines else ""
    frames = traceback.extract_tb(error.__traceback__)
    what = type(error).__name__ + (f": {said}" if said else "")
    last = Path(frames[-1].filename) if frames else _HERE
    if last.parent == _HERE and last.stem in _OWN and not isinstance(error, SystemExit):
        return f"does not follow {api}: {what}"
    if isinstance(error, SystemExit):
        what = f"ends the program, with status {error.code!r}"
    elif isinstance(error, SyntaxError):
        return f"fails with {what}"  # which says where
    else:
        what = f"fails with {what}"
    mine = [frame for frame in frames if _is_users(frame.filename)] or list(frames)
    if not mine:
        return what
    return f"{what}, at {_short(mine[-1].filename)}:{mine[-1].lineno} in {mine[-1].name}"


def _is_users(name: str) -> bool:
    path = Path(name)
    if name.startswith("<") or "site-packages" in path.parts:
        return False
    if path.parent == _HERE and path.stem in _OWN:
        return False
    return not any(path.is_relative_to(root) for root in {sys.prefix, sys.base_prefix})


def _short(name: str) -> str:
    with contextlib.suppress(ValueError, OSError):
        return str(Path(name).relative_to(Path.cwd()))
    return name


def _is_told(error: BaseException) -> bool:
    """Whether it has its own place at the edge of the program already."""
    return isinstance(error, (Refused, Fault, MemoryError, torch.OutOfMemoryError))


@contextlib.contextmanager
def refusing(name: str, api: str = API) -> Iterator[None]:
    """Turn whatever the environment `name` raises while it is looked at into Refused."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if _is_told(error):
            raise
        raise Refused(f"env {name!r} {told(error, api)}") from error


def fault_of(name: str, error: Exception, api: str = API) -> Exception:
    """What to raise for an error of the environment `name` in the middle of its episodes."""
    if _is_told(error):
        return error
    return Fault("environment", f"env {name!r} {told(error, api)}", step=-1)


def closing_all(name: str, closers: Iterable[Any]) -> None:
    """Close them all; one that cannot be closed costs a line, for all that matters is saved."""
    for each in closers:
        try:
            each.close()
        except Exception as error:  # whatever an environment raises
            print(f"WARNING: env {name!r} {told(error)}", file=sys.stderr, flush=True)
