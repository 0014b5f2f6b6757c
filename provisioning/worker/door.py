"""A run that is a door: it holds leased GPUs, and sessions are served from inside it.

    FOLDER door shell     each connection is a log-in; it ends with the last
    FOLDER door lab       Jupyter Lab; it ends when nobody was connected for some minutes

It listens on a socket named after its run. A connection begins with a line: `ssh` (the rest of it
is a log-in's), `hold` (somebody is there for as long as it stays open) or `stop`. What it starts
belongs to the run, so `cancel` ends all of it, and sees the run's GPUs and variables.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

import services
import sessions
import sockets
import sshd
from paths import Workspace

FIRST_LIMIT_S = 120.0
"""How long it waits for the first log-in: the one who asked for it may be gone."""
SHELL_LINGER_S = 3.0
LAB_LINGER_S = 600.0
_JUPYTER_LIMIT_S = 120.0
_LINE_LIMIT_S = 10.0
_POLL_S = 0.5
_MOST_WAITING = 64


def socket_name(run: str) -> str:
    """Of a run's door, for `sockets.find`."""
    return "run-" + run


def jupyter_name(run: str) -> str:
    """Of the Jupyter Lab in a run."""
    return "lab-" + run


def main(workspace: Workspace, argv: List[str]) -> int:
    """Serve until nobody is there any more."""
    kind, run = (argv or [""])[0], os.environ.get("RUNNER_RUN", "")
    if kind not in ("shell", "lab") or not run:
        print("a door is `shell` or `lab`, in a run", file=sys.stderr)
        return 2
    door = _Door(workspace, kind, run)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return door.serve()
    except (sshd.CannotLogIn, services.CannotServe) as error:
        say(str(error))
        return services.CANNOT_START
    finally:
        door.close()


def say(text: str) -> None:
    """A line for the run's log."""
    print(text, flush=True)


class _Door:
    def __init__(self, workspace: Workspace, kind: str, run: str) -> None:
        self._workspace = workspace
        self._kind = kind
        self._run = run
        self._folder = sockets.make(workspace)
        self._path = os.path.join(self._folder, socket_name(run) + ".sock")
        self._children: List["subprocess.Popen[bytes]"] = []
        self._holds: List[socket.socket] = []
        self._jupyter: Optional["subprocess.Popen[bytes]"] = None
        self._env = session_environment(workspace)

    def serve(self) -> int:
        """Until the end; the exit status."""
        if self._kind == "lab":
            self._start_jupyter()
        else:
            self._sshd_argv()  # what keeps it from working is said now
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _unlink(self._path)
        listener.bind(self._path)
        os.chmod(self._path, 0o600)
        listener.listen(_MOST_WAITING)
        say("%s: ready" % self._run)
        came, last = False, time.monotonic()
        linger_s = SHELL_LINGER_S if self._kind == "shell" else LAB_LINGER_S
        while True:
            ready, _, _ = select.select([listener, *self._holds], [], [], _POLL_S)
            for each in ready:
                if each is not listener:
                    self._holds.remove(each)
                    each.close()
            if listener in ready:
                if self._take(listener.accept()[0]):
                    return 0
                came = came or bool(self._children) or self._kind == "lab"
            self._children = [child for child in self._children if child.poll() is None]
            if self._children or self._holds:
                last = time.monotonic()
            elif time.monotonic() - last > (linger_s if came else FIRST_LIMIT_S):
                say("%s: nobody is here any more" % self._run)
                return 0
            if self._jupyter is not None and self._jupyter.poll() is not None:
                say("Jupyter Lab ended by itself (status %d)" % self._jupyter.returncode)
                return services.CANNOT_START

    def close(self) -> None:
        """Ends what was begun."""
        _unlink(self._path)
        for child in [*self._children, *([self._jupyter] if self._jupyter else [])]:
            if child.poll() is None:
                child.terminate()

    def _take(self, connection: socket.socket) -> bool:
        """Do what a connection asks for; whether it was to end the run."""
        word = _read_line(connection)
        if word == "ssh" and self._kind == "shell":
            argv = self._sshd_argv()
            log = sessions.log_path(self._workspace)
            self._children.append(sessions.begin(connection, argv, self._env, log))
            return False
        if word == "hold":
            self._holds.append(connection)
            return False
        connection.close()
        return word == "stop"

    def _sshd_argv(self) -> List[str]:
        folder = os.path.join(self._folder, socket_name(self._run))
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return sshd.command(self._workspace, self._env, folder)

    def _start_jupyter(self) -> None:
        # the run's own, which may be another environment than the worker's
        python = shutil.which("python3", path=self._env.get("PATH")) or sys.executable
        why = services.missing("jupyter", python)
        if why is not None:
            raise services.CannotServe(why)
        name = jupyter_name(self._run)
        folder = os.environ["RUNNER_CODE"]
        argv, env = services.jupyter(self._workspace, self._env, name, python, folder)
        self._jupyter = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL)
        path = sockets.find(self._workspace, name)
        limit = time.monotonic() + _JUPYTER_LIMIT_S
        while not sockets.is_listening(path):
            if self._jupyter.poll() is not None or time.monotonic() > limit:
                raise services.CannotServe("Jupyter Lab does not start; see above")
            time.sleep(_POLL_S)


def session_environment(workspace: Workspace) -> Dict[str, str]:
    """What a session in a run sees: all that the run does."""
    env: Dict[str, Any] = {
        name: value for name, value in os.environ.items() if not name.startswith("SUPERVISOR_")
    }
    return env


def _read_line(connection: socket.socket) -> str:
    """The first line, and not a byte more; nothing when none comes."""
    connection.settimeout(_LINE_LIMIT_S)
    data = b""
    try:
        while len(data) < 16:
            piece = connection.recv(1)
            if piece in (b"", b"\n"):
                break
            data += piece
    except OSError:
        return ""
    connection.settimeout(None)
    return data.decode("ascii", "replace")


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
