"""A worker that answers what a test wrote down, however wrong; a real child process.

`hostile_host` puts a `docker` on PATH that starts `hostile_child`, and gives a host reached through
it. `put_hostile` does that for acts as they are.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner import wire
from runner.model import Host

HELLO = {"wire": 1, "version": "0", "worker": "w-bad", "runtime": "docker", "image": None}
CHILD = Path(__file__).resolve().with_name("hostile_child.py")
Frame = tuple[int, Any]
"""A kind, and a table, a list of rows (sent compressed), or bytes as hex text."""
Act = list[Any]
"""What the child does: see `hostile_child`."""


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
    opening = [["raw", script.get("before", "").encode().hex()]]
    opening += [["wait", 60]] if script.get("mute") else []
    hello = ["raw", script["raw"]] if "raw" in script else hello_act()
    opening += [["raw", wire.MAGIC.hex()], hello, *([["end"]] if script.get("dies") else [])]
    plays = {}
    for verb, frames in (answers or {}).items():
        acts = [frame_act(kind, body) for kind, body in frames]
        if script.get("endless") and acts:
            acts.append(["often", -1, acts[-1]])
        plays[verb] = [[*acts, *([["end"]] if script.get("ends") else [])]]
    put_hostile(folder, set_env, plays, opening)
    return Host("bad", ssh="local")


def put_hostile(
    folder: Path,
    set_env: Callable[[str, str], None],
    plays: Mapping[str, Sequence[Sequence[Act]]],
    opening: Sequence[Act] | None = None,
) -> None:
    """Put a `docker` on PATH behind which is this worker: for each verb what it does when asked the
    first time, the second time, and so on; the last once more from then on.
    """
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    acts = [["raw", wire.MAGIC.hex()], hello_act()] if opening is None else opening
    (bin_folder / "script.json").write_text(json.dumps({"opening": acts, "plays": plays}))
    docker = bin_folder / "docker"
    if not docker.exists():
        words = [sys.executable, "-I", "-S", "-B", str(CHILD), str(bin_folder / "script.json")]
        docker.write_text(f"#!/bin/sh\nexec {shlex.join(words)}\n")
        docker.chmod(0o755)
    if not os.environ["PATH"].startswith(f"{bin_folder}{os.pathsep}"):
        set_env("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")


def hello_act(**other: Any) -> Act:
    """What a worker says first."""
    return frame_act(wire.EVENT, {**HELLO, "now": time.time(), **other}, 0)


def frame_act(kind: int, body: Any = b"", stream: int | None = None) -> Act:
    """One frame; a table is sent as JSON, a list as compressed rows, text is hex of bytes."""
    if isinstance(body, dict):
        body = json.dumps(body).encode()
    elif isinstance(body, list):
        body = zlib.compress(json.dumps(body).encode())
    return ["frame", kind, stream, body.hex() if isinstance(body, bytes) else body]
