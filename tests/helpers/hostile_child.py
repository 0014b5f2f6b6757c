"""The program of `hostile_worker`: says what a file tells it to, and starts as quickly as it can.

An act is a list: ["frame", kind, stream or null, hex], ["raw", hex], ["often", times or -1, act],
["slow", hex, seconds for each byte], ["wait", seconds], ["end"]. A stream of null is that of the
request. `@ID@` in a frame becomes the id of the run that the request is about.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from typing import Any

HEAD = struct.Struct(">IBI")
REQ = 1
MAGIC = b"runner-wire/1\n"


def write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def do(act: list[Any], stream: int, run: bytes) -> None:
    what = act[0]
    if what == "frame":
        _, kind, on, text = act
        payload = bytes.fromhex(text).replace(b"@ID@", run)
        write(HEAD.pack(len(payload), kind, stream if on is None else on) + payload)
    elif what == "raw":
        write(bytes.fromhex(act[1]))
    elif what == "often":
        times = act[1]
        while times:
            do(act[2], stream, run)
            times -= 1
    elif what == "slow":
        for byte in bytes.fromhex(act[1]):
            write(bytes([byte]))
            time.sleep(act[2])
    elif what == "wait":
        time.sleep(act[1])
    else:
        assert what == "end", what
        os._exit(0)


def speak(script: dict[str, Any]) -> None:
    for act in script["opening"]:
        do(act, 0, b"")
    plays: dict[str, list[Any]] = script["plays"]
    data = b""
    while more := os.read(0, 1 << 20):
        data += more
        while len(data) >= HEAD.size:
            size, kind, stream = HEAD.unpack_from(data)
            if len(data) < HEAD.size + size:
                break
            payload = data[HEAD.size : HEAD.size + size]
            data = data[HEAD.size + size :]
            if kind != REQ:
                continue
            request = json.loads(payload)
            told = request.get("run") or (request.get("spec") or {}).get("id") or ""
            acts = plays.get(request["verb"]) or [[]]
            for act in acts[0]:
                do(act, stream, str(told).encode())
            if len(acts) > 1:
                del acts[0]


if __name__ == "__main__":
    try:
        with open(sys.argv[1]) as file:
            script = json.load(file)
        speak(script)
    except BrokenPipeError:
        os._exit(0)
