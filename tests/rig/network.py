"""The rig's own network: operator ── login ── gpu, in namespaces of their own."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.rig.processes import run

CONTAINERS = "172.17.0.0/16"
"""Docker's own choice for its bridge."""

# 198.18.0.0/15 is set aside for testing (RFC 2544): no real network has it.
# Each link has four addresses; .1 and .5 are the near ends.


def login_address(instance: int) -> str:
    return f"198.18.{instance}.2"


def gpu_address(instance: int) -> str:
    return f"198.18.{instance}.6"


def netns(instance: int, host: str) -> str:
    return f"rig{instance}-{host}"


def operator_link(instance: int) -> str:
    """The link to login, in the machine's own namespace: the only thing the rig puts there."""
    return f"rig{instance}-op"


def make_network(instance: int) -> None:
    login, gpu = netns(instance, "login"), netns(instance, "gpu")
    near = operator_link(instance)
    remove_network(instance)
    for name in (login, gpu):
        run(["ip", "netns", "add", name])
        run(["ip", "-n", name, "link", "set", "lo", "up"])
    run(["ip", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", login])
    run(["ip", "-n", login, "link", "add", "eth1", "type", "veth"]
        + ["peer", "name", "eth0", "netns", gpu])  # fmt: skip
    for place, device, address in (
        ([], near, f"198.18.{instance}.1/30"),
        (["-n", login], "eth0", f"{login_address(instance)}/30"),
        (["-n", login], "eth1", f"198.18.{instance}.5/30"),
        (["-n", gpu], "eth0", f"{gpu_address(instance)}/30"),
    ):
        run(["ip", *place, "address", "add", address, "dev", device])
        run(["ip", *place, "link", "set", device, "up"])


def remove_network(instance: int) -> None:
    """Take away whatever there is of it; a link goes with its namespace."""
    for host in ("login", "gpu"):
        if Path("/run/netns", netns(instance, host)).exists():
            run(["ip", "netns", "delete", netns(instance, host)], check=False)
    if Path("/sys/class/net", operator_link(instance)).exists():
        run(["ip", "link", "delete", operator_link(instance)], check=False)


def cut(instance: int) -> None:
    """Let packets between operator and login vanish, as a pulled cable does."""
    run(["ip", "link", "set", operator_link(instance), "down"])


def drop(instance: int) -> None:
    """Let packets vanish both ways while both ends believe that the link is up."""
    both = [("FORWARD", "-i"), ("FORWARD", "-o")]  # what goes on to gpu, where login routes
    for chain, side in (("INPUT", "-i"), ("OUTPUT", "-o"), *both):
        _firewall(instance, "-I", chain, side, "eth0", "-j", "DROP")


def mend(instance: int) -> None:
    run(["ip", "link", "set", operator_link(instance), "up"])
    if shutil.which("iptables"):
        _firewall(instance, "-F")


def _firewall(instance: int, *words: str) -> None:
    """iptables of login's own network."""
    run(["ip", "netns", "exec", netns(instance, "login"), "iptables", "-w", *words])


@contextlib.contextmanager
def neighbour(instance: int) -> Iterator[None]:
    """Give login a route to gpu's containers, as whoever shares a link with a host can have."""
    route = ["ip", "-n", netns(instance, "login"), "route"]
    run([*route, "replace", CONTAINERS, "via", gpu_address(instance)])
    try:
        yield
    finally:
        run([*route, "delete", CONTAINERS])


def read_firewall() -> str:
    """The machine's own firewall, without counters and dates; empty where there is none."""
    texts = []
    for tool in ("iptables-save", "ip6tables-save"):
        if shutil.which(tool):
            lines = run([tool], check=False).stdout.splitlines()
            texts += [line.split(" [")[0] for line in lines if not line.startswith("#")]
    return "\n".join(texts)
