"""One connection carried over a stream of a conversation, both ways (stdlib, Python 3.9).

Both ends are alike: each has a socket, and sends the other messages, each the payload of one DATA
frame: u8 kind, u32 count, bytes.

    BYTES    what was read from the socket; count is their number
    CREDIT   so many more bytes may come: they were written to the socket
    END      the socket's peer sends no more (half-closed); the other direction goes on
    ABORT    the socket is broken: nothing is read or written any more

A side sends no more bytes than it has credit for, `window` at first. So who does not read stops
what is sent to them, and nothing else: no other connection waits, and no memory grows.
"""

from __future__ import annotations

import collections
import contextlib
import socket
import struct
import threading
from typing import Callable, Deque, Optional

HEAD = struct.Struct(">BI")
BYTES, CREDIT, END, ABORT = range(1, 5)
PIECE = 64 * 1024
LEAST_WINDOW = 16 * 1024
MOST_WINDOW = 4 << 20


def is_last(message: bytes) -> bool:
    """Whether the other side sends no bytes behind this message."""
    return len(message) >= HEAD.size and message[0] in (END, ABORT)


class Flow:
    """The end of a connection that has the socket."""

    def __init__(
        self,
        connection: socket.socket,
        send: Callable[[bytes], None],
        window: int,
        on_finished: Callable[[], None] = lambda: None,
    ) -> None:
        """send: takes a message for the other side; it may raise when there is none any more.
        on_finished: called once, from any thread, when nothing more will be sent.
        """
        self._socket = connection
        self._send = send
        self._window = window
        self._on_finished = on_finished
        self._changed = threading.Condition()
        self._credit = window
        self._waiting: Deque[Optional[bytes]] = collections.deque()
        self._waiting_bytes = 0
        self._threads = 0
        self._broken = False
        self._closed = False

    def start(self) -> None:
        """Carry from now on, in threads of its own."""
        self._threads = 2
        for work in (self._read_socket, self._write_socket):
            threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def feed(self, message: bytes) -> None:
        """A message of the other side; never waits."""
        kind, count = HEAD.unpack_from(message) if len(message) >= HEAD.size else (0, 0)
        if kind == CREDIT:
            with self._changed:
                self._credit = min(self._credit + count, MOST_WINDOW)
                self._changed.notify_all()
        elif kind == BYTES:
            with self._changed:
                self._waiting_bytes += len(message) - HEAD.size
                too_many = self._waiting_bytes > self._window
                self._waiting.append(message[HEAD.size :])
                self._changed.notify_all()
            if too_many:
                self.abort()
        elif kind == END:
            with self._changed:
                self._waiting.append(None)
                self._changed.notify_all()
        else:
            self.abort(tell=kind != ABORT)

    def abort(self, tell: bool = True) -> None:
        """Give up on the connection; tell: the other side, too."""
        with self._changed:
            if self._broken or self._closed:
                return
            self._broken = True
            self._waiting.clear()
            self._changed.notify_all()
            begun = self._threads > 0
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes who reads or writes
        if tell:
            with contextlib.suppress(Exception):  # there may be nobody to tell any more
                self._send(HEAD.pack(ABORT, 0))
        if not begun:
            self._finish()

    @property
    def is_finished(self) -> bool:
        """Whether nothing is carried any more."""
        return self._closed

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # the socket or the link, whichever it is
            self.abort()
        with self._changed:
            self._threads -= 1
            last = self._threads == 0
        if last:
            self._finish()

    def _read_socket(self) -> None:
        while True:
            with self._changed:
                while self._credit <= 0 and not self._broken:
                    self._changed.wait()
                most = min(self._credit, PIECE)
            data = b"" if self._broken else self._socket.recv(most)
            if self._broken:
                return
            if not data:
                self._send(HEAD.pack(END, 0))
                return
            with self._changed:
                self._credit -= len(data)
            self._send(HEAD.pack(BYTES, len(data)) + data)

    def _write_socket(self) -> None:
        written = 0
        while True:
            with self._changed:
                while not self._waiting and not self._broken:
                    self._changed.wait()
                if self._broken:
                    return
                piece = self._waiting.popleft()
            if piece is None:
                with contextlib.suppress(OSError):  # its peer is gone already
                    self._socket.shutdown(socket.SHUT_WR)
                return
            self._socket.sendall(piece)
            written += len(piece)
            with self._changed:
                self._waiting_bytes -= len(piece)
            if written >= self._window // 4:
                self._send(HEAD.pack(CREDIT, written))
                written = 0

    def _finish(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.close()
        with contextlib.suppress(Exception):  # the link may be gone
            self._on_finished()
