"""The requests a worker answers, one module each: `answer(call, request)` returns the reply."""

from __future__ import annotations

import importlib
import json
import os
import time
import zlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Protocol, cast

import supervisor
from inboxes import Inbox
from paths import RunPaths, Workspace

from runner import wire

VERBS = (
    *("again", "at_boot", "cancel", "drain", "files", "forward", "gc", "info", "list", "login"),
    *("notify", "probe", "progress", "remove", "resume", "runs", "service", "stack"),
    *("submit", "tail", "top", "usage", "wait", "why"),
)
MAX_LISTING = 256 << 20
KEEP_UP_S = 1.0


class Sender(Protocol):
    """Where a verb's frames go."""

    def send(self, kind: int, stream: int, body: Any = b"") -> None:
        """One frame; a table is sent as JSON, a tuple of buffers as one payload."""


class Refused(Exception):
    """An answer that is a no: a code of wire's list, and a line for the user."""

    def __init__(self, code: str, text: str, **more: Any) -> None:
        super().__init__(text)
        self.body = dict(more, code=code, text=text)


class Call:
    """One request under way: its stream and what the client still sends on it."""

    def __init__(
        self,
        link: Sender,
        workspace: Workspace,
        stream: int,
        inbox: Inbox,
        local: Optional[Dict[str, Any]] = None,
        asked_at: float = 0.0,
    ) -> None:
        self.workspace = workspace
        self.asked_at = asked_at
        """When the request came; of a conversation no two are alike."""
        self._local = local
        self._looked_at = 0.0
        self._link = link
        self._stream = stream
        self._inbox = inbox

    def keep_up(self) -> None:
        """For what waits: see, now and then, that there is a worker that ends the waiting.

        Raises supervisor.CannotStart.
        """
        if time.monotonic() - self._looked_at > KEEP_UP_S:
            self._looked_at = time.monotonic()
            if not supervisor.is_up(self.workspace):
                with supervisor.without_room():
                    supervisor.ensure(self.workspace, self._local)

    def data(self, *payload: wire.Buffer) -> None:
        """Send bytes, all pieces in one frame."""
        self._link.send(wire.DATA, self._stream, payload)

    def event(self, **body: Any) -> None:
        """Send a table."""
        self._link.send(wire.EVENT, self._stream, body)

    def received(self) -> Iterator[bytes]:
        """What the client sends, up to its END."""
        while True:
            payload = self._inbox.get()
            if payload is None:
                return
            yield payload

    def received_rows(self) -> Any:
        """A compressed listing from the client. Raises Refused when it is too large or broken."""
        unzip = zlib.decompressobj()
        text = bytearray()
        try:
            for payload in self.received():
                text += unzip.decompress(payload, MAX_LISTING - len(text))
                if unzip.unconsumed_tail:
                    raise Refused("bad-request", "a listing of more than %d bytes" % MAX_LISTING)
            return json.loads(bytes(text))
        except (zlib.error, ValueError) as error:
            raise Refused("bad-request", "a listing that cannot be read: %s" % error) from error

    def send_rows(self, rows: List[Any]) -> None:
        """A compressed listing to the client, in as many frames as it needs."""
        data = zlib.compress(json.dumps(rows, separators=(",", ":")).encode("ascii"), 1)
        for start in range(0, len(data), wire.CHUNK):
            self.data(data[start : start + wire.CHUNK])

    def run(self, name: Any) -> RunPaths:
        """The paths of a run that is here. Raises Refused."""
        try:
            paths = self.workspace.run(name if isinstance(name, str) else "")
        except ValueError as error:
            raise Refused("unknown-run", str(error)) from error
        if not os.path.exists(paths.spec):
            raise Refused("unknown-run", "no run %s here" % name)
        return paths


Answer = Callable[[Call, Dict[str, Any]], Dict[str, Any]]


def find(request: Dict[str, Any]) -> Answer:
    """The function that answers a request. Raises Refused."""
    verb = request.get("verb")
    if verb not in VERBS:
        raise Refused("no-verb", "this worker does not know %r; provision it again" % (verb,))
    module: Any = importlib.import_module("verbs." + str(verb))
    return cast(Answer, module.answer)


def whole(request: Dict[str, Any], key: str, default: Optional[int] = None) -> int:
    """A whole number of a request. Raises Refused."""
    value = request.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise Refused("bad-request", "%s is %r, not a whole number" % (key, value))
    return value
