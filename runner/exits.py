"""How a command ends: every error becomes its message on stderr and its exit status."""

from __future__ import annotations

import os
import select
import sys
import tempfile
import time
import traceback
from pathlib import Path

from runner.errors import BUG_STATUS


def reader_gone() -> bool:
    """Whether whoever read our stdout has gone away (a pipe into `head`)."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return False


def open_standard_streams() -> None:
    """A stream that was closed before we began is /dev/null: no file of ours may take its place."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w" if fd else "r"))  # noqa: SIM115


def hush() -> None:
    """Makes stdout swallow what is still buffered, so that the end of Python says nothing."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass


def report_bug(error: BaseException) -> int:
    """Says in short that this is a bug, and writes the traceback (no values of ours) to a file."""
    what = f"{type(error).__name__}: {error}".split("\n")[0]
    lines = [f"runner: this is a bug ({ascii(what)[1:-1][:200]})"]
    path = write_traceback(error)
    lines.append(f"  the traceback is in {path}" if path else "  nowhere to write the traceback")
    sys.stderr.write("\n".join(lines) + "\n")
    return BUG_STATUS


def write_traceback(error: BaseException) -> Path | None:
    """The file the traceback went to: under ~/.cache/runner, else a temporary one."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    data = text.encode("utf-8", "backslashreplace")
    prefix = time.strftime("bug-%Y%m%d-%H%M%S-")
    for folder in (_cache_folder(), None):
        try:
            if folder is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=prefix, suffix=".txt", dir=folder)
        except OSError:
            continue
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        return Path(name)
    return None


def _cache_folder() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME")
    if not base or not os.path.isabs(base):
        return None
    folder = Path(base) if os.environ.get("XDG_CACHE_HOME") else Path(base) / ".cache"
    return folder / "runner"
