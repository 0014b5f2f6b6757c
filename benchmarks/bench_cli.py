"""What the command line costs before it does anything: `runner --help`, `runner ps` on `local`.

    python benchmarks/bench_cli.py [rounds=N]

Both are held against `python -c pass` of the same interpreter, that of a fresh environment with
the wheel: an installation in place (`pip install -e`) makes every start of Python slower, and
ratios look better than they are. `ps` asks a worker that is up and holds 20 ended runs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pairs  # noqa: E402
import stage  # noqa: E402
from pairs import Goal, Side, process  # noqa: E402

from tests.helpers import packages  # noqa: E402

RUNS = 20


def install(folder: Path) -> Path:
    """The Python of an environment that holds the wheel and what it needs."""
    wheel = packages.build(packages.copy_listed(folder / "source"), folder / "built", "wheel")
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
    constraints = packages.REPOSITORY / "constraints.txt"
    subprocess.run([*pip, "-c", str(constraints), str(wheel)], check=True)
    return python


def main(words: list[str]) -> None:
    """Measure and report."""
    rounds = pairs.read_rounds(words, 25)
    with tempfile.TemporaryDirectory(prefix="runner-wheel-") as folder:
        python = str(install(Path(folder)))
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
