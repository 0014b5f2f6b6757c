"""Frames between a reader and those that use them: bounded, in order, never stuck."""

from __future__ import annotations

import threading

import pytest

from runner import inboxes, wire
from runner.inboxes import Inboxes
from tests.helpers.wait import wait_for

SMALL = 1000


def boxes(*streams: int) -> Inboxes:
    made = Inboxes(limit_bytes=SMALL)
    for stream in streams:
        made.open(stream)
    return made


def data(stream: int, payload: bytes = b"x") -> wire.Frame:
    return (wire.DATA, stream, payload)


def test_each_stream_has_its_own_in_order() -> None:
    made = boxes(1, 2)
    for frame in (data(2, b"a"), data(1, b"b"), data(2, b"c")):
        made.put(frame)
    assert made.take(1) == data(1, b"b")
    assert [made.take(2), made.take(2)] == [data(2, b"a"), data(2, b"c")]


def test_streams_beside_each_other_come_as_they_came() -> None:
    made = boxes(1)
    made.open(2, beside=1)
    for frame in (data(2, b"a"), data(1, b"b"), data(2, b"c")):
        made.put(frame)
    assert [made.take(1) for _ in range(3)] == [data(2, b"a"), data(1, b"b"), data(2, b"c")]


def test_after_the_end_what_came_is_there_and_nothing_is_waited_for() -> None:
    made = boxes(1)
    made.put(data(1))
    made.close()
    assert made.take(1) == data(1)
    assert made.take(1) is None


def test_the_reader_waits_while_too_much_is_unread() -> None:
    made = boxes(1)
    sent: list[int] = []

    def read() -> None:
        for number in range(20):
            made.put(data(1, b"x" * 500))
            sent.append(number)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    wait_for(lambda: made.full, 10, "a full box")
    assert len(sent) <= 3
    for _ in range(20):
        assert made.take(1) is not None
    reader.join(5)
    assert not reader.is_alive() and len(sent) == 20 and not made.full


def test_what_is_waited_for_comes_though_others_are_full() -> None:
    made = boxes(1, 2)

    def read() -> None:
        for _ in range(10):
            made.put(data(1, b"x" * 500))
        made.put(data(2, b"here"))

    threading.Thread(target=read, daemon=True).start()
    wait_for(lambda: made.full, 10, "a full box")
    assert made.take(2) == data(2, b"here")


def test_a_reader_that_waits_is_let_go_at_the_end() -> None:
    made = boxes(1)
    reader = threading.Thread(
        target=lambda: [made.put(data(1, b"x" * 600)) for _ in range(9)], daemon=True
    )
    reader.start()
    wait_for(lambda: made.full, 10, "a full box")
    made.close()
    reader.join(5)
    assert not reader.is_alive()


@pytest.mark.parametrize("last", [wire.REP, wire.ERR])
def test_nothing_comes_after_the_last_frame_of_a_stream(last: int) -> None:
    made = boxes(1)
    for frame in ((last, 1, b"{}"), data(1), (last, 1, b"{}")):
        made.put(frame)
    made.close()
    assert made.take(1) == (last, 1, b"{}")
    assert made.take(1) is None


def test_of_stream_0_there_is_one_frame() -> None:
    made = boxes(0)
    for text in (b"one", b"two"):
        made.put((wire.EVENT, 0, text))
    made.close()
    assert [made.take(0), made.take(0)] == [(wire.EVENT, 0, b"one"), None]


def test_streams_nobody_opened_are_dropped() -> None:
    made = boxes(1)
    made.put(data(7, b"x" * 5000))
    made.put(data(1))
    assert made.take(1) == data(1) and not made.full


def test_what_nobody_takes_is_bounded_though_somebody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inboxes, "MOST_BYTES", 10_000)
    made = boxes(1, 2)
    waiting = threading.Thread(target=lambda: made.take(2), daemon=True)
    waiting.start()
    with pytest.raises(wire.WireError, match="nobody asked for"):
        for _ in range(100):
            made.put(data(1, b"x" * 500))
    made.close()
    waiting.join(5)
