"""A clock that jumps, for a `local` worker and all that comes of it.

The worker's and the jobs' Python is a small program that preloads the library below and becomes the
real one. The monotonic clock and every sleep go on undisturbed, as they do when somebody sets a
machine's clock. (Debian's libfaketime 0.9.10 would do, but makes Python's sleep fail in that mode.)
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

DAY_S = 86400
SOURCE = """
struct timespec { long sec, nsec; };
struct timeval { long sec, usec; };
extern long syscall(long, ...);
extern int open(const char *, int, ...);
extern long read(int, void *, unsigned long);
extern int close(int);

static long jumped(void) {
    long by = 0;
    int fd = open(OFFSET, 02000000);
    if (fd < 0) return 0;
    if (read(fd, &by, sizeof by) != sizeof by) by = 0;
    close(fd);
    return by;
}
int clock_gettime(int clock, struct timespec *now) {
    int failed = syscall(GETTIME, clock, now);
    if (!failed && (clock == 0 || clock == 5)) now->sec += jumped();
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(0, &found);
    now->sec = found.sec;
    now->usec = found.nsec / 1000;
    return 0;
}
long time(long *into) {
    struct timespec found;
    clock_gettime(0, &found);
    if (into) *into = found.sec;
    return found.sec;
}
"""
"""No header is needed, so that a compiler alone will do."""
GETTIME = {"x86_64": 228, "aarch64": 113}


class FakeClock:
    """The clock of what runs under `python`."""

    def __init__(self, folder: Path, machine: str) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            pytest.skip("left out: a C compiler: not installed")
        if machine not in GETTIME:
            pytest.skip(f"left out: a clock that jumps: not written for {machine}")
        folder.mkdir()
        self._offset = folder / "offset"
        self.jump(0)
        library = folder / "clock.so"
        argv = [compiler, "-shared", "-fPIC", "-nostdlib", f'-DOFFSET="{self._offset}"']
        argv += [f"-DGETTIME={GETTIME[machine]}", "-w", "-x", "c", "-", "-o", str(library)]
        subprocess.run(argv, input=SOURCE.encode(), check=True)
        self.python = folder / "python"
        words = f'exec env LD_PRELOAD={library} {sys.executable} "$@"'
        self.python.write_text(f"#!/bin/sh\n{words}\n")
        self.python.chmod(0o755)
        (folder / "python3").symlink_to(self.python)

    def jump(self, seconds: int) -> None:
        """From now on it shows that much more than the true time."""
        new = self._offset.with_suffix(".new")
        new.write_bytes(struct.pack("@l", seconds))
        new.replace(self._offset)
