"""What looking costs when there are many runs: `ps`, `compare`, and the page that it writes.

    python benchmarks/bench_views.py [rounds=N] [many=5000]

Whole processes against a `local` worker whose workspace holds ten ended runs, or five thousand
(`many_runs.py`); two sweeps of five seeds are compared. The ratios of `views` are to
`python -c pass`, those of `views-grown` of the same command to itself with ten runs, by CPU time of
the client and the worker program that it starts. The tree itself is run, so that nothing is built.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import many_runs  # noqa: E402
import pairs  # noqa: E402
import readings  # noqa: E402
import stage  # noqa: E402
from pairs import Pairs, Side  # noqa: E402
from readings import Reading  # noqa: E402

FEW = 10
REAL = 10
AT_MOST = {"runner ps": 5.0}
AT_MOST_ELSE = 1.5
"""Times what ten runs cost: `ps` looks at every run, a comparison at its own."""
COUNTING = """
import resource, sys
from runner import endpoint
came = 0
real = endpoint.Worker._deliver
def deliver(self, reader, data):
    global came
    came += len(data)
    return real(self, reader, data)
endpoint.Worker._deliver = deliver
from runner.cli import main
try:
    main(sys.argv[1:])
finally:
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("came", came, held * 1024, file=sys.stderr)
"""


def views(first: str, second: str) -> dict[str, list[str]]:
    """What is typed, by its name in the tables."""
    return {
        "runner ps": ["ps"],
        "runner compare": ["compare", first, second],
        "runner compare --out page": ["compare", first, second, "--out", "page.html"],
    }


def sides(place: stage.Stage, words: dict[str, list[str]], held: str) -> list[Side]:
    """One for each view."""
    return [
        pairs.process(f"{name}, {held}", [*stage.RUNNER, *argv], cwd=place.project, env=place.env)
        for name, argv in words.items()
    ]


def cost(place: stage.Stage, argv: list[str]) -> tuple[int, int]:
    """(bytes that came from the worker, the client's largest memory in bytes)."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTING, *argv],
        cwd=place.project,
        env=place.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise pairs.Failed(done.stderr)
    came, held = done.stderr.rsplit("came ", 1)[1].split()
    return int(came), int(held)


def prepare(place: stage.Stage, count: int) -> dict[str, list[str]]:
    """`count` ended runs, ten of them real; the views of it."""
    place.env["PYTHONPATH"] = str(many_runs.ROOT)
    many_runs.lay_job(place)
    first = many_runs.real_sweep(place, "lr=0.1")
    second = many_runs.real_sweep(place, "lr=0.2")
    many_runs.copy_runs(place, first, count - REAL)
    return views(first, second)


def grown(found: Pairs, names: list[str], many: int) -> list[Reading]:
    """How many times the CPU time of ten runs each takes with many."""
    made = []
    for name in names:
        few = found.samples[f"{name}, {FEW} runs"]
        much = found.samples[f"{name}, {many} runs"]
        ratios = [one.cpu_s / other.cpu_s for one, other in zip(much, few, strict=True)]
        seconds = pairs.spread([each.cpu_s for each in much]).median
        goal = AT_MOST.get(name, AT_MOST_ELSE)
        made.append(Reading(name, "times", ratios, goal, f"{seconds:.2f} s of CPU time"))
    return made


def main(words: list[str]) -> None:
    """Measure and report."""
    given = pairs.settings(words, {"rounds": "9", "many": "5000"})
    rounds, many = int(given["rounds"]), int(given["many"])
    with stage.made() as small, stage.made() as large:
        of_small, of_large = prepare(small, FEW), prepare(large, many)
        passing = pairs.process("python -c pass", [sys.executable, "-c", "pass"], env=small.env)
        found = pairs.measure(
            "views",
            [
                passing,
                *sides(small, of_small, f"{FEW} runs"),
                *sides(large, of_large, f"{many} runs"),
            ],
            rounds=rounds,
        )
        carried = []
        for place, held, typed in ((small, FEW, of_small), (large, many, of_large)):
            for name, argv in typed.items():
                bytes_came, memory = cost(place, argv)
                carried += [
                    Reading(f"{name}, {held} runs: bytes that come", "kB", [bytes_came / 1e3]),
                    Reading(f"{name}, {held} runs: memory", "MiB", [memory / 2**20]),
                ]
    pairs.report(found)
    readings.report(
        "views-grown", f"CPU time with {many:,} runs, to {FEW}", grown(found, list(of_small), many)
    )
    readings.report("views-carried", "what looking carries and holds", carried)


if __name__ == "__main__":
    main(sys.argv[1:])
