"""TensorBoard on a unix socket: no other user of the machine can look. Run by the job's Python.

    python -I -B tensorboard_main.py SOCKET LOGDIR

Its data server would open a port of its own, so the slower reader in this process is used.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


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


def main(path: str, logs: str) -> None:
    """Serve the logs until the end."""
    os.environ["RUNNER_TENSORBOARD_SOCKET"] = path
    default: Any = importlib.import_module("tensorboard.default")
    program: Any = importlib.import_module("tensorboard.program")
    board = program.TensorBoard(default.get_plugins(), server_class=UnixServer)
    board.configure(["tensorboard", "--logdir", logs, "--load_fast", "false"])
    board.main()


if __name__ == "__main__":
    main(*sys.argv[1:3])
