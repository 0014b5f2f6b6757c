"""Takes a `venv` worker away from its host: its processes, its start at boot, its environments.

Run by any Python there (`main`), whether or not the worker can still start. What belongs to other
workers of the account, or to nobody of ours, is left as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from typing import Any, Dict, List

import at_boot
import paths
import processes
import records
import sockets
import space
import supervisor
import venv_make
import venvs
from paths import Workspace

_ENDS_IN_S = 60.0
_KILLED_IN_S = 5.0
_OURS = ("code", "checkpoints", "logs", "runs", ".home", ".runner")


def main(request: Dict[str, Any]) -> int:
    """{"key", "workspace", "purge"} → a line `runner-made {"there": bool, "removed": [words]}`, or
    `runner-failed {"kind", "said"}`: live (said: ids of runs), workspace, boot, os.
    """
    state = venv_make.state_folder()
    try:
        body = _take_away(state, request)
        print(venv_make.DONE + json.dumps(body), flush=True)
        return 0
    except venv_make.Failed as error:
        failed: Dict[str, Any] = {"kind": error.kind, "said": list(error.said)}
    except at_boot.Cannot as error:
        failed = {"kind": "boot", "said": [str(error)]}
    except OSError as error:
        failed = {"kind": "os", "said": [str(error)]}
    print(venv_make.FAILED + json.dumps(failed), flush=True)
    return 1


def _take_away(state: str, request: Dict[str, Any]) -> Dict[str, Any]:
    workspace = Workspace(request["workspace"])
    own = os.path.join(state, "workers", request["key"])
    removed: List[str] = []
    if os.path.isdir(workspace.state):
        lock = records.wait_lock(workspace.start_lock, supervisor.START_LIMIT_S)
        if lock is None:
            raise venv_make.Failed("live", "a worker is being started there just now")
        try:
            live = _live(workspace)
            if live:
                raise venv_make.Failed("live", *live)
            if _end(workspace):
                removed.append("worker")
        finally:
            os.close(lock)
    if os.path.isdir(own):
        was = at_boot.remove(own)
        removed += ["its start at boot (%s)" % was] if was else []
    if os.path.isdir(state):
        with venvs.locked(state) as alone:
            if os.path.isdir(own):
                shutil.rmtree(own)
                removed.append("records")
            for path in venvs.unused(state) if alone else ():
                venvs.remove(path)
                removed.append("environment")
    _remove_sockets(workspace)
    if request["purge"]:
        if os.path.isdir(workspace.root):
            _purge_workspace(state, workspace)
            removed.append("workspace")
        _purge_state(state)
    return {"there": bool(removed), "removed": removed}


def _live(workspace: Workspace) -> List[str]:
    """Runs that live, or that a worker which lives takes for such."""
    up = supervisor.is_up(workspace)
    return [run for run in venvs.live_runs(workspace) if up or _has_launcher(workspace, run)]


def _has_launcher(workspace: Workspace, run: str) -> bool:
    run_paths = workspace.run(run)
    state = records.read(run_paths.state) or {}
    born = records.read(os.path.join(run_paths.attempt(int(state.get("attempt", 0))), "proc.json"))
    return bool(born and processes.is_alive(born.get("launcher")))


def _end(workspace: Workspace) -> bool:
    """End supervisord and dispatcher, in good order if they can; whether any lived."""
    owner = records.read(workspace.dispatcher) or {}
    known = [records.read(workspace.supervisor), owner.get("supervisor"), owner]
    alive = [who for who in known if who and processes.is_alive(who)]
    if not alive:
        return False
    os.kill(int(alive[0]["pid"]), signal.SIGTERM)
    for number, limit_s in ((signal.SIGTERM, _ENDS_IN_S), (signal.SIGKILL, _KILLED_IN_S)):
        if number == signal.SIGKILL:
            for who in alive:
                if processes.is_alive(who):
                    os.kill(int(who["pid"]), number)
        deadline = time.monotonic() + limit_s
        while any(processes.is_alive(who) for who in alive) and time.monotonic() < deadline:
            time.sleep(0.05)
    return True


def _remove_sockets(workspace: Workspace) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(os.path.dirname(sockets.find(workspace)), ignore_errors=True)


def _purge_workspace(state: str, workspace: Workspace) -> None:
    """All of it where it is of our making, else what is ours in it."""
    why = paths.refused(workspace.root, os.path.expanduser("~"))
    if why is not None:
        raise venv_make.Failed("workspace", why)
    line = "folder " + workspace.root
    made = venv_make.made_lines(state)
    names = os.listdir(workspace.root) if line in made else _OURS
    for name in names:
        space.remove(os.path.join(workspace.root, name), space.Freed())
    if line in made:
        os.rmdir(workspace.root)
        rest = "".join(each + "\n" for each in made if each != line)
        records.write_new_bytes(
            os.path.join(state, "made"), rest.encode("utf-8", "surrogateescape")
        )


def _purge_state(state: str) -> None:
    """The folder that the account's workers share, and what else was made: with the last worker."""
    for name in ("workers", "venvs"):
        path = os.path.join(state, name)
        if os.path.isdir(path) and set(os.listdir(path)) <= {"lock"}:
            shutil.rmtree(path)
    local = os.path.expanduser("~/.local/share/runner/workspace")
    others = [os.path.join(state, "workers"), os.path.join(state, "venvs"), local]
    if not os.path.isdir(state) or any(map(os.path.lexists, others)):
        return
    made = venv_make.made_lines(state)
    shutil.rmtree(state)
    for path in sorted((line[7:] for line in made if line.startswith("folder ")), reverse=True):
        with contextlib.suppress(OSError):  # something else is in it
            os.rmdir(path)
    for line in made:
        kind, _, rest = line.partition(" ")
        mode, _, path = rest.partition(" ")
        if kind == "mode" and os.path.isdir(path):
            os.chmod(path, int(mode, 8))
