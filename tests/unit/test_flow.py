"""One connection over a stream: whole, both ways, half-closed, and bounded."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections.abc import Iterator

import pytest

from runner import flow
from tests.helpers.wait import stays, wait_for

WINDOW = flow.LEAST_WINDOW


class Side:
    """A socket of a program, and the flow that carries it; what it sends goes to the other."""

    def __init__(self) -> None:
        self.program, inner = socket.socketpair()
        self.sent: list[bytes] = []
        self.finished = threading.Event()
        self.queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.flow = flow.Flow(inner, self._send, WINDOW, self.finished.set)

    def _send(self, message: bytes) -> None:
        self.sent.append(message)
        self.queue.put(message)

    def deliver_to(self, other: Side) -> None:
        """From now on; messages keep their order, as on a link."""

        def run() -> None:
            while (message := self.queue.get()) is not None:
                other.flow.feed(message)

        threading.Thread(target=run, daemon=True).start()

    @property
    def payload_bytes(self) -> int:
        """Bytes of the program's that were sent."""
        return sum(len(message) - flow.HEAD.size for message in self.sent)


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    pair = Side(), Side()
    for one, other in (pair, pair[::-1]):
        one.deliver_to(other)
        one.program.settimeout(20)
    for side in pair:
        side.flow.start()
    yield pair
    for side in pair:
        side.flow.abort()
        side.queue.put(None)
        side.program.close()


def read_all(program: socket.socket) -> bytes:
    data = b""
    while piece := program.recv(65536):
        data += piece
    return data


def test_bytes_come_whole_both_ways_and_an_end_is_an_end_of_one_way(
    sides: tuple[Side, Side],
) -> None:
    here, there = sides
    text = bytes(range(256)) * 2000  # many windows

    def send() -> None:
        here.program.sendall(text)
        here.program.shutdown(socket.SHUT_WR)

    threading.Thread(target=send).start()
    assert read_all(there.program) == text
    assert not here.finished.is_set()
    there.program.sendall(b"the other way still goes")
    there.program.close()
    assert read_all(here.program) == b"the other way still goes"
    assert here.finished.wait(10) and there.finished.wait(10)


def test_who_does_not_read_is_sent_one_window_and_stops_nobody_else(
    sides: tuple[Side, Side],
) -> None:
    here, there = sides

    def send() -> None:
        with contextlib.suppress(OSError):  # the end of the test ends it
            here.program.sendall(b"x" * (4 << 20))

    threading.Thread(target=send, daemon=True).start()
    wait_for(lambda: here.payload_bytes >= WINDOW, 10, "a window of bytes")
    # what the sockets' own buffers take was credited
    wait_for(lambda: settled(here), 10, "an end of the sending")
    sent = here.payload_bytes
    assert sent < 2 << 20
    stays(lambda: here.payload_bytes == sent, 0.3, "the bytes sent")
    there.program.sendall(b"back")
    assert here.program.recv(10) == b"back"


def settled(side: Side) -> bool:
    before = side.payload_bytes
    threading.Event().wait(0.2)
    return side.payload_bytes == before


def test_a_connection_that_breaks_ends_the_other_end(sides: tuple[Side, Side]) -> None:
    here, there = sides
    here.flow.abort()
    assert there.program.recv(1) == b""
    assert there.finished.wait(10)


@pytest.mark.parametrize(
    "message",
    [b"", b"\x09\0\0\0\0", flow.HEAD.pack(flow.BYTES, 0) + b"x" * (WINDOW + 1)],
    ids=["empty", "unknown", "more than the window"],
)
def test_what_is_no_message_ends_the_connection(message: bytes) -> None:
    side = Side()
    side.flow.feed(message)
    assert side.finished.is_set() and side.flow.is_finished
    assert side.sent == [flow.HEAD.pack(flow.ABORT, 0)]
    side.program.close()


def test_a_link_that_is_gone_ends_it(sides: tuple[Side, Side]) -> None:
    program, inner = socket.socketpair()

    def refuse(message: bytes) -> None:
        raise OSError("gone")

    finished = threading.Event()
    flow.Flow(inner, refuse, WINDOW, finished.set).start()
    program.sendall(b"x")
    assert finished.wait(10)
    program.close()
