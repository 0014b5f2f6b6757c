"""How long a cancel takes until nothing is left, against the grace that the run was given.

    python benchmarks/bench_cancel.py [rounds=N]

The run is a tree that hides: children with setsid, forked twice, with an emptied environment, deaf
to TERM, stopped, and one that forks and goes for ever. Whether anything is left is seen here, not
told by the worker: the pids that the tree wrote down, and every process with a sign of the attempt.
The neighbour's processes are to be the same before and after. A second run holds memory of a card
(the tests' stand-in for nvidia-smi) that it gives back only with its death, 2 s of grace used up.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "provisioning" / "worker")]

import pairs  # noqa: E402
import processes  # noqa: E402

from tests.contract.test_cancel import nasty  # noqa: E402
from tests.helpers.local_worker import LocalWorker  # noqa: E402
from tests.rig import gpus  # noqa: E402

GRACES_S = (0.0, 2.0, 5.0)
CARD_GRACE_S = 2.0
HOLD_MIB = 2000
MOST_EXTRA_S = 1.0
LOOK_S = 0.02
DEAF = """
import os, signal, sys, time
sys.path.insert(0, os.getcwd())
import hold_gpu
signal.signal(signal.SIGTERM, signal.SIG_IGN)
hold_gpu.hold(int(sys.argv[1]))
print("holding", flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class Found:
    """One cancel. Seconds count from just before it was asked for."""

    what: str
    grace_s: float
    gone_s: float
    """Until nothing was left: no process, or no memory of the card in use."""
    returned_s: float
    left: int
    neighbour_same: bool

    @property
    def is_right(self) -> bool:
        """Nothing left when it returned, the neighbour untouched, no later than it may be."""
        extra = max(self.gone_s, self.returned_s) - self.grace_s
        return self.left == 0 and self.neighbour_same and extra <= MOST_EXTRA_S


def cancel(worker: LocalWorker, run: str, is_gone: Callable[[], bool]) -> tuple[float, float]:
    """(seconds until it was gone, seconds until the cancel returned)."""
    gone: list[float] = []
    began = time.monotonic()

    def look() -> None:
        while not is_gone():
            time.sleep(LOOK_S)
        gone.append(time.monotonic() - began)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    worker.cancel(run)
    returned_s = time.monotonic() - began
    watcher.join(30)
    return (gone or [float("inf")])[0], returned_s


def cancel_tree(worker: LocalWorker, neighbour: str, grace_s: float) -> Found:
    """Cancel a tree of processes that hide."""
    run, pids = nasty(worker, grace=f"{grace_s:g}s")
    before = worker.members(neighbour)
    gone_s, returned_s = cancel(worker, run, lambda: not processes.living(pids))
    left = processes.living(pids) | worker.members(run)
    same = bool(before) and worker.members(neighbour) == before
    return Found("tree", grace_s, gone_s, returned_s, len(left), same)


def cancel_card(worker: LocalWorker, neighbour: str, cards: gpus.FakeGpus) -> Found:
    """Cancel a run that holds a card's memory until it is killed."""
    run = worker.python(DEAF, str(HOLD_MIB), words=("gpus=1", f"grace={CARD_GRACE_S:g}s"))
    worker.until_logged(run, "holding")
    before = worker.members(neighbour)
    assert cards.used_mib(0) > HOLD_MIB, "the card is not in use"
    gone_s, returned_s = cancel(worker, run, lambda: cards.used_mib(0) < HOLD_MIB)
    left = int(cards.used_mib(0) >= HOLD_MIB) + len(worker.members(run))
    same = bool(before) and worker.members(neighbour) == before
    return Found("card", CARD_GRACE_S, gone_s, returned_s, left, same)


def row(found: list[Found]) -> str:
    """Of cancels of one kind: median (lowest to highest) of both times beyond the grace."""
    cells = []
    for seconds in ([f.gone_s for f in found], [f.returned_s for f in found]):
        extras = [each - found[0].grace_s for each in seconds]
        cells.append(f"{statistics.median(extras):+.2f} ({min(extras):.2f} to {max(extras):.2f})")
    right = sum(each.is_right for each in found)
    return (
        f"  {found[0].what}, grace {found[0].grace_s:g} s   gone {cells[0]} s"
        f"   returned {cells[1]} s   as it should be: {right} of {len(found)}"
    )


def main(words: list[str]) -> int:
    """Measure and report; 1 when anything was left, touched, or late."""
    rounds = pairs.read_rounds(words, 5)
    worker = LocalWorker(os.environ.__setitem__)
    cards = gpus.FakeGpus(worker.root / "gpus")
    found: list[Found] = []
    try:
        gpus.place_tool(worker.root / "bin", cards.folder)
        worker.set_env("PATH", f"{worker.root / 'bin'}{os.pathsep}{os.environ['PATH']}")
        cards.set_cards(1)
        worker.file("hold_gpu.py", gpus.HOLD.read_text())
        neighbour = worker.python("import time; time.sleep(3600)", words=("gpus=0",))
        worker.until(neighbour, "running")
        for _ in range(rounds):
            found += [cancel_tree(worker, neighbour, grace_s) for grace_s in GRACES_S]
            found.append(cancel_card(worker, neighbour, cards))
    finally:
        cards.close()
        worker.close()
    print(f"cancel: {rounds} rounds, seconds beyond the grace, median (lowest to highest)")
    for kind in sorted({(each.what, each.grace_s) for each in found}, reverse=True):
        print(row([each for each in found if (each.what, each.grace_s) == kind]))
    pairs.RESULTS.mkdir(parents=True, exist_ok=True)
    path = pairs.RESULTS / "cancel.json"
    body = {"format": 1, "name": "cancel", "cancels": [asdict(each) for each in found]}
    path.write_text(json.dumps(body, indent=1) + "\n")
    print(f"  all numbers: {path}")
    return 0 if all(each.is_right for each in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
