"""How long after a submit was accepted the job's own code runs, on `local` with an idle worker.

    python benchmarks/bench_start.py [rounds=N]

The job tells when its first instruction ran; the run's record tells when it was accepted. Between
lie the queue, the lease, the records on disk, and a check of the code against the snapshot. Held
against fork and exec of the same command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pairs
import stage
from pairs import Goal, Sample, Side

NOW = ["date", "+%s.%N"]
LIMIT_S = 30.0
LOOK_S = 0.01


def bare(place: stage.Stage) -> Sample:
    """From just before fork to what the program saw on its clock."""
    began = time.time()
    said = subprocess.run(NOW, env=place.env, stdout=subprocess.PIPE, text=True, check=True).stdout
    return Sample(float(said) - began)


def run(place: stage.Stage) -> Sample:
    """From `accepted_at` to what the job saw on its clock: the same clock, on this machine."""
    (name,) = place.runner("submit", "--", *NOW).split()
    log = place.workspace / "logs" / name / "rank-0.log"
    said = _wait_for_line(log)
    spec = json.loads((place.workspace / "runs" / name / "spec.json").read_text())
    place.runner("wait", name)
    return Sample(float(said) - float(spec["accepted_at"]))


def _wait_for_line(path: Path) -> str:
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        if path.exists() and (text := path.read_text()).endswith("\n"):
            return text
        time.sleep(LOOK_S)
    sys.exit(f"no line in {path} after {LIMIT_S:g} s")


def main(words: list[str]) -> None:
    """Measure and report."""
    rounds = pairs.read_rounds(words, 25)
    with stage.made() as place:
        found = pairs.measure(
            "start",
            [
                Side("fork and exec", lambda: bare(place)),
                Side("accepted to running", lambda: run(place)),
            ],
            rounds=rounds,
            warm_up=2,
            goals=[Goal("accepted to running", extra_s=0.060)],
        )
        pairs.report(found)


if __name__ == "__main__":
    main(sys.argv[1:])
