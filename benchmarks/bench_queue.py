"""What a long queue costs: one dispatch with 10 and with 10,000 runs waiting, memory, idling.

    python benchmarks/bench_queue.py [rounds=N]

A `local` worker with 8 slots, all taken; then 100 runs of `true`, 8 more that hold the slots after
them, and behind these those that only wait. Their folders are written in bulk, the dispatcher
takes them up as it does any. Once the slots are free, the CPU seconds of the dispatcher (its forks
too, launchers not) and the wall time until the hundredth has ended are divided by 100. With the
long queue also: memory of dispatcher and supervisord, and their share of a core over 30 s.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "provisioning" / "worker")]

import pairs  # noqa: E402
import records  # noqa: E402
import wakeup  # noqa: E402
from bench_dispatch import queue  # noqa: E402
from paths import Workspace  # noqa: E402

from tests.helpers.local_worker import LocalWorker  # noqa: E402
from tests.helpers.wait import wait_for  # noqa: E402

SHORT, LONG = 10, 10_000
DISPATCHED, SLOTS = 100, 8
IDLE_S = 30.0
LIMIT_S = 300.0
MOST_COST = 1.5
"""Times the cost with a short queue that counts as flat: what two rounds differ by is not less."""
MOST_MIB = 30.0
MOST_IDLE = 0.005
HOLD = ("sh", "-c", 'exec cat "$0"')


@dataclass(frozen=True)
class Found:
    """One worker with so many waiting."""

    waiting: int
    taken_up_s: float
    taken_up_cpu_s: float
    cpu_ms: float
    """Of the dispatcher, for each run that was dispatched."""
    wall_ms: float
    dispatcher_mib: float
    supervisor_mib: float
    idle_share: float
    idle_supervisor_share: float


def cpu_s(stat: str) -> float:
    """CPU seconds in a line of /proc/PID/stat, with those of children that were waited for."""
    ticks = stat.rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def rss_mib(status: str) -> float:
    """Resident MiB in a text of /proc/PID/status."""
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def verdicts(rounds: Sequence[tuple[Found, Found]]) -> list[tuple[str, float, float, bool]]:
    """(what, found, goal, met) of rounds of a short and a long queue each."""

    def row(what: str, numbers: list[float], most: float) -> tuple[str, float, float, bool]:
        found = statistics.median(numbers)
        return what, found, most, found <= most

    return [
        row("CPU of a dispatch, times", [b.cpu_ms / a.cpu_ms for a, b in rounds], MOST_COST),
        row("wall of a dispatch, times", [b.wall_ms / a.wall_ms for a, b in rounds], MOST_COST),
        row("dispatcher, MiB", [b.dispatcher_mib for _, b in rounds], MOST_MIB),
        row("dispatcher idle, of a core", [b.idle_share for _, b in rounds], MOST_IDLE),
    ]


def proc(pid: int, name: str) -> str:
    """A text of /proc about a process."""
    return Path(f"/proc/{pid}/{name}").read_text()


def fill(worker: LocalWorker, like: str, count: int) -> list[str]:
    """Runs as the submit verb makes them, less their code: they are not meant to start."""
    workspace = Workspace(str(worker.workspace))
    spec: dict[str, Any] = records.read(workspace.run(like).spec) or {}
    ids = [f"wait-{number:05d}" for number in range(count)]
    for run in ids:
        temporary = os.path.join(workspace.runs, ".tmp-" + run)
        os.makedirs(os.path.join(temporary, "attempts"))
        body = {**spec, "id": run, "accepted_at": time.time()}
        records.write(os.path.join(temporary, "spec.json"), body, sync=False)
        os.rename(temporary, workspace.run(run).folder)
    wakeup.poke(workspace, ids[-1])
    return ids


def measure(waiting: int, idle_s: float) -> Found:
    """A fresh worker with so many waiting, to the end of the runs that go before them."""
    worker = LocalWorker(os.environ.__setitem__)
    try:
        worker.host(slots=SLOTS)
        # who reads a FIFO nobody writes to waits without costing anything
        gates = [worker.root / name for name in ("first", "last")]
        for gate in gates:
            os.mkfifo(gate)
        first = queue(worker, SLOTS, *HOLD, str(gates[0]))
        for run in first:
            worker.until(run, "running", LIMIT_S)
        ids = queue(worker, DISPATCHED, "true")
        last = queue(worker, SLOTS, *HOLD, str(gates[1]))
        dispatcher, supervisor = worker.dispatcher, worker.supervisor

        cpu, began = cpu_s(proc(dispatcher, "stat")), time.monotonic()
        for run in fill(worker, last[0], waiting):
            path = worker.run_folder(run) / "state.json"
            wait_for(path.exists, LIMIT_S, f"{run} taken up")
        taken_up_s = time.monotonic() - began
        taken_up_cpu_s = cpu_s(proc(dispatcher, "stat")) - cpu

        time.sleep(2)  # what follows the last one's coming is not idling
        idle = [cpu_s(proc(pid, "stat")) for pid in (dispatcher, supervisor)]
        time.sleep(idle_s)
        after = [cpu_s(proc(pid, "stat")) for pid in (dispatcher, supervisor)]
        sizes = [rss_mib(proc(pid, "status")) for pid in (dispatcher, supervisor)]

        cpu, began = cpu_s(proc(dispatcher, "stat")), time.monotonic()
        os.close(os.open(gates[0], os.O_WRONLY))
        for run in [*ids, *last]:
            worker.until(run, "ended" if run in ids else "running", LIMIT_S)
        wall_s = time.monotonic() - began
        used_s = cpu_s(proc(dispatcher, "stat")) - cpu
        for run in ids:
            if worker.state(run)["outcome"] != "done":
                raise pairs.Failed(f"{run} is not done")
    finally:
        worker.close()
    shares = [(b - a) / idle_s for a, b in zip(idle, after, strict=True)]
    return Found(
        waiting,
        taken_up_s,
        taken_up_cpu_s,
        1000 * used_s / DISPATCHED,
        1000 * wall_s / DISPATCHED,
        *sizes,
        *shares,
    )


def line(found: Found) -> str:
    """A row of the table."""
    return (
        f"  {found.waiting:6}   {found.taken_up_s:6.1f} s ({found.taken_up_cpu_s:.1f} s CPU)"
        f"   {found.cpu_ms:8.2f}   {found.wall_ms:8.1f}   {found.dispatcher_mib:6.1f}"
        f"   {found.supervisor_mib:6.1f}   {100 * found.idle_share:5.2f} %"
        f"   {100 * found.idle_supervisor_share:5.2f} %"
    )


def main(words: list[str]) -> None:
    """Measure and report."""
    rounds = []
    print("waiting   taken up             CPU ms   wall ms   MiB: dispatcher, supervisord   idle")
    for number in range(pairs.read_rounds(words, 2)):
        order = [SHORT, LONG] if number % 2 == 0 else [LONG, SHORT]
        both = {}
        for waiting in order:
            both[waiting] = measure(waiting, IDLE_S if waiting == LONG else 2.0)
            print(line(both[waiting]), flush=True)
        rounds.append((both[SHORT], both[LONG]))
    found = verdicts(rounds)
    for what, value, most, met in found:
        print(f"  {what}: {value:.3g} (at most {most:g}: {'reached' if met else 'MISSED'})")
    body = {
        "format": 1,
        "name": "queue",
        "rounds": [[asdict(each) for each in both] for both in rounds],
        "goals": [dict(zip(("what", "found", "most", "met"), row, strict=True)) for row in found],
    }
    pairs.RESULTS.mkdir(parents=True, exist_ok=True)
    path = pairs.RESULTS / "queue.json"
    path.write_text(json.dumps(body, indent=1) + "\n")
    print(f"  all numbers: {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
