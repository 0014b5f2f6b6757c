"""The most memory that client and worker program hold: a 200 MB log tailed, 2 GB pulled.

    python benchmarks/bench_memory.py [rounds=N]

On a host of the test rig's without delay. The log is read once as fast as it comes and once by a
reader that takes 40 MB a second. Read until they end is the largest resident size (VmHWM) of the
client's own process, without its ssh, and of the largest worker program. Beside it stand those of
commands that move next to nothing.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bench_pull  # noqa: E402
import far  # noqa: E402
import pairs  # noqa: E402
import readings  # noqa: E402

from tests.rig.ways import NEAR  # noqa: E402

ROUNDS = 1
LOG_BYTES, CHECKPOINT_BYTES = 200_000_000, 2_000_000_000
SLOW_BYTES_S = 40_000_000
BLOCK = 1 << 20
LOOK_S = 0.01
LIMIT_S = 300.0
# 76 signs and a newline stand for 57 bytes
MAKE_LOG = f"head -c {LOG_BYTES * 57 // 77} /dev/urandom | base64"


class Peaks:
    """The largest sizes of a client and of the worker programs it has, while it runs."""

    def __init__(self, client: far.Client, child: subprocess.Popen[bytes], known: set[int]) -> None:
        self.client_mib = self.worker_mib = 0.0
        self._rig = client
        self._child = child
        self._known = known
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        programs: set[int] = set()
        looked_at = 0.0
        while self._child.poll() is None:
            if not programs or time.monotonic() - looked_at > 0.1:
                looked_at = time.monotonic()
                programs = self._rig.programs() - self._known
            self.client_mib = max(self.client_mib, far.peak_mib(self._child.pid))
            self.worker_mib = max([self.worker_mib, *map(far.peak_mib, programs)])
            time.sleep(LOOK_S)

    def finish(self) -> None:
        self._thread.join(LIMIT_S)


def read_fast(child: subprocess.Popen[bytes]) -> int:
    """Everything a process writes, as it comes; how many bytes."""
    assert child.stdout is not None
    total = 0
    while data := child.stdout.read(BLOCK):
        total += len(data)
    return total


def read_slowly(child: subprocess.Popen[bytes]) -> int:
    """The same, at a reader's own pace."""
    assert child.stdout is not None
    total, began = 0, time.monotonic()
    while data := child.stdout.read(BLOCK):
        total += len(data)
        time.sleep(max(0.0, began + total / SLOW_BYTES_S - time.monotonic()))
    return total


def peaks_of(
    client: far.Client,
    words: Sequence[str],
    read: Callable[[subprocess.Popen[bytes]], int] = read_fast,
    at_least: int = 0,
) -> Peaks:
    """Run a command and look at it; it must end well and print `at_least` bytes."""
    known = client.programs()
    child = client.popen(client.argv(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with far.ended(child):
        peaks = Peaks(client, child, known)
        printed = read(child)
        status = child.wait(LIMIT_S)
        peaks.finish()
        if status != 0 or printed < at_least:
            assert child.stderr is not None
            said = child.stderr.read(2000).decode("utf-8", "replace").strip()
            raise pairs.Failed(f"{words[0]}: exit {status} after {printed} bytes\n{said}")
    return peaks


def measure(client: far.Client, rounds: int) -> None:
    """Each in turn."""
    log = client.submit(NEAR, "sh", "-c", MAKE_LOG, wait=True)
    size = (client.workspace / "logs" / log / "rank-0.log").stat().st_size
    bench = bench_pull.make_large(client, NEAR, CHECKPOINT_BYTES)
    found: dict[str, list[Peaks]] = {}
    for _ in range(rounds):
        bench.fresh()()
        every: dict[str, Peaks] = {
            "tail, last 10 lines": peaks_of(client, ["tail", "-n", "10", log]),
            "tail of 200 MB": peaks_of(client, ["tail", log], at_least=size),
            "tail of 200 MB, slow reader": peaks_of(client, ["tail", log], read_slowly, size),
            "pull, nothing new": nothing_new(client, log, bench.top),
            "pull of 2 GB": peaks_of(client, bench.pull_argv("b")[3:]),
        }
        for what, peaks in every.items():
            found.setdefault(what, []).append(peaks)
    bench.clear()
    rows = []
    for what, all_rounds in found.items():
        rows.append(readings.Reading(f"{what}: client", "MiB", [p.client_mib for p in all_rounds]))
        rows.append(readings.Reading(f"{what}: worker", "MiB", [p.worker_mib for p in all_rounds]))
    readings.report("memory", "largest resident size", rows)


def nothing_new(client: far.Client, run: str, top: Path) -> Peaks:
    """A second pull of the same."""
    words = ["pull", run, "--to", str(top / "log")]
    client.runner(*words)
    return peaks_of(client, words)


if __name__ == "__main__":
    sys.exit(far.run("memory", sys.argv[1:], ROUNDS, measure))
