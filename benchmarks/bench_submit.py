"""`runner submit` of 300 files, one of them changed, against rsync and ssh by hand.

    python benchmarks/bench_submit.py [rounds=N]            # as root: a host of the test rig's
    RUNNER_RIG_INSTANCE=3 python benchmarks/bench_submit.py # a rig of its own

A host reached directly, without delay and over links with round trips of 20 and 100 ms. Each side
returns when the program has been started or the run accepted:

    by hand                  rsync -a, then ssh with nohup: a connection each
    by hand, container       rsync -a, then ssh with docker exec -d, into the container runs use
    by hand, shared          as the first, over a connection that is already open
    runner submit, cold      its own shared connection was closed before
    runner submit, warm      its own shared connection is open
    one more of a sweep      what a sweep of eleven takes longer than one of one, by ten: further
                             submits in an open conversation, all of the same code

The runner's side goes into a container and does more: the tree is verified and kept apart for that
run, and a repeated submit makes no second run. Its connection lasts a minute, so a day's work is
mostly warm. A connection left open is not counted as CPU time of the command that opened it.
Round trips are told from how much longer a side takes over the longer link.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import far  # noqa: E402
import pairs  # noqa: E402
import readings  # noqa: E402
import stage  # noqa: E402
from pairs import Goal, Pairs, Sample, Side  # noqa: E402

from tests.rig.ways import MS20, MS100, WAYS, Way  # noqa: E402

ROUNDS = 5
FILES, SIZE_BYTES = 300, 5_000_000
SHARED = ["-o", "ControlMaster=auto", "-o", "ControlPersist=600"]
MORE = 10
COLD, WARM, MEMBER = "runner submit, cold", "runner submit, warm", "one more of a sweep"
GOALS = {
    "near": [Goal(COLD, factor=0.6)],
    "20ms": [Goal(COLD, factor=0.55)],
    "100ms": [Goal(COLD, factor=0.45), Goal(WARM, factor=0.15), Goal(MEMBER, factor=0.03)],
}


class Tree:
    """The code that is submitted; one file changes each time."""

    def __init__(self, folder: Path) -> None:
        self.changing = stage.write_tree(folder, files=FILES, size_bytes=SIZE_BYTES)[150]
        self.text = self.changing.read_text()
        self.edits = 0

    def edit(self) -> None:
        """Change one file, as never before."""
        self.edits += 1
        self.changing.write_text(f"# edit {self.edits}\n{self.text}")


class Sides:
    """What is compared over one way."""

    def __init__(self, client: far.Client, way: Way, tree: Tree) -> None:
        self.client = client
        self.way = way
        self.tree = tree
        self.socket = client.operator.runtime / f"by-hand-{way.number}"

    def all(self) -> list[Side]:
        """By hand first."""
        shared = [*SHARED, "-o", f"ControlPath={self.socket}"]
        container = self.client.container()
        inside = f"docker exec -d -w /workspace/by-hand {container} true"
        submit = self.client.argv("submit", f"host={self.way.name}", "--", "true")
        close, warm = self.client.close_connections, self._open
        return [
            self._side("by hand", self.by_hand("plain", in_background("plain"))),
            self._side("by hand, container", self.by_hand(f"{far.WORKSPACE}/by-hand", inside)),
            self._side("by hand, shared", self.by_hand("shared", in_background("shared"), shared)),
            self._side(COLD, submit, close),
            self._side(WARM, submit, warm),
            Side(MEMBER, self._one_more),
        ]

    def close(self) -> None:
        """End the connection that was kept by hand."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.client.operator.ssh("-S", str(self.socket), "-O", "exit", self.way.alias)

    def by_hand(self, folder: str, start: str, options: Sequence[str] = ()) -> list[str]:
        """Copy the project to `folder` there, then run `start` there: as one process."""
        ssh, host = " ".join([*far.SSH, *options]), self.way.alias
        copy = f'rsync -a --exclude=.runner --exclude=hosts -e "{ssh}" ./ {host}:{folder}/'
        return ["sh", "-c", f"{copy} && {ssh} {host} {shlex.quote(start)}"]

    def _side(self, name: str, argv: list[str], before: Callable[[], None] | None = None) -> Side:
        def prepare() -> None:
            self.tree.edit()
            if before is not None:
                before()

        client = self.client
        return pairs.process(name, argv, before=prepare, cwd=client.project, env=client.env)

    def _open(self) -> None:
        self.client.open_connection(self.way)

    def _one_more(self) -> Sample:
        self.tree.edit()
        self._open()
        # the first one sends the changed file, so that neither of those compared does
        self._sweep(1)
        one, many = self._sweep(1), self._sweep(1 + MORE)
        return Sample((many.wall_s - one.wall_s) / MORE, (many.cpu_s - one.cpu_s) / MORE)

    def _sweep(self, count: int) -> Sample:
        """Submit a sweep; what it started has ended when this returns."""
        client = self.client
        # one alone is no sweep, and asks as much
        words = [f"host={self.way.name}"]
        words += [f"each.n=1..{count}", "--", "true", "{n}"] if count > 1 else ["--", "true"]
        sample = pairs.run_process(
            client.argv("submit", *words), cwd=client.project, env=client.env
        )
        client.runner("wait", "latest")
        time.sleep(0.5)  # its dispatcher tidies up
        return sample


def in_background(folder: str) -> str:
    """How a program is left running on a host."""
    return f"cd {folder} && nohup true > log 2>&1 < /dev/null &"


def measure(client: far.Client, rounds: int) -> None:
    """All sides in turn, over one way after the other."""
    tree = Tree(client.project)
    found = []
    for way in WAYS:
        sides = Sides(client, way, tree)
        try:
            name, goals = f"submit-{way.name}", GOALS[way.name]
            found.append(pairs.measure(name, sides.all(), rounds=rounds, warm_up=1, goals=goals))
        finally:
            sides.close()
        pairs.report(found[-1])
    trips = round_trips(*found[-2:], apart_s=MS100.round_trip_s - MS20.round_trip_s)
    readings.report("submit-round-trips", "submit: round trips", trips)


def round_trips(short: Pairs, long: Pairs, *, apart_s: float) -> list[readings.Reading]:
    """How often each side waits for the other end, by the links' difference in round trip."""
    found = []
    for side in short.sides:
        medians = [pairs.spread(each.walls(side)).median for each in (short, long)]
        found.append(readings.Reading(side, "round trips", [(medians[1] - medians[0]) / apart_s]))
    return found


if __name__ == "__main__":
    sys.exit(far.run("submit", sys.argv[1:], ROUNDS, measure))
