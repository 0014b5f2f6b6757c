"""Processes that can be named later without hitting a stranger: a pid and its start time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from tests.helpers.wait import wait_for
from tests.rig.paths import RigError

# kept, since Python warns of one that is dropped while it runs, and warnings are errors
_spawned: list[subprocess.Popen[bytes]] = []


def read_start(pid: int) -> int | None:
    """When `pid` started, in clock ticks since boot; None when it is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # the name in brackets may hold blanks and brackets itself
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def identify(pid: int) -> dict[str, int]:
    start = read_start(pid)
    if start is None:
        raise RigError(f"process {pid} ended at once")
    return {"pid": pid, "start": start}


def is_alive(process: dict[str, int]) -> bool:
    return read_start(process["pid"]) == process["start"]


def kill(process: dict[str, int], limit_s: float = 10.0) -> None:
    """End exactly this process and see it gone."""
    if not is_alive(process):
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(process["pid"], signal.SIGKILL)
    wait_for(lambda: not is_alive(process), limit_s, f"process {process['pid']} to end")


def run(
    argv: Sequence[str | Path], *, limit_s: float = 60.0, check: bool = True, **options: object
) -> subprocess.CompletedProcess[str]:
    """Run a command of the rig's own; its output is quoted when it fails."""
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        [str(word) for word in argv],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=limit_s,
        check=False,
        **options,
    )
    if check and done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise RigError(f"{' '.join(map(str, argv))} ended with {done.returncode}:\n{said}")
    return done


def spawn(argv: Sequence[str | Path], log: Path) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one, with its output in `log`."""
    with log.open("ab") as out:
        child = subprocess.Popen(
            [str(word) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            cwd="/",
        )
    _spawned.append(child)
    return child


@contextlib.contextmanager
def locked(path: Path, *, wait_s: float = 0.0, refusal: str) -> Iterator[IO[str]]:
    """Hold the lock file `path`; when another holds it, wait, then raise `refusal`.

    The file says who holds it; the kernel drops the lock with its holder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.seek(0)
                    raise RigError(refusal.format(holder=file.read().strip() or "?")) from None
                time.sleep(0.1)
        file.seek(0)
        file.truncate()
        file.write(f"pid {os.getpid()}")
        file.flush()
        try:
            yield file
        finally:
            file.truncate(0)
