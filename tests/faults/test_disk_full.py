"""A disk that a run has filled: it can still be cancelled, and its end is still written."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import wait_for

FILLS = """
import time
while True:
    try:
        print("x" * 100_000, flush=True)
    except OSError:
        time.sleep(0.05)
"""


@pytest.fixture
def small_disk(local_worker: LocalWorker) -> Iterator[LocalWorker]:
    """A worker whose workspace is a file system of 8 MB."""
    local_worker.workspace.mkdir(mode=0o700)
    argv = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", local_worker.workspace]
    if os.geteuid() != 0 or subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    try:
        yield local_worker
    finally:
        local_worker.close()
        subprocess.run(["umount", "-l", local_worker.workspace], check=True)


def free_bytes(worker: LocalWorker) -> int:
    found = os.statvfs(worker.workspace)
    return found.f_bavail * found.f_frsize


@pytest.mark.parametrize("now", [False, True])
def test_the_run_that_fills_it_can_be_cancelled(small_disk: LocalWorker, now: bool) -> None:
    run = small_disk.python(FILLS, words=("grace=1s",))
    wait_for(lambda: free_bytes(small_disk) == 0, 20, "a full disk")
    began = time.monotonic()
    (report,) = small_disk.cancel(run, now=now)
    assert (report.outcome, report.error, report.left) == ("cancelled", None, ())
    assert time.monotonic() - began < 15
    assert small_disk.state(run)["outcome"] == "cancelled"
