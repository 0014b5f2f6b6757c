"""What came on a conversation's streams and was not read yet: bounded over all of them."""

from __future__ import annotations

import threading
from collections import deque

from runner.wire import ERR, REP, Frame, WireError

LIMIT_BYTES = 8 << 20
"""So much may lie unread; then the reader waits, and with it, by full pipes, the sender."""
MOST_BYTES = 256 << 20
"""Never more, not even while somebody waits for what may be behind it."""
_OVERHEAD_BYTES = 128
"""Counted for each frame, so that empty ones are bounded as well."""


class Inboxes:
    """Between the thread that reads a link and those that use what came."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._boxes: dict[int, deque[Frame]] = {}
        self._last: set[int] = set()
        self._changed = threading.Condition()
        self._unread_bytes = 0
        self._takers = 0
        self._closed = False
        self.full = False
        """Whether the reader waits for what came to be used: its silence means nothing then."""

    def open(self, stream: int, beside: int | None = None) -> None:
        """Take in what comes on a stream from now on; beside: into the box of that stream."""
        with self._changed:
            self._boxes[stream] = deque() if beside is None else self._boxes[beside]

    def put(self, frame: Frame) -> None:
        """Keep a frame; waits while too much is unread.

        While somebody waits for what has not come yet it does not wait: that may be behind it.
        Dropped are frames of streams that nobody opened, what comes after a stream's last frame,
        and all but the first of stream 0. Raises WireError for more than can be meant.
        """
        kind, stream, payload = frame
        with self._changed:
            box = self._boxes.get(stream)
            if box is None or stream in self._last:
                return
            if kind in (REP, ERR) or stream == 0:
                self._last.add(stream)
            while self._unread_bytes > self._limit_bytes and not (self._takers or self._closed):
                self.full = True
                self._changed.wait()
            self.full = False
            if self._unread_bytes > MOST_BYTES:
                raise WireError(f"more than {MOST_BYTES} bytes that nobody asked for")
            box.append(frame)
            self._unread_bytes += len(payload) + _OVERHEAD_BYTES
            self._changed.notify_all()

    def take(self, stream: int) -> Frame | None:
        """The next frame in a stream's box; None once it is empty and nothing more comes."""
        with self._changed:
            box = self._boxes[stream]
            while not box:
                if self._closed:
                    return None
                self._wait()
            frame = box.popleft()
            self._unread_bytes -= len(frame[2]) + _OVERHEAD_BYTES
            if self.full:
                self._changed.notify_all()
            return frame

    def close(self) -> None:
        """Nothing more comes; what is there can still be taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wait(self) -> None:
        self._takers += 1
        if self.full:
            self._changed.notify_all()
        try:
            self._changed.wait()
        finally:
            self._takers -= 1
