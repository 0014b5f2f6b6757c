"""What a Tab costs: the program that a shell asks, with ten and with five thousand runs known here.

    python benchmarks/bench_completing.py [rounds=N] [many=5000]

Whole processes, as the scripts of `runner completion` start them. No host is asked, so there is no
worker. The tree itself is run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pairs  # noqa: E402
import readings  # noqa: E402
import stage  # noqa: E402
from pairs import Side, process  # noqa: E402
from readings import Reading  # noqa: E402

from runner.model import Project  # noqa: E402
from runner.store import Store  # noqa: E402
from runner.wire import RunStatus  # noqa: E402

FEW = 10
AT_MOST_S = 0.2
JOB = 'command = ["true"]\n[params]\nlearning_rate = 0.5\nsteps = 1000\n'
ASKED = {
    "a command": ("zsh", "su"),
    "a parameter": ("zsh", "submit", "job=dqn", "lea"),
    "a run": ("zsh", "status", ""),
}


def lay(folder: Path, count: int) -> Path:
    """A project with a host, a job and so many runs that are known."""
    for name in ("hosts", "agents"):
        (folder / name).mkdir(parents=True)
    (folder / "hosts/gpu1.toml").write_text('ssh = "gpu1"\n')
    (folder / "agents/dqn.toml").write_text(JOB)
    store = Store(Project(folder, "p", "p"))
    for number in range(count):
        run = f"dqn-0{number:04d}"
        store.put("gpu1", RunStatus(id=run, state="ended", outcome="done").to_json(), 1.0)
    return folder


def main(words: list[str]) -> None:
    """Measure and report."""
    given = pairs.settings(words, {"rounds": "15", "many": "5000"})
    many = int(given["many"])
    with tempfile.TemporaryDirectory(prefix="runner-tab-") as name:
        env = {"HOME": name, "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
        sides: list[Side] = [process("python -c pass", [sys.executable, "-c", "pass"], env=env)]
        for count in (FEW, many):
            project = lay(Path(name) / str(count), count)
            for what, question in ASKED.items():
                argv = [*stage.RUNNER, "__complete", *question]
                sides.append(process(f"{what}, {count} runs", argv, cwd=project, env=env))
        found = pairs.measure("completing", sides, rounds=int(given["rounds"]), warm_up=2)
    pairs.report(found)
    made = [Reading(side.name, "s", found.walls(side.name), AT_MOST_S) for side in sides[1:]]
    readings.report("completing-walls", "a Tab, from its key to its words", made)


if __name__ == "__main__":
    main(sys.argv[1:])
