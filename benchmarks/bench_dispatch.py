"""How fast a queue is worked off: 100 runs of `true`, 8 at a time, against Slurm and task-spooler.

    python benchmarks/bench_dispatch.py [rounds=N]     # as root, with Debian's apt-get

From the first one accepted to the last one ended; each queue is filled as quickly as it lets
itself be: Slurm by `sbatch` a hundred times (an array is no faster), task-spooler by a hundred
commands, the worker by one sweep. Slurm is one node of this machine as Debian has it, without
accounting (which makes it faster); a second one's scheduler is told not to wait for more work.
Its pace is that of its timers, ours that of the CPUs: a busy machine is in its favour.
task-spooler keeps no record, checks nothing and knows no GPUs: for scale.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "provisioning" / "worker")]

import batch_queues  # noqa: E402
import pairs  # noqa: E402
from pairs import Goal, Sample, Side  # noqa: E402

from runner.app.submit import submit  # noqa: E402
from runner.spec import parse_submit  # noqa: E402
from tests.helpers.local_worker import LocalWorker  # noqa: E402

RUNS, SLOTS = 100, 8
LIMIT_S = 180.0
LOOK_S = 0.1
EAGER = "SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,defer\n"
"""What makes Slurm fastest here: look at once, in its main scheduler, and not at each submit."""


def queue(worker: LocalWorker, count: int, *command: str) -> list[str]:
    """Ids of the runs of a sweep; each has its number as the command's last word."""
    request = parse_submit(["gpus=0", f"each.n=1..{count}"], [*command, "{n}"])
    return submit(worker.ctx, request, lambda ids: None)


def of_worker(worker: LocalWorker) -> Sample:
    """From the first run's record of its acceptance to the last one's of its end."""
    ids = queue(worker, RUNS, "true")
    for run in ids:
        worker.until(run, "ended", LIMIT_S)
    states = [worker.state(run) for run in ids]
    bad = [run for run, state in zip(ids, states, strict=True) if state["outcome"] != "done"]
    if bad:
        raise pairs.Failed(f"not done: {' '.join(bad)}")
    first = min(state["submitted_at"] for state in states)
    return Sample(max(state["updated_at"] for state in states) - first)


def of_other(queue_one: Callable[[], None], waiting: Callable[[], int]) -> Sample:
    """From the return of the first `queue_one` until nothing waits or runs any more."""
    queue_one()
    began = time.monotonic()
    for _ in range(RUNS - 1):
        queue_one()
    while waiting():
        if time.monotonic() - began > LIMIT_S:
            raise pairs.Failed(f"{waiting()} left after {LIMIT_S:g} s")
        time.sleep(LOOK_S)
    return Sample(time.monotonic() - began)


def main(words: list[str]) -> None:
    """Measure and report."""
    rounds = pairs.read_rounds(words, 3)
    with contextlib.ExitStack() as held:
        try:
            root = batch_queues.fetch()
            folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="runner-queues-")))
            plain = held.enter_context(batch_queues.slurm(root, folder / "plain", SLOTS))
            eager = held.enter_context(batch_queues.slurm(root, folder / "eager", SLOTS, EAGER))
        except batch_queues.Missing as reason:
            print(f"dispatch: left out, {reason}")
            return
        spooler = batch_queues.Spooler(root, folder, SLOTS)
        held.callback(spooler.close)
        worker = LocalWorker(os.environ.__setitem__)
        held.callback(worker.close)
        worker.host(slots=SLOTS)
        job = ("--wrap", "true")
        found = pairs.measure(
            "dispatch",
            [
                Side("sbatch", lambda: of_other(lambda: plain.submit(*job), plain.waiting)),
                Side("sbatch, eager", lambda: of_other(lambda: eager.submit(*job), eager.waiting)),
                Side("tsp", lambda: of_other(lambda: spooler.submit("true"), spooler.waiting)),
                Side("runner", lambda: of_worker(worker)),
            ],
            rounds=rounds,
            warm_up=0,
            goals=[Goal("runner", factor=0.33)],
        )
    pairs.report(found)
    for side in found.sides:
        rates = pairs.spread([RUNS / wall for wall in found.walls(side)])
        print(f"  {side:16} {rates.median:7.1f} a second ({rates.low:.1f} to {rates.high:.1f})")


if __name__ == "__main__":
    main(sys.argv[1:])
