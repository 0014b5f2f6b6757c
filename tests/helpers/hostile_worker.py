"""A worker that answers what a test wrote down, however wrong; a real child process.

`hostile_host` puts a `docker` on PATH that starts this file, and gives a host reached through it.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from runner import wire  # noqa: E402
from runner.model import Host  # noqa: E402

HELLO = {"wire": 1, "version": "0", "worker": "w-bad", "runtime": "docker", "image": None}
Frame = tuple[int, Any]
"""A kind, and a table, a list of rows (sent compressed), or bytes as hex text."""


def hostile_host(
    folder: Path,
    set_env: Callable[[str, str], None],
    answers: dict[str, Sequence[Frame]] | None = None,
    **script: Any,
) -> Host:
    """A host whose worker answers each verb with these frames, on the stream it was asked on.

    before: text before the worker speaks. raw: hex of bytes in place of the first frame. endless:
    the last frame of an answer is sent for ever. mute: it never speaks. dies: it ends after its
    hello. ends: it ends after an answer.
    """
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    body = dict(script, answers=answers or {})
    (bin_folder / "script.json").write_text(json.dumps(body))
    words = [sys.executable, str(Path(__file__).resolve()), str(bin_folder / "script.json")]
    docker = bin_folder / "docker"
    docker.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
    docker.chmod(0o755)
    set_env("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    return Host("bad", ssh="local")


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _frame(kind: int, stream: int, body: Any) -> bytes:
    if isinstance(body, dict):
        return wire.pack_json(kind, stream, body)
    if isinstance(body, list):
        return wire.pack_frame(kind, stream, zlib.compress(json.dumps(body).encode()))
    return wire.pack_frame(kind, stream, bytes.fromhex(body))


def _speak(script: dict[str, Any]) -> None:
    _write(script.get("before", "").encode())
    if script.get("mute"):
        time.sleep(60)
    _write(wire.MAGIC)
    if "raw" in script:
        _write(bytes.fromhex(script["raw"]))
    else:
        _write(wire.pack_json(wire.EVENT, 0, dict(HELLO, now=time.time())))
    if script.get("dies"):
        return
    reader = wire.FrameReader()
    while data := os.read(0, wire.CHUNK):
        for kind, stream, payload in reader.feed(data):
            if kind != wire.REQ:
                continue
            frames = script["answers"].get(wire.read_json(payload)["verb"], [])
            for frame in frames:
                _write(_frame(frame[0], stream, frame[1]))
            while script.get("endless") and frames:
                _write(_frame(frames[-1][0], stream, frames[-1][1]))
            if script.get("ends"):
                return


if __name__ == "__main__":
    try:
        _speak(json.loads(Path(sys.argv[1]).read_text()))
    except BrokenPipeError:
        os._exit(0)
