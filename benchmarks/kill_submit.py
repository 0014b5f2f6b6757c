"""Kills 20 submits at random moments before they print their id, and shows what came of each.

python benchmarks/kill_submit.py [TRIALS] [SEED]
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "provisioning" / "worker")]

from tests.helpers.killed_submit import time_of_one, try_once  # noqa: E402
from tests.helpers.local_worker import LocalWorker  # noqa: E402


def main(trials: int = 20, seed: int = 0) -> int:
    """1 when any trial made no run, or two."""
    worker = LocalWorker(os.environ.__setitem__)
    draw = random.Random(seed)
    right = 0
    try:
        time_of_one(worker.project)
        whole = time_of_one(worker.project)
        print(f"a submit takes {1000 * whole:.0f} ms")
        print("killed at   had printed  runs then  after the same words  typed once more")
        for number in range(trials):
            moment = draw.uniform(0.3, 0.75) * whole
            trial = try_once(worker.project, worker.workspace, f"word-{number}", moment)
            right += trial.is_right
            print(
                f"{1000 * trial.after_s:6.0f} ms   {trial.printed or '-':<11}  "
                f"{trial.runs_before:<9}  {trial.runs_after:<20}  {trial.runs_at_last}"
                f"{'' if trial.is_right else '   WRONG'}"
            )
        print(f"{right} of {trials} made one run, and a second one when typed anew")
    finally:
        worker.close()
    return 0 if right == trials else 1


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:3])))
