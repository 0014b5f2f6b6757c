"""The worker's end of a conversation, spoken to by hand."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from runner import content, wire


class Raw:
    """A worker program and its two pipes."""

    def __init__(self, folder: Path, **environ: str) -> None:
        bundle = folder / "bundle"
        if not bundle.exists():
            with tarfile.open(fileobj=io.BytesIO(content.bundle().data)) as tar:
                tar.extractall(bundle, filter="data")
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
        self._frames = self._read()

    def _read(self) -> Iterator[tuple[int, int, bytes]]:
        reader = wire.FrameReader()
        # not os.read: readline may have taken more than the line
        while data := self._out.read1(65536):
            yield from reader.feed(data)

    def next(self, skip: tuple[int, ...] = (wire.PING,)) -> tuple[int, int, Any]:
        for kind, stream, payload in self._frames:
            if kind not in skip:
                return kind, stream, json.loads(payload) if payload else None
        raise EOFError

    def ask(self, stream: int, payload: bytes) -> None:
        self.write(wire.pack_frame(wire.REQ, stream, payload))
        self.flush()

    def end(self) -> int:
        try:
            self.child.communicate(timeout=10)
        finally:
            self.child.kill()
        return self.child.returncode


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Raw]:
    made = Raw(tmp_path)
    yield made
    made.end()


def test_it_speaks_first_and_says_what_it_is(raw: Raw) -> None:
    assert raw.magic == wire.MAGIC
    kind, stream, hello = raw.next()
    assert (kind, stream) == (wire.EVENT, 0)
    assert (hello["wire"], hello["runtime"]) == (wire.WIRE, "local")
    assert raw.next(skip=())[0] == wire.PING


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"\xff", b"[" * 200_000, b'{"verb": ["x"]}', b"{}"]
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
