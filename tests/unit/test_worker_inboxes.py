from __future__ import annotations

import threading
import time

import pytest
from inboxes import Inboxes

from runner.wire import WireError
from tests.helpers.wait import wait_for


def test_what_comes_is_taken_in_order_up_to_the_end() -> None:
    boxes = Inboxes()
    inbox, other = boxes.open(1), boxes.open(2)
    for piece in (b"a", b"", b"b", None):
        boxes.put(1, piece)
    boxes.put(2, b"c")
    assert [inbox.get() for _ in range(4)] == [b"a", b"", b"b", None]
    assert other.get() == b"c"


def test_what_nobody_opened_is_dropped() -> None:
    boxes = Inboxes(0)
    boxes.put(7, b"x" * 100)
    boxes.open(1)
    boxes.close(1)
    boxes.put(1, b"x" * 100)
    assert len(boxes) == 0 and not boxes.full


def test_a_stream_is_opened_once() -> None:
    boxes = Inboxes()
    boxes.open(1)
    with pytest.raises(WireError, match="a second request on stream 1"):
        boxes.open(1)


@pytest.mark.parametrize("way", ["taken", "closed"])
def test_the_reader_waits_until_what_is_there_was_used(way: str) -> None:
    boxes = Inboxes(1000)
    inbox = boxes.open(1)
    boxes.open(2)
    boxes.put(1, b"x" * 2000)
    reader = threading.Thread(target=boxes.put, args=(2, b"y"))
    reader.start()
    wait_for(lambda: boxes.full, 5, "a reader that waits")
    assert boxes.freed_at < time.monotonic()
    before = time.monotonic()
    if way == "taken":
        assert inbox.get() == b"x" * 2000
    else:
        boxes.close(1)
    reader.join(5)
    assert not reader.is_alive() and not boxes.full and boxes.freed_at >= before


def test_empty_pieces_count() -> None:
    boxes = Inboxes(1000)
    boxes.open(1)
    reader = threading.Thread(target=lambda: [boxes.put(1, b"") for _ in range(100)], daemon=True)
    reader.start()
    wait_for(lambda: boxes.full, 5, "a reader that waits")
    boxes.close(1)
    reader.join(5)
    assert not reader.is_alive()
