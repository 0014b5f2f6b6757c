"""TensorBoard on a unix socket: no other user of the machine can look. Run by the job's Python.

    python -I -B tensorboard_main.py SOCKET LOGDIR

Its data server would open a port of its own, so the slower reader in this process is used. What it
reads is a folder of links beside the socket: each run's logs, and the folders where scripts put
event files beside themselves. Only those few names are looked for, never what else a run wrote.
"""

from __future__ import annotations

import importlib
import os
import stat
import sys
import threading
import time
from typing import Any

BESIDE = ("runs", "lightning_logs", "tensorboard", "tb_logs")
"""What SummaryWriter, Lightning and many scripts call that folder."""
_DEEPEST = 3
_MOST_ENTRIES = 1000
_LOOK_S = 5.0
"""As often as TensorBoard itself looks for new files."""


class UnixServer:
    """What TensorBoard asks of a server."""

    def __init__(self, app: Any, flags: Any) -> None:
        serving: Any = importlib.import_module("werkzeug.serving")

        class Quiet(serving.WSGIRequestHandler):  # type: ignore[misc]
            def log(self, *_: Any) -> None:
                """A line for each request helps nobody."""

        path = os.environ["RUNNER_TENSORBOARD_SOCKET"]
        self._server = serving.make_server(
            "unix://" + path, 0, app, threaded=True, request_handler=Quiet
        )
        self._server.daemon_threads = True
        os.chmod(path, 0o600)

    def serve_forever(self) -> None:
        """Until the end."""
        self._server.serve_forever()

    def get_url(self) -> str:
        """An address as TensorBoard wants one; nothing listens there."""
        return "http://localhost:6006/"

    def print_serving_message(self) -> None:
        """Nothing to say."""


def gather(logs: str, board: str) -> None:
    """Make `board` links to what is to be seen: RUN its logs, RUN.runs its `runs/`. Raises OSError.

    Called again it takes up new runs, and lets go of those that were removed.
    """
    os.makedirs(board, mode=0o700, exist_ok=True)
    here = set(os.listdir(board))
    code = os.path.join(os.path.dirname(logs), "code")
    wanted = {}
    for run in os.listdir(logs):
        wanted[run] = os.path.join(logs, run)
        for name in BESIDE:
            folder = os.path.join(code, run, name)
            if os.path.islink(folder) or not os.path.isdir(folder):  # a link may lead anywhere
                continue
            link = run + "." + name
            if link in here or _has_events(folder):
                wanted[link] = folder
    for name in here - set(wanted):
        os.unlink(os.path.join(board, name))
    for name in set(wanted) - here:
        os.symlink(wanted[name], os.path.join(board, name))


def _has_events(top: str) -> bool:
    """Whether the run wrote event files there. Those that were sent with its code are read-only."""
    seen = 0
    for folder, below, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if "tfevents" in name and os.lstat(path).st_mode & stat.S_IWUSR:
                return True
        seen += len(names) + len(below)
        if seen > _MOST_ENTRIES:
            return False
        if len(os.path.relpath(folder, top).split(os.sep)) >= _DEEPEST:
            below.clear()
    return False


def _gather_on(logs: str, board: str) -> None:
    while True:
        time.sleep(_LOOK_S)
        try:
            gather(logs, board)
        except OSError:
            pass  # a disk that is full may have room at the next look


def main(path: str, logs: str) -> None:
    """Serve the logs until the end."""
    board = os.path.splitext(path)[0]
    try:
        gather(logs, board)
        threading.Thread(target=_gather_on, args=(logs, board), daemon=True).start()
    except OSError:
        board = logs
    os.environ["RUNNER_TENSORBOARD_SOCKET"] = path
    default: Any = importlib.import_module("tensorboard.default")
    program: Any = importlib.import_module("tensorboard.program")
    server = program.TensorBoard(default.get_plugins(), server_class=UnixServer)
    server.configure(["tensorboard", "--logdir", board, "--load_fast", "false"])
    server.main()


if __name__ == "__main__":
    main(*sys.argv[1:3])
