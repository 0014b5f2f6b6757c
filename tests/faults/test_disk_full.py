"""A disk that a run has filled: it can still be cancelled, and its end is still written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.helpers.local_worker import LocalWorker
from tests.helpers.small_disk import small_disk
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
def full_worker(local_worker: LocalWorker) -> Iterator[LocalWorker]:
    """A worker whose workspace is a file system of 8 MB."""
    with small_disk(local_worker.workspace, "8m"):
        yield local_worker
        local_worker.close()


def free_bytes(worker: LocalWorker) -> int:
    found = os.statvfs(worker.workspace)
    return found.f_bavail * found.f_frsize


@pytest.mark.parametrize("now", [False, True])
def test_the_run_that_fills_it_can_be_cancelled(full_worker: LocalWorker, now: bool) -> None:
    run = full_worker.python(FILLS, words=("grace=1s",))
    wait_for(lambda: free_bytes(full_worker) == 0, 20, "a full disk")
    began = time.monotonic()
    (report,) = full_worker.cancel(run, now=now)
    assert (report.outcome, report.error, report.left) == ("cancelled", None, ())
    assert time.monotonic() - began < 15
    assert full_worker.state(run)["outcome"] == "cancelled"
