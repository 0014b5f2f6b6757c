"""`runner ps` over 50 hosts, each 100 ms away, against one of them alone and ssh one by one.

    python benchmarks/bench_hosts.py [rounds=N]

The 50 are addresses of one host of the test rig's, so each has a connection of its own, and all 50
servers share this machine's two or so cores with the client: what is CPU time on 50 machines in
earnest comes out of the same cores here. `docker` there is a stand-in that starts the worker
program for a workspace of each host's own at once, without the 0.1 to 0.2 s of `docker exec`. No
connection is open before. `ssh HOST true` one by one is run for five hosts and multiplied by ten.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import far  # noqa: E402
import pairs  # noqa: E402
from pairs import Goal, Sample, Side  # noqa: E402

from tests.helpers.many_hosts import ManyHosts, many_over_ssh  # noqa: E402
from tests.rig.hosts import RigHost  # noqa: E402
from tests.rig.operator import Operator  # noqa: E402
from tests.rig.ways import MS100, crowd  # noqa: E402

ROUNDS = 3
HOSTS, SAMPLED = 50, 5
ALONE, ALL, BY_HAND = "runner ps of one", "runner ps of 50", "ssh one by one"


def spread_out(operator: Operator, host: RigHost, names: list[str], addresses: list[str]) -> None:
    """Give each host an address of its own in the operator's ssh files."""
    config = operator.ssh_config.read_text()
    for name, address in zip(names, addresses, strict=False):
        block = rf"(Host many-{name}\n +HostName )\S+"
        config = re.sub(block, rf"\g<1>{address}", config)
    operator.ssh_config.write_text(config)
    lines = [f"{address} {host.host_key}\n" for address in addresses]
    with operator.known_hosts.open("a") as file:
        file.writelines(lines)


def measure(client: far.Client, rounds: int) -> None:
    """All in turn, each from closed connections."""
    operator, rig = client.operator, client.rig
    files = {path: path.read_text() for path in (client.project / "hosts").glob("*.toml")}
    for path in files:
        path.unlink()
    place = dataclasses.replace(rig.gpu.spec, address=MS100.address(rig.paths.instance), jump=None)
    with many_over_ssh(operator, RigHost(place, rig.paths), HOSTS) as many:
        spread_out(operator, rig.gpu, many.names, crowd(rig.paths.instance))
        for name in many.names:
            many.put_run(name, f"{name}-aaaaa")
        compare(client, many, rounds)
        client.close_connections()
        for name in many.names:
            (client.project / "hosts" / f"{name}.toml").unlink()
    for path, text in files.items():
        path.write_text(text)


def compare(client: far.Client, many: ManyHosts, rounds: int) -> None:
    """Two comparisons: against the slowest of them, and against by hand."""

    def ps(name: str, *words: str) -> Side:
        argv, close = client.argv("ps", "--all", *words), client.close_connections
        return pairs.process(name, argv, before=close, cwd=client.project, env=client.env)

    def one_by_one() -> Sample:
        words = " && ".join(f"ssh -o BatchMode=yes many-{n} true" for n in many.names[:SAMPLED])
        sample = pairs.run_process(["sh", "-c", words], cwd=client.project, env=client.env)
        times = len(many.names) / SAMPLED
        return Sample(sample.wall_s * times, sample.cpu_s * times)

    sides = [ps(ALONE, f"host={many.names[-1]}"), ps(ALL), Side(BY_HAND, one_by_one)]
    found = pairs.measure("hosts", sides, rounds=rounds, goals=[Goal(ALL, factor=2.0)])
    pairs.report(found)
    by_hand = {name: found.samples[name] for name in (BY_HAND, ALL)}
    pairs.report(pairs.Pairs("hosts-by-hand", by_hand, [Goal(ALL, factor=1 / 20)]))


if __name__ == "__main__":
    sys.exit(far.run("hosts", sys.argv[1:], ROUNDS, measure))
