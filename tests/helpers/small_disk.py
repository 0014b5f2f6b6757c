"""A file system of a few bytes, for what happens when it is full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a file system of `size` (`1m`, `64k`) at `folder`; skips where that is not allowed."""
    folder.mkdir(mode=0o700, exist_ok=True)
    argv = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("left out: a small file system: only root can mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
