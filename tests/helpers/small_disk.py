"""A file system of a few bytes, for what happens when it is full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(
    folder: Path, size: str, kind: str = "tmpfs", inodes: int | None = None
) -> Iterator[None]:
    """Mount a file system of `size` (`1m`, `64k`) at `folder`; skips where that is not allowed.

    kind `ramfs`: one without sparse files, which knows no limit. inodes: for how many files.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    options = f"size={size},mode=0700" if kind == "tmpfs" else "mode=0700"
    if inodes is not None:
        options += f",nr_inodes={inodes}"
    argv = ["mount", "-t", kind, "-o", options, kind, str(folder)]
    if os.geteuid() != 0 or subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("left out: root: only it can mount a small file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def free_bytes(folder: Path) -> int:
    """Room that is left there."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def fill(folder: Path, leave: int = 0) -> Path:
    """A file that takes all the room there is (but `leave`); remove it to make room."""
    path = folder / "filler"
    if leave:
        path.write_bytes(bytes(max(0, free_bytes(folder) - leave)))
        return path
    with open(path, "wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert free_bytes(folder) == 0
    return path


def use_up_inodes(folder: Path) -> Path:
    """A folder of empty files that leaves room for no other; remove it to make room."""
    top = folder / "fillers"
    top.mkdir(exist_ok=True)
    number = len(list(top.iterdir()))
    with contextlib.suppress(OSError):
        while True:
            (top / str(number)).touch()
            number += 1
    assert os.statvfs(folder).f_favail == 0
    return top
