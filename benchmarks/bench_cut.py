"""How soon a link that silently drops everything is noticed: by the client, by the worker program.

    python benchmarks/bench_cut.py [rounds=N]

Over a link with a round trip of 100 ms to a host of the test rig's run at once: `runner tail` of a
quiet run, `runner pull` of a large file, `ssh tail -F` and `rsync` of the same. Then every packet
is dropped in both directions while both ends believe that the link is up. For 30 seconds it is
watched who says so, or ends: the client has a terminal on stderr, as a person has. A worker program
notices when it is gone.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bench_pull  # noqa: E402
import far  # noqa: E402
import pairs  # noqa: E402
import readings  # noqa: E402

from tests.rig import network  # noqa: E402
from tests.rig.ways import MS100  # noqa: E402

ROUNDS = 2
SIZE_BYTES = 600_000_000
WATCH_S = 30.0
LOOK_S = 0.02
CLIENT_MOST_S, WORKER_MOST_S = 5.0, 20.0
NOTICED = re.compile(rb"no answer|lost|not respond|timed out|unreachable|broken|trying again", re.I)


class Watched:
    """A process whose words are read from a terminal."""

    def __init__(self, client: far.Client, argv: Sequence[str]) -> None:
        self._fd, theirs = pty.openpty()
        env = {**client.env, "TERM": "xterm"}
        self.child = client.popen(argv, stdout=subprocess.DEVNULL, stderr=theirs, env=env)
        os.close(theirs)
        os.set_blocking(self._fd, False)
        self._said = b""
        self.at: float | None = None
        """When it was clear that something is wrong."""

    def listen(self) -> None:
        """Take in what it said meanwhile."""
        try:
            while data := os.read(self._fd, 65536):
                self._said += data
        except OSError:  # nothing there, or the other end is closed
            pass

    def forget(self) -> None:
        """What was said so far is about something else."""
        self.listen()
        self._said = b""

    def look(self) -> None:
        """Note the moment it says that something is wrong, or ends."""
        self.listen()
        if self.at is None and (self.child.poll() is not None or NOTICED.search(self._said)):
            self.at = time.monotonic()

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        os.close(self._fd)


def once(client: far.Client, quiet: str, bench: bench_pull.Bench) -> dict[str, float]:
    """Seconds from the cut, by what was waited for."""
    shutil.rmtree(bench.top, ignore_errors=True)
    bench.top.mkdir()
    log = f"{far.WORKSPACE}/logs/{quiet}/rank-0.log"
    programs: dict[str, set[int]] = {}
    watched: dict[str, Watched] = {}
    try:
        for name, argv in (("tail", client.argv("tail", quiet)), ("pull", bench.pull_argv("b"))):
            before = client.programs()
            watched[f"runner {name}"] = Watched(client, argv)
            programs[name] = client.new_programs(before)
            time.sleep(2)
            programs[name] |= client.programs() - before
        by_hand = [*far.SSH, MS100.alias, f"tail -n +1 -F {log}"]
        watched["ssh tail -F"] = Watched(client, by_hand)
        watched["rsync"] = Watched(client, bench.rsync_argv("-aW", "a"))
        time.sleep(3)
        for name, each in watched.items():
            if each.child.poll() is not None:
                raise pairs.Failed(f"{name} ended before the link was cut")
            each.forget()
        return _cut(client, watched, programs)
    finally:
        network.mend(client.rig.paths.instance)
        for each in watched.values():
            each.close()
        client.close_connections()
        bench.clear()


def _cut(
    client: far.Client, watched: dict[str, Watched], programs: dict[str, set[int]]
) -> dict[str, float]:
    network.drop(client.rig.paths.instance)
    began = time.monotonic()
    gone: dict[str, float] = {}
    while time.monotonic() - began < WATCH_S:
        for each in watched.values():
            each.look()
        living = client.programs()
        for name, pids in programs.items():
            if not pids & living:
                gone.setdefault(f"worker program of {name}", time.monotonic() - began)
        time.sleep(LOOK_S)
    told = {name: (each.at or began + WATCH_S) - began for name, each in watched.items()}
    unseen = {f"worker program of {name}": WATCH_S for name in programs}
    return {**told, **unseen, **gone}


def measure(client: far.Client, rounds: int) -> None:
    """A cut a round."""
    quiet = client.submit(MS100, "sleep", "3600")
    bench = bench_pull.make_large(client, MS100, SIZE_BYTES)
    found = [once(client, quiet, bench) for _ in range(rounds)]
    client.runner("cancel", quiet, "--now")
    rows = []
    for what in found[0]:
        ours = WORKER_MOST_S if what.startswith("worker") else CLIENT_MOST_S
        goal = None if what in ("ssh tail -F", "rsync") else ours
        values = [each[what] for each in found]
        note = f"nothing in {WATCH_S:g} s" if min(values) >= WATCH_S else ""
        rows.append(readings.Reading(what, "s", values, goal, note))
    readings.report("cut", "a link that drops everything: seconds until it is noticed", rows)


if __name__ == "__main__":
    sys.exit(far.run("cut", sys.argv[1:], ROUNDS, measure))
