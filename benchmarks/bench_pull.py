"""`runner pull`, verified, against `rsync -aW`, and again, and after a cut.

    python benchmarks/bench_pull.py [rounds=N]

Checkpoints of a run on a host of the test rig's: one file of 500 MB, one of 100 MB, and 2,000 small
ones of 4 KB; without delay and over a link with a round trip of 100 ms and 1 Gbit/s. Each time
into a fresh folder, with the files in the host's page cache. Both open their own connection;
"warm" is the runner over the connection a command of the last minute left.

"Again" pulls once more with nothing new there; rsync compares sizes and times. "Cut" lets the link
drop all packets on the way, then pulls again: what comes over the wire then, by what was missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import far  # noqa: E402
import pairs  # noqa: E402
import readings  # noqa: E402
from pairs import Goal, Side  # noqa: E402

from tests.rig import network, processes  # noqa: E402
from tests.rig.ways import MS100, NEAR, Way  # noqa: E402

ROUNDS = 3
SMALL_FILES, SMALL_BYTES = 2000, 4096
MAKE_LARGE = """
head -c {size} /dev/urandom > "$RUNNER_CHECKPOINTS/a.tmp" && cd "$RUNNER_CHECKPOINTS" && mv a.tmp a
"""
MAKE_SMALL = """
import os
place = os.environ["RUNNER_CHECKPOINTS"]
os.mkdir(place + "/a.tmp")
for number in range({count}):
    folder = "%s/a.tmp/%02d" % (place, number // 100)
    os.makedirs(folder, exist_ok=True)
    with open("%s/%04d.bin" % (folder, number), "wb") as file:
        file.write(os.urandom({size}))
os.rename(place + "/a.tmp", place + "/a")
"""
COLD, WARM = "runner pull", "runner pull, warm"
CUT_BYTES = 100_000_000
CUT_AT = 0.4
NOTICE_LIMIT_S = 60.0
HEADER_BYTES = 20 + 32
"""Of a packet: IP, and TCP with its timestamps."""


class Bench:
    """Pulls of one run over one way."""

    def __init__(self, client: far.Client, way: Way, run: str) -> None:
        self.client = client
        self.way = way
        self.run = run
        self.source = f"{way.alias}:{far.WORKSPACE}/checkpoints/{run}/"
        self.top = client.project / "pulled"

    def fresh(self, *more: Callable[[], None]) -> Callable[[], None]:
        """Before a pull into a folder that is not there."""

        def prepare() -> None:
            shutil.rmtree(self.top, ignore_errors=True)
            os.sync()  # what was written before is not to be paid for now
            self.top.mkdir()
            for each in more:
                each()

        return prepare

    def pull_argv(self, name: str) -> list[str]:
        return self.client.argv("pull", self.run, "--to", str(self.top / name))

    def side(self, name: str, argv: list[str], before: Callable[[], None]) -> Side:
        client = self.client
        return pairs.process(name, argv, before=before, cwd=client.project, env=client.env)

    def rsync_argv(self, options: str, name: str) -> list[str]:
        return ["rsync", options, "-e", " ".join(far.SSH), self.source, f"{self.top / name}/"]

    def fresh_sides(self) -> list[Side]:
        """Into fresh folders."""
        close, client = self.client.close_connections, self.client

        def warm() -> None:
            client.open_connection(self.way)

        return [
            self.side("rsync -aW", self.rsync_argv("-aW", "a"), self.fresh()),
            self.side(COLD, self.pull_argv("b"), self.fresh(close)),
            self.side(WARM, self.pull_argv("b"), self.fresh(warm)),
        ]

    def again_sides(self) -> list[Side]:
        """Into folders where all is."""
        self.fresh()()
        for argv in (self.rsync_argv("-a", "a"), self.pull_argv("b")):
            pairs.run_process(argv, cwd=self.client.project, env=self.client.env)

        def warm() -> None:
            self.client.open_connection(self.way)

        close = self.client.close_connections
        return [
            self.side("rsync -a", self.rsync_argv("-a", "a"), lambda: None),
            self.side(COLD, self.pull_argv("b"), close),
            self.side(WARM, self.pull_argv("b"), warm),
        ]

    def clear(self) -> None:
        shutil.rmtree(self.top, ignore_errors=True)


def make_large(client: far.Client, way: Way, size: int) -> Bench:
    """A run with a checkpoint that is one file."""
    run = client.submit(way, "sh", "-c", MAKE_LARGE.format(size=size), wait=True)
    return Bench(client, way, run)


def make_small(client: far.Client, way: Way) -> Bench:
    """A run with a checkpoint of many files."""
    program = MAKE_SMALL.format(count=SMALL_FILES, size=SMALL_BYTES)
    return Bench(client, way, client.submit(way, "python3", "-c", program, wait=True))


def measure(client: far.Client, rounds: int) -> None:
    """Everything in turn."""
    for way, size, speed in ((NEAR, 500_000_000, 0.9), (MS100, 100_000_000, 1.5)):
        bench = make_large(client, way, size)
        compare(bench, f"pull-{size // 1_000_000}mb-{way.name}", rounds, speed)
        client.runner("rm", bench.run, "--unpulled")
    for way, speed in ((NEAR, 0.9), (MS100, 1.1)):
        bench = make_small(client, way)
        compare(bench, f"pull-small-{way.name}", rounds, speed)
        again = pairs.measure(
            f"pull-again-{way.name}",
            bench.again_sides(),
            rounds=rounds,
            goals=[Goal(COLD, factor=0.6)],
        )
        pairs.report(again)
        bench.clear()
    resumed(client, rounds)


def compare(bench: Bench, name: str, rounds: int, speed: float) -> None:
    """Into fresh folders; `speed` is the goal as a share of rsync's."""
    goals = [Goal(COLD, factor=round(1 / speed, 2))]
    pairs.report(pairs.measure(name, bench.fresh_sides(), rounds=rounds, goals=goals))
    bench.clear()


def resumed(client: far.Client, rounds: int) -> None:
    """Bytes over the wire after a cut, by those that were missing."""
    bench = make_large(client, MS100, CUT_BYTES)
    shares, kept = [], []
    for _ in range(rounds):
        bench.fresh()()
        have = cut_short(client, bench, bench.top / "c")
        before = received_bytes(client, MS100)
        client.runner("pull", bench.run, "--to", str(bench.top / "c"))
        moved = received_bytes(client, MS100) - before
        shares.append(moved / (CUT_BYTES - have))
        kept.append(have / 1e6)
        if (bench.top / "c" / "checkpoints" / "a").stat().st_size != CUT_BYTES:
            raise pairs.Failed("what was pulled after the cut is not whole")
    bench.clear()
    readings.report(
        "pull-resumed",
        "pull of 100 MB, cut at 40 MB",
        [
            readings.Reading("moved afterwards, by what was missing", "times", shares, 1.01),
            readings.Reading("kept over the cut", "MB", kept),
        ],
    )


def cut_short(client: far.Client, bench: Bench, to: Path) -> int:
    """Begin a pull and drop the link under it; the bytes that were kept once it has ended."""
    instance = client.rig.paths.instance
    argv = client.argv("pull", bench.run, "--to", str(to))
    child = client.popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with far.ended(child):
        try:
            while kept_bytes(to) < CUT_AT * CUT_BYTES:
                if child.poll() is not None:
                    raise pairs.Failed("the pull ended before it could be cut")
                time.sleep(0.01)
            network.drop(instance)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(NOTICE_LIMIT_S)  # one that goes on trying is ended
        finally:
            child.kill()
            child.wait()
            # first, since a connection that lives on would be sent what was on its way to it
            client.close_connections()
            network.mend(instance)
    return kept_bytes(to)


def kept_bytes(folder: Path) -> int:
    """What is there of files that are not whole: they are hidden, and may have holes."""
    total = 0
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        with contextlib.suppress(FileNotFoundError):
            if hidden and path.is_file():
                total += min(path.stat().st_size, path.stat().st_blocks * 512)
    return total


def received_bytes(client: far.Client, way: Way) -> int:
    """What TCP brought from the host over a way so far, all connections together."""
    login = network.netns(client.rig.paths.instance, "login")
    place = f"/sys/class/net/{way.device}/statistics"
    files = [f"{place}/rx_bytes", f"{place}/rx_packets"]
    shown = processes.run(["ip", "netns", "exec", login, "cat", *files]).stdout
    count_bytes, packets = map(int, shown.split())
    return count_bytes - packets * HEADER_BYTES


if __name__ == "__main__":
    sys.exit(far.run("pull", sys.argv[1:], ROUNDS, measure))
