"""What the client sent on its streams and no verb has taken yet: bounded over all of them."""

from __future__ import annotations

import collections
import threading
import time
from typing import Deque, Dict, Optional

from runner.wire import WireError

LIMIT_BYTES = 8 << 20
"""So much may lie here; then the reader waits, and with it, by full pipes, the client."""
_OVERHEAD_BYTES = 128
"""Counted for each frame, so that empty ones are bounded as well."""


class Inboxes:
    """Between the thread that reads the link and the verbs that use what came."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._boxes: Dict[int, Deque[Optional[bytes]]] = {}
        self._changed = threading.Condition()
        self._waiting_bytes = 0
        self.full = False
        """Whether the reader waits for a verb: that nothing is heard means nothing then."""
        self.freed_at = 0.0
        """When it last ceased to wait (monotonic)."""

    def __len__(self) -> int:
        return len(self._boxes)

    def open(self, stream: int) -> "Inbox":
        """Take in what comes on a stream from now on. Raises WireError when that is done."""
        with self._changed:
            if stream in self._boxes:
                raise WireError("a second request on stream %d" % stream)
            self._boxes[stream] = collections.deque()
        return Inbox(self, stream)

    def close(self, stream: int) -> None:
        """Drop what is there, and what still comes."""
        with self._changed:
            for payload in self._boxes.pop(stream, ()):
                self._waiting_bytes -= _cost(payload)
            self._changed.notify_all()

    def put(self, stream: int, payload: Optional[bytes]) -> None:
        """Keep a piece for a stream, or its end (None); waits while too much lies here."""
        with self._changed:
            while stream in self._boxes and self._waiting_bytes > self._limit_bytes:
                self.full = True
                self._changed.wait()
            self.freed_at = time.monotonic()
            self.full = False
            if stream in self._boxes:
                self._boxes[stream].append(payload)
                self._waiting_bytes += _cost(payload)
                self._changed.notify_all()

    def take(self, stream: int) -> Optional[bytes]:
        """The next piece of a stream, None at its end; waits for it."""
        with self._changed:
            box = self._boxes[stream]
            while not box:
                self._changed.wait()
            payload = box.popleft()
            self._waiting_bytes -= _cost(payload)
            if self.full:
                self._changed.notify_all()
            return payload


class Inbox:
    """One stream's."""

    def __init__(self, inboxes: Inboxes, stream: int) -> None:
        self._inboxes = inboxes
        self._stream = stream

    def get(self) -> Optional[bytes]:
        """The next piece the client sent; None at its end."""
        return self._inboxes.take(self._stream)


def _cost(payload: Optional[bytes]) -> int:
    return len(payload or b"") + _OVERHEAD_BYTES
