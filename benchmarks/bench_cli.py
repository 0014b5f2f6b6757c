"""What the command line costs before it does anything: `runner --help`, `runner ps` on `local`.

    python benchmarks/bench_cli.py [rounds=N]

Both are held against `python -c pass` of the same interpreter, that of a fresh environment with
the wheel: an installation in place (`pip install -e`) makes every start of Python slower, and
ratios look better than they are. `ps` asks a worker that is up and holds 20 ended runs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pairs  # noqa: E402
import stage  # noqa: E402
from pairs import Goal, Side, process  # noqa: E402

RUNS = 20


def main(words: list[str]) -> None:
    """Measure and report."""
    rounds = pairs.read_rounds(words, 25)
    with tempfile.TemporaryDirectory(prefix="runner-wheel-") as folder:
        python = str(stage.install(Path(folder)))
        with stage.made(python=python) as place:
            for _ in range(RUNS):
                place.runner("submit", "--wait", "--", "true")

            def side(name: str, *argv: str) -> Side:
                return process(name, [python, *argv], cwd=place.project, env=place.env)

            found = pairs.measure(
                "cli",
                [
                    side("python -c pass", "-c", "pass"),
                    side("runner --help", "-m", "runner", "--help"),
                    side("runner ps", "-m", "runner", "ps"),
                ],
                rounds=rounds,
                warm_up=2,
                goals=[Goal("runner --help", factor=8), Goal("runner ps", factor=12)],
            )
    pairs.report(found)


if __name__ == "__main__":
    main(sys.argv[1:])
