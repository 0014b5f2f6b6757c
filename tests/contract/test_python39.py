"""The worker program under a real Python 3.9: every module, and a whole conversation."""

from __future__ import annotations

import json
import os
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import wire
from tests.helpers.bundles import unpack_bundle

IMPORT_ALL = """
import importlib, pathlib, sys
top = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(top))
for path in sorted(top.rglob("*.py")):
    name = ".".join(path.relative_to(top).with_suffix("").parts)
    if name != "__main__":
        importlib.import_module(name.replace(".__init__", ""))
print("%d.%d" % sys.version_info[:2])
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return unpack_bundle(tmp_path / "bundle")


class Conversation:
    """The client's end of one, spoken by hand to a worker program of another Python."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.child = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.child.stdin is not None and self.child.stdout is not None
        self._in, self._out = self.child.stdin, self.child.stdout
        self._frames = self._read()
        self.hello = self._next()[2]
        self._stream = 0

    def ask(self, verb: str, rows: Any = None, **arguments: Any) -> tuple[dict[str, Any], bytes]:
        """(reply, data) of a request; `rows` is sent as the listing it takes."""
        self._stream += 1
        self._send(wire.pack_json(wire.REQ, self._stream, dict(arguments, verb=verb)))
        if rows is not None:
            self.send(zlib.compress(json.dumps(rows).encode()))
        data = b""
        while True:
            kind, _, body = self._next()
            if kind in (wire.REP, wire.ERR):
                assert kind == wire.REP, body
                return body, data
            if kind == wire.DATA:
                data += body
            elif isinstance(body.get("need"), list):
                self.send(self.pack)

    pack = b""

    def send(self, data: bytes) -> None:
        self._send(wire.pack_frame(wire.DATA, self._stream, data))
        self._send(wire.pack_frame(wire.END, self._stream))

    def close(self) -> None:
        self._in.close()
        self.child.wait(10)
        self._out.close()

    def _send(self, data: bytes) -> None:
        self._in.write(data)
        self._in.flush()

    def _read(self) -> Iterator[tuple[int, int, bytes]]:
        reader = wire.FrameReader()
        begin = b""
        while len(begin) < len(wire.MAGIC):
            # never more: what comes right behind it would be lost in a buffer
            begin += os.read(self._out.fileno(), len(wire.MAGIC) - len(begin)) or b"?"
        assert begin == wire.MAGIC
        while data := os.read(self._out.fileno(), 65536):
            yield from reader.feed(data)

    def _next(self) -> tuple[int, int, Any]:
        for kind, stream, payload in self._frames:
            if kind != wire.PING:
                return kind, stream, payload if kind == wire.DATA else wire.read_json(payload)
        raise AssertionError("the worker went away")


def test_every_module_of_the_worker_is_imported_by_3_9(python39: str, bundle: Path) -> None:
    argv = [python39, "-I", "-S", "-W", "error", "-c", IMPORT_ALL, str(bundle)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "3.9"), done.stderr


def test_a_run_from_submit_to_tail_under_3_9(python39: str, bundle: Path, tmp_path: Path) -> None:
    """supervisord is not there, so the dispatcher is started by hand; all else is as always."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "RUNNER_WORKSPACE": str(tmp_path / "ws"),
        "RUNNER_LEASES": str(tmp_path / "leases"),
    }
    program = [python39, "-I", "-S", str(bundle)]
    dispatcher = subprocess.Popen([*program, "dispatcher"], env=env)
    try:
        conversation = Conversation([*program, "serve"], env)
        assert conversation.hello["python"].startswith("3.9.")
        text = b"echo from the snapshot; exit 4\n"
        import hashlib

        digest = hashlib.sha256(text).hexdigest()
        rows = [["main.sh", "f", 0o644, len(text), digest]]
        head = wire.PACK_HEAD.pack(bytes.fromhex(digest), len(text))
        conversation.pack = zlib.compress(head + text)
        spec = {"id": "cmd-39393", "argv": ["sh", "main.sh"], "nproc": 1, "gpus": 0}
        spec["snapshot"] = wire.tree_digest(rows)
        deadline = time.monotonic() + 20
        while not conversation.ask("info")[0]["up"]:
            assert time.monotonic() < deadline
        reply, _ = conversation.ask("submit", rows, spec=spec, list="whole")
        assert (reply["id"], reply["repeated"]) == ("cmd-39393", False)
        reply, data = conversation.ask("tail", run="cmd-39393", rank=0, follow=True)
        assert data[wire.TAIL_HEAD.size :] == b"from the snapshot\n"
        assert (reply["run"]["outcome"], reply["run"]["cause"]["code"]) == ("failed", 4)
        _, data = conversation.ask("runs", ids=["cmd-39393"], full=True)
        (run,) = json.loads(zlib.decompress(data))
        assert wire.RunStatus.from_json(run).attempts[0]["cause"]["kind"] == "exit"
        conversation.close()
    finally:
        dispatcher.terminate()
        assert dispatcher.wait(10) == 0
