"""A child process as a byte stream."""

from __future__ import annotations

import os
import sys
import threading
import time

import pytest

from runner.carriers import open_carrier
from runner.carriers.local import ChildCarrier
from runner.errors import ProvisionError, WorkerError
from runner.model import Host
from tests.helpers.wait import wait_for

HERE = Host("local", runtime="local")


def start(*argv: str) -> ChildCarrier:
    carrier = open_carrier(HERE, argv)
    assert isinstance(carrier, ChildCarrier)
    return carrier


def test_bytes_go_both_ways_at_once() -> None:
    carrier, data, back = start("cat"), os.urandom(8 << 20), bytearray()
    thread = threading.Thread(target=lambda: (carrier.write(data), carrier.close_write()))
    thread.start()
    while piece := carrier.read(1 << 20):
        back += piece
    thread.join()
    assert bytes(back) == data
    assert carrier.failure() is None
    carrier.close()


def test_a_read_gives_at_most_what_was_asked_for() -> None:
    carrier = start("printf", "abcdef")
    assert carrier.read(4) == b"abcd" and carrier.read(4) == b"ef" and carrier.read(4) == b""
    carrier.close()


def test_closing_wakes_a_reader_and_a_writer() -> None:
    carrier, ended = start("sleep", "60"), []

    def write() -> None:
        with pytest.raises(OSError):
            carrier.write(b"x" * (4 << 20))
        ended.append("writer")

    def read() -> None:
        assert carrier.read(1) == b""
        ended.append("reader")

    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    began = time.monotonic()
    carrier.close()
    for thread in threads:
        thread.join(5)
    assert sorted(ended) == ["reader", "writer"] and time.monotonic() - began < 2
    carrier.close()


def test_closing_wakes_a_reader_though_a_stranger_holds_the_pipe() -> None:
    carrier = start("sh", "-c", "sleep 5 2>/dev/null & exec sleep 60")
    threading.Timer(0.2, carrier.close).start()
    began = time.monotonic()
    assert carrier.read(1) == b"" and time.monotonic() - began < 2
    carrier.close()


def test_closing_ends_the_program_though_it_ignores_term() -> None:
    carrier = start("sh", "-c", "trap '' TERM; echo $$; while :; do sleep 1; done")
    pid = int(carrier.read(20))
    carrier.close()
    wait_for(lambda: not os.path.exists(f"/proc/{pid}"), 5, "the program to be gone")


def test_a_program_that_left_is_seen_when_writing() -> None:
    carrier = start("true")
    assert carrier.read(1) == b""
    with pytest.raises(OSError):
        for _ in range(100):
            carrier.write(b"x" * 65536)
    carrier.close()


def test_a_failure_quotes_the_last_line() -> None:
    carrier = start(sys.executable, "-c", "import sys; sys.exit('it broke')")
    assert carrier.read(1) == b""
    failure = carrier.failure()
    assert isinstance(failure, WorkerError) and failure.advice == ("it said: it broke",)
    assert carrier.trouble() == "it broke"
    carrier.close()


def test_words_of_docker_are_understood_here_too() -> None:
    carrier = start("sh", "-c", "echo 'Error: No such container: x' >&2; exit 1")
    assert carrier.read(1) == b""
    assert isinstance(carrier.failure(), ProvisionError)
    carrier.close()


def test_what_is_said_without_end_is_kept_short() -> None:
    carrier = start("sh", "-c", "yes 0123456789 | head -c 1000000 >&2")
    assert carrier.read(1) == b""
    wait_for(lambda: 1000 < len(carrier.trouble()) <= 16384, 5, "the end of stderr")
    carrier.close()
