"""A receiver of messages: an HTTP server on loopback that answers as a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.helpers.wait import wait_for

LIMIT_S = 30.0


@dataclass(frozen=True)
class Got:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> dict[str, Any]:
        """Its JSON."""
        return dict(json.loads(self.body))


@dataclass
class Receiver:
    """`got` grows; `answer` is asked for each request: a status, or does with it what it likes."""

    got: list[Got] = field(default_factory=list)
    answer: Callable[[BaseHTTPRequestHandler, Got], int | None] = lambda handler, got: 200
    release: threading.Event = field(default_factory=threading.Event)
    """For an answer that hangs until the test is over."""

    def __post_init__(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                got = Got(self.command, self.path, dict(self.headers), self.rfile.read(size))
                receiver.got.append(got)
                self.close_connection = True
                status = receiver.answer(self, got)
                if status is not None:
                    self.send_response(status)
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"ok")

            do_GET = do_POST = _any

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """A client that went away is what some tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.daemon = True
        self._thread.start()

    @property
    def url(self) -> str:
        """Its address, with a path that nobody else knows."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook/s3cr3t-path"

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What was posted, decoded."""
        return [got.message for got in self.got if got.method == "POST"]

    def until(self, count: int) -> list[Got]:
        """All requests once there are so many."""
        wait_for(lambda: len(self.got) >= count, LIMIT_S, f"{count} requests, not {len(self.got)}")
        return list(self.got)

    def hang(self, *_: Any) -> None:
        """An answer that does not come."""
        self.release.wait(LIMIT_S * 4)

    def close(self) -> None:
        """End it."""
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
