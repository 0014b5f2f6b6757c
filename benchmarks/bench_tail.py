"""How much later than it is written a line is printed by `runner tail`; what a quiet one costs.

    python benchmarks/bench_tail.py [rounds=N]

A job on a host of the test rig's writes the time of day, line by line, 15 to 20 a second; both
ends are one machine, so its clock is the same. `runner tail` and `ssh tail -F` read the same lines
at the same time. Half of the link's round trip is how long news is on its way in any case: what
is beyond it is shown. Then a job that writes nothing is tailed: CPU time of the client with its
ssh, and of the worker program, as a share of one core.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import far  # noqa: E402
import pairs  # noqa: E402
import readings  # noqa: E402

from tests.rig.ways import MS100, NEAR, Way  # noqa: E402

ROUNDS = 3
LINES = 300
READ_LIMIT_S = 120.0
WARM_UP_S = 2.0
IDLE_S = 15.0
WRITER = """
import random, time
while True:
    print(time.time_ns(), flush=True)
    time.sleep(random.uniform(0.05, 0.07))
"""
MOST_MS, MOST_P99_MS = 20.0, 60.0


class Reader:
    """Notes how late each line of a process is; ends itself after enough."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self.late_ms: list[float] = []
        self._began = time.time()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            now = time.time_ns()
            # lines from before it was there were not waited for
            if int(line) / 1e9 > self._began + WARM_UP_S:
                self.late_ms.append((now - int(line)) / 1e6)
            if len(self.late_ms) >= LINES:
                return

    def finish(self) -> list[float]:
        """All delays, once there are enough."""
        self._thread.join(READ_LIMIT_S)
        if len(self.late_ms) < LINES:
            raise pairs.Failed(f"only {len(self.late_ms)} lines came in {READ_LIMIT_S:g} s")
        return self.late_ms


def late(client: far.Client, way: Way) -> dict[str, list[float]]:
    """Delays in ms of every line: of the runner, and of ssh beside it."""
    run = client.submit(way, "python3", "-c", WRITER)
    log = f"{far.WORKSPACE}/logs/{run}/rank-0.log"
    argvs = {
        "runner tail": client.argv("tail", run),
        "ssh tail -F": [*far.SSH, way.alias, f"tail -n +1 -F {log}"],
    }
    children = {
        name: client.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for name, argv in argvs.items()
    }
    with far.ended(*children.values()):
        readers = {name: Reader(child) for name, child in children.items()}
        found = {name: reader.finish() for name, reader in readers.items()}
    client.runner("cancel", run, "--now")
    return found


def idle(client: far.Client, way: Way) -> dict[str, float]:
    """Shares of a core in percent that a tail of a quiet run takes."""
    run = client.submit(way, "sleep", "600")
    before = client.programs()
    tail = client.popen(client.argv("tail", run), stdout=subprocess.PIPE)
    with far.ended(tail):
        programs = client.new_programs(before)
        time.sleep(3)  # until all that a start costs is over
        sides = {"client": far.family(tail.pid), "worker program": programs}
        began = time.monotonic()
        first = {side: sum(map(far.cpu_s, pids)) for side, pids in sides.items()}
        time.sleep(IDLE_S)
        took_s = time.monotonic() - began
        shares = {
            side: 100 * (sum(map(far.cpu_s, pids)) - first[side]) / took_s
            for side, pids in sides.items()
        }
    client.runner("cancel", run, "--now")
    return shares


def measure(client: far.Client, rounds: int) -> None:
    """Delays over both ways, then what quiet costs."""
    for way in (NEAR, MS100):
        found: dict[str, list[list[float]]] = {}
        for _ in range(rounds):
            for name, delays in late(client, way).items():
                beyond = [delay - way.round_trip_ms / 2 for delay in delays]
                found.setdefault(name, []).append(beyond)
        rows = []
        for name, all_rounds in found.items():
            ours = name == "runner tail"
            for word, share, most in (("p50", 0.5, MOST_MS), ("p99", 0.99, MOST_P99_MS)):
                values = [readings.percentile(each, share) for each in all_rounds]
                goal = most if ours else None
                rows.append(readings.Reading(f"{name}, {word}", "ms", values, goal))
        title = f"tail, {way.name}: later than written by half a round trip and"
        readings.report(f"tail-{way.name}", title, rows)
    shares = [idle(client, NEAR) for _ in range(rounds)]
    rows = [readings.Reading(side, "% of a core", [s[side] for s in shares]) for side in shares[0]]
    readings.report("tail-idle", "tail of a quiet run", rows)


if __name__ == "__main__":
    sys.exit(far.run("tail", sys.argv[1:], ROUNDS, measure))
