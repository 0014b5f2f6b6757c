"""A link to a real local worker that notes what both sides send and breaks where a test says.

`make_link` puts a `docker` on PATH that starts this file in place of the worker program, which it
starts in turn; the host it gives shares the workspace of a local worker that is up.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZE = 65536
MAGIC = b"runner-wire/1\n"
MAGIC_SIZE = len(MAGIC)
HEAD = struct.Struct(">IBI")
REPLY = 2
WORDS_BEFORE_PROGRAM = 3
"""exec -i CONTAINER"""
KILL, LINGER, HANG = "kill", "linger", "hang"
"""How it breaks: the worker's end dies as well; it goes on with what it has, its input open; nobody
is told, no byte comes any more."""
LINGER_S = 2.0
"""Enough for a worker to end what it has begun."""


class Link:
    """What the file system holds of a link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def cut_after(self, count: int) -> None:
        """The next conversation breaks after so many bytes from the worker."""
        self.plan({"down": count})

    def plan(self, *breaks: dict[str, Any]) -> None:
        """How the next conversations go, one for each; those after them are whole.

        down: break after so many bytes from the worker. up: after so many from the client. reply:
        break before the last byte of the worker's answer of that number, from 1. how: KILL, LINGER
        or HANG. rate: bytes a second, either way.
        """
        if not breaks:
            (self.folder / "plan").unlink(missing_ok=True)
            return
        (self.folder / "plan.new").write_text(json.dumps(list(breaks)))
        (self.folder / "plan.new").replace(self.folder / "plan")

    def take_down(self) -> None:
        """From now on every conversation breaks once the worker has said that it is one."""
        (self.folder / "down").touch()

    def bring_up(self) -> None:
        """Conversations work again."""
        (self.folder / "down").unlink()

    @property
    def sent(self) -> bytes:
        """Every byte that clients sent so far."""
        return b"".join(up for up, _ in self.talks)

    @property
    def received(self) -> int:
        """How many bytes reached clients so far."""
        return sum(len(down) for _, down in self.talks)

    @property
    def begun(self) -> int:
        """How many conversations there were, the one under way too."""
        return len(list(self.folder.glob("*.up")))

    @property
    def talks(self) -> list[tuple[bytes, bytes]]:
        """What went up and down in each conversation, in their order."""
        ups = sorted(self.folder.glob("*.up"), key=lambda path: int(path.stem))
        return [(path.read_bytes(), path.with_suffix(".down").read_bytes()) for path in ups]

    @property
    def replies(self) -> list[int]:
        """How many answers each conversation brought, in their order."""
        counters = [_Replies() for _ in self.talks]
        for counter, (_, down) in zip(counters, self.talks, strict=True):
            counter.find(down)
        return [counter.seen for counter in counters]

    def forget(self) -> None:
        """Count anew."""
        for path in [*self.folder.glob("*.up"), *self.folder.glob("*.down")]:
            path.unlink()


def program_size(up: bytes) -> int:
    """Bytes at the start of what a client sent that are the worker program."""
    return 8 + int(up[:8]) if up[:8].isdigit() else 0


def make_link(folder: Path, set_env: Callable[[str, str], None]) -> Link:
    """Put the link on PATH; a host with `ssh = "local"` and runtime docker goes through it."""
    folder.mkdir()
    docker = folder / "docker"
    program = f"exec {sys.executable} -I -S -B -W ignore {os.path.abspath(__file__)} {folder}"
    # ps: no other container is there
    docker.write_text(f'#!/bin/sh\n[ "$1" = exec ] || exit 0\n{program} "$@"\n')
    docker.chmod(0o755)
    set_env("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Link(folder)


def _next_plan(folder: Path) -> dict[str, Any]:
    """What this conversation is to go like; it is taken off the plan."""
    if (folder / "down").exists():
        return {"down": MAGIC_SIZE}
    try:
        first, *others = json.loads((folder / "plan").read_text())
    except FileNotFoundError:
        return {}
    if others:
        (folder / "plan.rest").write_text(json.dumps(others))
        (folder / "plan.rest").replace(folder / "plan")
    else:
        (folder / "plan").unlink()
    return dict(first)


def _note(folder: Path) -> tuple[int, int]:
    """Where this conversation is noted: files of its own, for each direction."""
    number = 1
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    while True:
        try:
            up = os.open(folder / f"{number}.up", flags, 0o644)
        except FileExistsError:
            number += 1
            continue
        return up, os.open(folder / f"{number}.down", flags, 0o644)


class _Replies:
    """Counts the answers in what a worker sends."""

    def __init__(self) -> None:
        self.seen = 0
        self._spoke = False
        self._unread = b""

    def find(self, data: bytes, wanted: int = 0) -> int | None:
        """Where in `data` the last byte of that answer stands."""
        self._unread += data
        if not self._spoke:
            at = self._unread.find(MAGIC)
            self._spoke = at >= 0
            self._unread = self._unread[at + MAGIC_SIZE :] if self._spoke else self._unread
        while self._spoke and len(self._unread) >= HEAD.size:
            size, kind, _ = HEAD.unpack_from(self._unread)
            if len(self._unread) < HEAD.size + size:
                break
            self._unread = self._unread[HEAD.size + size :]
            self.seen += kind == REPLY
            if kind == REPLY and self.seen == wanted:
                return len(data) - len(self._unread) - 1
        return None


class _Relay:
    """One conversation under way."""

    def __init__(self, folder: Path, program: list[str]) -> None:
        plan = _next_plan(folder)
        self.limits = {"up": int(plan.get("up", -1)), "down": int(plan.get("down", -1))}
        self.reply = int(plan.get("reply", 0))
        self.replies = _Replies()
        self.how = plan.get("how", KILL)
        self.rate = float(plan.get("rate", 0))
        self.notes = dict(zip(("up", "down"), _note(folder), strict=True))
        self.child = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.broken = threading.Event()

    def pump(self, way: str, source: int, target: int) -> None:
        """Pass bytes on, up to the limit of this direction."""
        left = self.limits[way]
        while not self.broken.is_set():
            if left == 0:
                self.snap()
                return
            size = SIZE if not self.rate else max(1, int(self.rate / 20))
            try:
                data = os.read(source, size if left < 0 else min(size, left))
            except OSError:
                data = b""
            if not data:
                break
            if self.rate:
                time.sleep(len(data) / self.rate)
            if self.broken.is_set():
                return
            if self.reply and way == "down":
                end = self.replies.find(data, self.reply)
                if end is not None:
                    data, left = data[:end], end
            left -= len(data) if left > 0 else 0
            view = memoryview(data)
            os.write(self.notes[way], view)
            with contextlib.suppress(BrokenPipeError):
                while view:
                    view = view[os.write(target, view) :]
        if not self.broken.is_set():
            self.ended(way, target)

    def ended(self, way: str, target: int) -> None:
        """One side closed its end: the other hears of it."""
        if way == "up":
            os.close(target)
        else:
            self.child.kill()
            self.child.wait()
            os._exit(0)

    def snap(self) -> None:
        """The link breaks."""
        self.broken.set()
        if self.how == HANG:
            time.sleep(3600)  # until the client gives up and ends this process
        if self.how == LINGER and os.fork() == 0:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            assert self.child.stdout
            os.set_blocking(self.child.stdout.fileno(), False)
            until = time.monotonic() + LINGER_S
            while time.monotonic() < until:  # what it says goes nowhere; its input stays open
                try:
                    if not os.read(self.child.stdout.fileno(), SIZE):
                        break
                except BlockingIOError:
                    time.sleep(0.02)
            os._exit(0)
        if self.how != LINGER:
            self.child.kill()
            self.child.wait()
        os._exit(0)


def _relay(folder: Path, program: list[str]) -> None:
    relay = _Relay(folder, program)
    assert relay.child.stdin and relay.child.stdout
    arguments = ("up", 0, relay.child.stdin.fileno())
    threading.Thread(target=relay.pump, args=arguments, daemon=True).start()
    relay.pump("down", relay.child.stdout.fileno(), 1)
    while True:
        time.sleep(60)  # the other direction ends this


if __name__ == "__main__":
    _relay(Path(sys.argv[1]), sys.argv[2 + WORDS_BEFORE_PROGRAM :])
