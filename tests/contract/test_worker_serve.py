"""The worker's end of a conversation, spoken to by hand."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import pytest

from runner import wire
from tests.helpers.bundles import unpack_bundle

PATIENCE_S = 3.0
ENDLESS = 1 << 40


class Raw:
    """A worker program and its two pipes."""

    def __init__(self, folder: Path, *, patience_s: float | None = None, **environ: str) -> None:
        """patience_s: in place of the one it has."""
        bundle = folder / "bundle"
        if not bundle.exists():
            unpack_bundle(bundle)
        if patience_s is not None:
            source = bundle / "runner/wire.py"
            line = f"WORKER_PATIENCE_S = {wire.WORKER_PATIENCE_S}\n"
            assert line in source.read_text()
            source.write_text(source.read_text().replace(line, f"{line[:20]}{patience_s}\n"))
        env = dict(os.environ, RUNNER_WORKSPACE=str(folder / "ws"), HOME=str(folder), **environ)
        self.child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(bundle), "serve"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.child.stdin is not None and self.child.stdout is not None
        self.write = self.child.stdin.write
        self._out = cast(io.BufferedReader, self.child.stdout)
        self.flush = self.child.stdin.flush
        self.magic = self._out.readline()
        self.frames = self._read()

    def _read(self) -> Iterator[tuple[int, int, bytes]]:
        reader = wire.FrameReader()
        # not os.read: readline may have taken more than the line
        while data := self._out.read1(65536):
            yield from reader.feed(data)

    def next(self, skip: tuple[int, ...] = (wire.PING,)) -> tuple[int, int, Any]:
        for kind, stream, payload in self.frames:
            if kind not in skip:
                return kind, stream, json.loads(payload) if payload else None
        raise EOFError

    @property
    def peak_mib(self) -> int:
        """The most memory it had so far."""
        lines = Path(f"/proc/{self.child.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) >> 10

    def ask(self, stream: int, payload: bytes) -> None:
        self.write(wire.pack_frame(wire.REQ, stream, payload))
        self.flush()

    def end(self) -> int:
        try:
            self.child.communicate(timeout=10)
        finally:
            self.child.kill()
        return self.child.returncode

    def kill(self) -> None:
        """End it, whatever is under way."""
        self.child.kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout, self.child.stderr):
            with contextlib.suppress(OSError):  # what was written and not sent
                cast(IO[bytes], stream).close()


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Raw]:
    made = Raw(tmp_path)
    yield made
    made.end()


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Raw]:
    """One of little patience, with an endless log."""
    made = Raw(tmp_path, patience_s=PATIENCE_S)
    add_endless_log(tmp_path, made)
    yield made
    made.kill()


def add_endless_log(folder: Path, worker: Raw) -> None:
    """A run `a-1`."""
    assert worker.next()[0] == wire.EVENT  # its workspace is there
    run, logs = folder / "ws/runs/a-1", folder / "ws/logs/a-1"
    run.mkdir(parents=True)
    logs.mkdir(parents=True)
    (run / "spec.json").write_text('{"id": "a-1", "nproc": 1}')
    with open(logs / "rank-0.log", "wb") as log:
        log.truncate(ENDLESS)


TAIL = b'{"verb": "tail", "run": "a-1"}'


def test_it_speaks_first_and_says_what_it_is(raw: Raw) -> None:
    assert raw.magic == wire.MAGIC
    kind, stream, hello = raw.next()
    assert (kind, stream) == (wire.EVENT, 0)
    assert (hello["wire"], hello["runtime"]) == (wire.WIRE, "local")
    assert raw.next(skip=())[0] == wire.PING


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"{", b"[]", b"\xff", b"[" * 200_000, b'{"verb": ["x"]}', b"{}"),
        b'{"verb": "info", "x": ' + b"[" * 200 + b"]" * 200 + b"}",
        b'{"x":' * 200 + b"1" + b"}" * 200,
    ],
)
def test_a_request_that_is_none_is_refused_and_the_next_one_answered(
    raw: Raw, payload: bytes
) -> None:
    raw.next()
    raw.ask(1, payload)
    kind, stream, body = raw.next()
    assert (kind, stream) == (wire.ERR, 1)
    assert body["code"] in ("bad-request", "no-verb")
    raw.ask(2, b'{"verb": "info"}')
    kind, stream, _ = raw.next()
    assert (kind, stream) == (wire.REP, 2)


def test_what_is_no_frame_ends_it(raw: Raw) -> None:
    raw.next()
    raw.write(b"GET / HTTP/1.1\r\n\r\n")
    raw.flush()
    with pytest.raises(EOFError):
        raw.next()
    assert raw.end() != 0


def test_several_requests_stand_beside_each_other(raw: Raw) -> None:
    raw.next()
    for stream in range(1, 6):
        raw.ask(stream, b'{"verb": "info"}')
    assert {raw.next()[1] for _ in range(5)} == {1, 2, 3, 4, 5}


def test_it_ends_with_its_client(raw: Raw) -> None:
    raw.next()
    raw.ask(1, b'{"verb": "wait", "ids": []}')
    assert raw.next()[0] == wire.REP
    assert raw.end() == 0


def test_requests_at_once_are_bounded(raw: Raw, tmp_path: Path) -> None:
    add_endless_log(tmp_path, raw)
    many = 260
    for stream in range(1, many + 1):
        raw.write(wire.pack_frame(wire.REQ, stream, TAIL))
    raw.flush()
    refused: set[int] = set()
    while len(refused) < many - 256:
        kind, stream, payload = next(raw.frames)
        if kind == wire.ERR:
            assert json.loads(payload)["code"] == "busy"
            refused.add(stream)
    assert refused == set(range(257, many + 1))
    raw.child.kill()


def test_a_stream_has_one_request(hasty: Raw) -> None:
    for _ in range(2):
        hasty.ask(1, TAIL)
    with pytest.raises(EOFError):
        while True:
            hasty.next(skip=(wire.PING, wire.DATA))
    assert hasty.end() == 1


def test_it_ends_when_its_client_falls_silent_while_much_is_sent(hasty: Raw) -> None:
    hasty.ask(1, TAIL)
    assert hasty.child.wait(PATIENCE_S + 20) == 3


def test_a_client_that_reads_slowly_is_not_silent(hasty: Raw) -> None:
    hasty.ask(1, TAIL)
    began = time.monotonic()
    came = 0
    while time.monotonic() - began < 3 * PATIENCE_S:
        hasty.write(wire.pack_frame(wire.PING, 0))
        hasty.flush()
        came += len(next(hasty.frames)[2])
        time.sleep(PATIENCE_S / 5)  # slow is what this is about
    assert hasty.child.poll() is None
    assert 0 < came < ENDLESS


def test_a_client_that_floods_it_waits_and_ends_with_itself(hasty: Raw) -> None:
    hasty.ask(1, TAIL)
    assert hasty.next()[0] == wire.EVENT
    piece = wire.pack_frame(wire.DATA, 1, bytes(wire.CHUNK))
    assert hasty.child.stdin is not None
    fd = hasty.child.stdin.fileno()
    os.set_blocking(fd, False)
    sent, before, began = 0, hasty.peak_mib, time.monotonic()
    reading = threading.Thread(target=lambda: [0 for _ in hasty.frames], daemon=True)
    reading.start()
    while time.monotonic() - began < 2 * PATIENCE_S:
        try:
            sent += os.write(fd, piece[sent % len(piece) :])
        except BlockingIOError:
            time.sleep(0.05)
    assert hasty.child.poll() is None, "it is the verb that has not taken what came"
    assert sent < 64 << 20
    assert hasty.peak_mib - before < 48
    hasty.child.stdin.close()
    assert hasty.child.wait(PATIENCE_S + 20) == 3
    reading.join(10)


@pytest.mark.slow
def test_it_ends_when_its_client_falls_silent(raw: Raw) -> None:
    raw.next()
    assert raw.child.wait(wire.WORKER_PATIENCE_S + 5) == 3


def test_a_workspace_that_holds_ssh_keys_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ws/.ssh").mkdir(parents=True)
    raw = Raw(tmp_path)
    kind, stream, body = raw.next()
    assert (kind, stream, body["code"]) == (wire.ERR, 0, "bad-workspace")
    assert raw.end() == 2
    assert [entry.name for entry in (tmp_path / "ws").iterdir()] == [".ssh"]
