"""A link to a real local worker that notes what the client sends and breaks where a test says.

`linked_host` puts a `docker` on PATH that starts this file in place of the worker program, which it
starts in turn; the host it gives shares the workspace of a local worker that is up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SIZE = 65536
MAGIC_SIZE = 14
WORDS_BEFORE_PROGRAM = 3
"""exec -i CONTAINER"""


@dataclass(frozen=True)
class Link:
    """What the file system holds of a link."""

    folder: Path

    def cut_after(self, count: int) -> None:
        """The next conversation breaks after so many bytes from the worker."""
        (self.folder / "limit").write_text(str(count))

    def take_down(self) -> None:
        """From now on every conversation breaks once the worker has said that it is one."""
        (self.folder / "down").touch()

    def bring_up(self) -> None:
        """Conversations work again."""
        (self.folder / "down").unlink()

    @property
    def sent(self) -> bytes:
        """Every byte that clients sent so far."""
        path = self.folder / "sent"
        return path.read_bytes() if path.exists() else b""

    @property
    def received(self) -> int:
        """How many bytes reached clients so far."""
        path = self.folder / "received"
        return path.stat().st_size if path.exists() else 0

    def forget(self) -> None:
        """Count anew."""
        for name in ("sent", "received"):
            (self.folder / name).unlink(missing_ok=True)


def make_link(folder: Path, set_env: Callable[[str, str], None]) -> Link:
    """Put the link on PATH; a host with `ssh = "local"` and runtime docker goes through it."""
    folder.mkdir()
    docker = folder / "docker"
    program = f"exec {sys.executable} -I -S {Path(__file__).resolve()} {folder}"
    docker.write_text(f'#!/bin/sh\n{program} "$@"\n')
    docker.chmod(0o755)
    set_env("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Link(folder)


def _relay(folder: Path, program: list[str]) -> None:
    limit = MAGIC_SIZE if (folder / "down").exists() else -1
    try:
        limit = int((folder / "limit").read_text())
        (folder / "limit").unlink()
    except FileNotFoundError:
        pass
    child = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin and child.stdout
    to_worker, from_worker = child.stdin.fileno(), child.stdout.fileno()

    def up() -> None:
        with open(folder / "sent", "ab", buffering=0) as note:
            while data := os.read(0, SIZE):
                note.write(data)
                while data:
                    data = data[os.write(to_worker, data) :]
        os.close(to_worker)

    threading.Thread(target=up, daemon=True).start()
    with open(folder / "received", "ab", buffering=0) as note:
        while limit and (data := os.read(from_worker, SIZE if limit < 0 else min(SIZE, limit))):
            limit -= len(data) if limit > 0 else 0
            note.write(data)
            while data:
                data = data[os.write(1, data) :]
    child.kill()
    child.wait()
    os._exit(0)


if __name__ == "__main__":
    _relay(Path(sys.argv[1]), sys.argv[2 + WORDS_BEFORE_PROGRAM :])
