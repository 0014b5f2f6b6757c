"""The environments of a `venv` worker, on its host and outside its workspace.

~/.local/state/runner/
    leases/                  as of every worker
    venvs/DIGEST/            a virtual environment; whole once it holds `runner.json`
    venvs/lock               held by whoever makes or removes one
    workers/venv-KEY/        of one workspace: worker.json, pins/PIN → an environment, current → the
                             one the worker itself runs in, boot.json and boot.py (at_boot.py)

Whoever starts the worker program there says where it belongs: RUNNER_VENV names the last of these
folders, RUNNER_VENV_PIN the pin that runs without an image of their own get.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from typing import Any, Dict, Iterator, List, Optional, Set

import journal
import places
import plain
import processes
import records
import supervisor
from paths import Workspace

from runner import states

MARK = "runner.json"
"""Written last: what is in the environment."""
LOCK_WAIT_S = 3600.0
_REPLACED_IN_S = 15.0
_GONE = ".gone-"


class Missing(OSError):
    """The environment that is asked for is not there; the text says which."""


def folder() -> Optional[str]:
    """The host-side folder of this worker; None for any other runtime."""
    return os.environ.get("RUNNER_VENV") or None


def pin() -> Optional[str]:
    """The pin of runs that name none."""
    return os.environ.get("RUNNER_VENV_PIN") or None


def image_for(spec: Dict[str, Any]) -> Optional[str]:
    """The pin whose environment a new run gets; None for any other runtime."""
    return (spec.get("image") or pin()) if folder() is not None else None


def record() -> Optional[Dict[str, Any]]:
    """What this worker is to be, as its maker left it; None where there is none of this runtime."""
    own = folder()
    body = records.read(os.path.join(own, "worker.json")) if own else None
    python = find(own, "current") if own else None
    return None if body is None or python is None else dict(body, python=python)


def find(own: str, link: str) -> Optional[str]:
    """The Python of the environment behind a link of such a folder, if that is whole."""
    path = os.path.realpath(os.path.join(own, link))
    return python_of(path) if is_whole(path) else None


def python_of(path: str) -> str:
    """The Python of an environment."""
    return os.path.join(path, "bin", "python3")


def is_whole(path: str) -> bool:
    """Whether an environment was made to its end, and what its Python leads to is still there."""
    return _was_made(path) and os.access(python_of(path), os.X_OK)


def _was_made(path: str) -> bool:
    return os.path.exists(os.path.join(path, MARK))


def whole_of(state: str, digest: str) -> Optional[str]:
    """A whole environment of that digest: the one of this name, or one that was made aside."""
    top = os.path.join(state, "venvs")
    names = [digest, *(name for name in _names(top) if name.startswith(digest + "-"))]
    return next((path for path in (os.path.join(top, n) for n in names) if is_whole(path)), None)


def python_for(spec: Dict[str, Any]) -> Optional[str]:
    """The Python of a run's image; None where a run's image is not ours to choose.

    Raises Missing.
    """
    own = folder()
    if own is None:
        return None
    name = places.image_of(spec) or pin()
    link = os.path.join("pins", str(name)) if name else "current"
    found = find(own, link)
    if found is None:
        path = os.path.realpath(os.path.join(own, link))
        text = "the environment of image %s is not there; provision it again" % name
        if _was_made(path):
            text = "the environment of image %s has lost its Python: %s is gone; provision it again"
            text %= (name, os.path.realpath(python_of(path)))
        raise Missing(text)
    return found


def wake_up(workspace: Workspace) -> None:
    """Have a worker up, and in the environment it is to run in, if that can be.

    Who cannot do without one (submit, and what waits) asks by itself, and tells why there is none.
    """
    local = record()
    if local is None or (os.environ.get("RUNNER_RUN") and not supervisor.is_up(workspace)):
        return
    with supervisor.without_room(), contextlib.suppress(supervisor.CannotStart):
        supervisor.ensure(workspace, local)
        _use_the_newest(workspace, local)


def boot(workspace: Workspace) -> int:
    """Start the worker because the machine has started."""
    workspace.make()
    local = record()
    if local is None:
        journal.say("there is no environment to start in")
        return 1
    supervisor.ensure(workspace, local)
    return 0


def _use_the_newest(workspace: Workspace, local: Dict[str, Any]) -> None:
    """Have the worker itself run in the environment it is to run in now; its runs go on."""
    owner = (records.read(workspace.dispatcher) or {}).get("supervisor")
    if not owner or not processes.is_alive(owner) or _runs_in(owner, str(local["python"])):
        return
    # with nothing live it may end in good order; else only a kill leaves its runs alone, and its
    # dispatcher then starts the next pair
    quiet = not supervisor.live_launchers(workspace)
    os.kill(int(owner["pid"]), signal.SIGTERM if quiet else signal.SIGKILL)
    deadline = time.monotonic() + _REPLACED_IN_S
    while processes.is_alive(owner) and time.monotonic() < deadline:
        time.sleep(0.02)
    while time.monotonic() < deadline:
        now = records.read(workspace.dispatcher) or {}
        if quiet or now.get("supervisor") != owner:
            break
        time.sleep(0.02)
    supervisor.ensure(workspace, local)


def _runs_in(who: Dict[str, Any], python: str) -> bool:
    try:
        with open("/proc/%d/cmdline" % int(who["pid"]), "rb") as file:
            return os.fsdecode(file.read().split(b"\0")[0]) == python
    except OSError:
        return True  # it is just going


def unused(state: str) -> List[str]:
    """Environments that no worker of the account names and no live run is in, and what is left of
    others. The caller holds the lock.

    state: `~/.local/state/runner`.
    """
    top = os.path.join(state, "venvs")
    used = {os.path.realpath(path) for path in _named(state)}
    found = []
    for name in _names(top):
        path = os.path.realpath(os.path.join(top, name))
        if plain.is_folder(path) and (name.startswith(_GONE) or path not in used):
            found.append(path)
    busy = _busy(found)
    return [path for path in found if path not in busy]


def set_aside(path: str) -> str:
    """Give an environment that is to be removed a name that nobody takes for a whole one's."""
    aside = os.path.join(os.path.dirname(path), _GONE + os.path.basename(path).replace(_GONE, ""))
    if aside != path:
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)
    return aside


def remove(path: str) -> bool:
    """Remove an environment; whether nothing of it is left."""
    aside = set_aside(path)
    shutil.rmtree(aside, ignore_errors=True)
    return not os.path.lexists(aside)


@contextlib.contextmanager
def locked(state: str, limit_s: float = LOCK_WAIT_S) -> Iterator[bool]:
    """Alone with the environments of the account, or False after that long."""
    os.makedirs(os.path.join(state, "venvs"), mode=0o700, exist_ok=True)
    lock = records.wait_lock(os.path.join(state, "venvs", "lock"), limit_s)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            os.close(lock)


def _named(state: str) -> Iterator[str]:
    """What the workers of the account name."""
    workers = os.path.join(state, "workers")
    for name in _names(workers):
        own = os.path.join(workers, name)
        if name.startswith("venv-"):
            yield os.path.join(own, "current")
            for each in _names(os.path.join(own, "pins")):
                yield os.path.join(own, "pins", each)


def _busy(found: List[str]) -> Set[str]:
    """Those of them in which a process runs: it was started with a Python of theirs."""
    busy: Set[str] = set()
    for pid in processes.all_pids() if found else ():
        try:
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                words = os.fsdecode(file.read()).split("\0")
            with open("/proc/%d/environ" % pid, "rb") as file:
                words += os.fsdecode(file.read()).split("\0")
        except OSError:
            continue
        text = "\0".join(words)
        busy.update(path for path in found if path + "/bin" in text)
    return busy


def live_runs(workspace: Workspace) -> List[str]:
    """Runs that live there, by their records."""
    found = []
    for name in _names(workspace.runs):
        state = records.read(os.path.join(workspace.runs, name, "state.json"))
        if not name.startswith(".") and state and state.get("state") in states.LIVE:
            found.append(name)
    return found


def _names(top: str) -> List[str]:
    try:
        return sorted(os.listdir(top))
    except OSError:
        return []
