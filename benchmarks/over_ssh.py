"""All benchmarks that go over ssh, with one host of the test rig's that is provisioned once.

    python benchmarks/over_ssh.py [rounds=N] [submit] [pull] [tail] [cut] [memory] [hosts]

Without a name all of them. One that fails says so, and the others go on; the status is 1 then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bench_cut  # noqa: E402
import bench_hosts  # noqa: E402
import bench_memory  # noqa: E402
import bench_pull  # noqa: E402
import bench_submit  # noqa: E402
import bench_tail  # noqa: E402
import far  # noqa: E402
import pairs  # noqa: E402

Measure = Callable[[far.Client, int], None]
ALL: dict[str, tuple[Measure, int]] = {
    "submit": (bench_submit.measure, bench_submit.ROUNDS),
    "pull": (bench_pull.measure, bench_pull.ROUNDS),
    "tail": (bench_tail.measure, bench_tail.ROUNDS),
    "cut": (bench_cut.measure, bench_cut.ROUNDS),
    "memory": (bench_memory.measure, bench_memory.ROUNDS),
    "hosts": (bench_hosts.measure, bench_hosts.ROUNDS),
}


def main(words: list[str]) -> int:
    """Measure what was named."""
    rounds = [word for word in words if "=" in word]
    names = [word for word in words if "=" not in word] or list(ALL)
    unknown = sorted(set(names) - set(ALL))
    if unknown:
        sys.exit(f"{unknown[0]}: no such benchmark; there are {', '.join(ALL)}")
    failed = []

    def measure(client: far.Client, asked: int) -> None:
        for name in names:
            what, usual = ALL[name]
            try:
                what(client, asked or usual)
            except pairs.Failed as error:
                failed.append(name)
                print(f"{name}: {error}", file=sys.stderr, flush=True)

    return far.run("over ssh", rounds, 0, measure) or int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
