"""Two ranks of an agent: as threads for what only adds numbers, or as processes with gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

WAIT_S = 60


class Adding:
    """Stands for a runtime.Run of two ranks that are threads: `reduce_sum` alone."""

    def __init__(self, rank: int, told: list[Any], meet: threading.Barrier) -> None:
        self.rank, self.world, self._told, self._meet = rank, 2, told, meet

    def reduce_sum(self, numbers: Any) -> Any:
        self._told[self.rank] = numbers
        self._meet.wait(WAIT_S)
        total = self._told[0] + self._told[1]
        self._meet.wait(WAIT_S)  # before either says its next number
        return total


def as_threads(work: Callable[[Any], Any]) -> list[Any]:
    """What `work(run)` returns on each of two ranks."""
    told, meet = [None, None], threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(work, [Adding(rank, told, meet) for rank in range(2)]))


def as_processes(code: str, folder: Path, *words: str) -> list[str]:
    """What a script prints on each of two ranks, its folders below `folder`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, *words],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "PYTHONWARNINGS": "error",
                 "RUNNER_CHECKPOINTS": str(folder / "checkpoints"),
                 "RUNNER_LOGS": str(folder / "logs")},
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    outputs = [rank.communicate(timeout=2 * WAIT_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    return [out for out, _ in outputs]
