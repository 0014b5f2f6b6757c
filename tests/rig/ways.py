"""Ways with a delay to the gpu host: straight to its sshd, past the jump host.

    operator ── login ═══ near, 20ms, 100ms ═══ gpu

Each way is a link of its own between the namespaces of login, which routes, and gpu, with an
address of its own for gpu: `ssh rig-gpu-100ms`. The last one leads to many more addresses
(`crowd`), which can stand for as many hosts. The kernel may have no netem, so a small program
carries the packets (`slow_link.c`, compiled here). In the machine's own network there are only
routes over the rig's link to login, which go with it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.wait import wait_for
from tests.rig import network, processes
from tests.rig.paths import RigPaths, Unavailable

SOURCE = Path(__file__).with_name("slow_link.c")
RATE_BITS_S = 1_000_000_000
# A queue that holds what is on the way, as routers are built; for short links a little more.
LEAST_QUEUE_BYTES = 2_000_000
MTU = 1500
START_LIMIT_S = 20.0


@dataclass(frozen=True)
class Way:
    """One way to the gpu host."""

    name: str
    number: int
    """Tells its addresses and devices from those of others."""
    round_trip_ms: float = 0.0
    loss_ppm: int = 0
    """Of a million packets, each direction."""

    @property
    def alias(self) -> str:
        """The name that the operator's ssh config gives gpu over this way."""
        return f"rig-gpu-{self.name}"

    @property
    def device(self) -> str:
        return f"way{self.number}"

    @property
    def round_trip_s(self) -> float:
        return self.round_trip_ms / 1000

    def login_address(self, instance: int) -> str:
        return f"198.18.{instance}.{8 + 4 * self.number + 1}"

    def address(self, instance: int) -> str:
        """gpu's."""
        return f"198.18.{instance}.{8 + 4 * self.number + 2}"


def crowd(instance: int) -> list[str]:
    """Further addresses of gpu, all over `MS100`: each can stand for a host."""
    first, last = 129, 190
    return [f"198.18.{instance}.{number}" for number in range(first, last + 1)]


def _crowd_prefix(instance: int) -> str:
    return f"198.18.{instance}.128/26"


NEAR = Way("near", 0)
"""No delay but this machine's own."""
MS20 = Way("20ms", 1, 20)
MS100 = Way("100ms", 2, 100)
WAYS = (NEAR, MS20, MS100)


def check_ways() -> None:
    """Raise `Unavailable` unless links with a delay can be made here."""
    if not Path("/dev/net/tun").exists():
        raise Unavailable("there is no /dev/net/tun, which links with a delay are made of")
    if shutil.which("cc") is None:
        raise Unavailable("cc is not installed (package gcc), and links with a delay need it")


def start(paths: RigPaths) -> list[dict[str, int]]:
    """Make the ways of a rig whose hosts are up; the processes to record."""
    check_ways()
    program, number = _compiled(paths.cache), paths.instance
    login, gpu = network.netns(number, "login"), network.netns(number, "gpu")
    clear(number)
    _inside(login, "echo 1 > /proc/sys/net/ipv4/ip_forward")
    made = []
    for way in WAYS:
        if way.round_trip_ms:
            made.append(_start_link(program, way, paths))
        else:
            link = ["link", "add", way.device, "type", "veth", "peer", "name", way.device]
            processes.run(["ip", "-n", login, *link, "netns", gpu])
        for place, address in ((login, way.login_address), (gpu, way.address)):
            ip = ["ip", "-n", place]
            processes.run([*ip, "address", "add", f"{address(number)}/30", "dev", way.device])
            longest = ["mtu", str(MTU), "txqueuelen", "20000"]  # our queue drops, not the device's
            processes.run([*ip, "link", "set", way.device, "up", *longest])
        # an answer goes back the way that its question came
        table = str(100 + way.number)
        back = ["default", "via", way.login_address(number), "dev", way.device, "table", table]
        processes.run(["ip", "-n", gpu, "route", "add", *back])
        rule = ["rule", "add", "from", way.address(number), "table", table]
        processes.run(["ip", "-n", gpu, *rule])
    prefix, via = _crowd_prefix(number), ["via", MS100.address(number), "dev", MS100.device]
    processes.run(["ip", "-n", login, "route", "add", prefix, *via])
    processes.run(["ip", "-n", gpu, "route", "add", "local", prefix, "dev", "lo"])
    table = str(100 + MS100.number)
    processes.run(["ip", "-n", gpu, "rule", "add", "from", prefix, "table", table])
    lay_routes(number)
    return made


def lay_routes(instance: int) -> None:
    """Routes of this machine to the ways; again after the link to login was down."""
    to = ["via", network.login_address(instance), "dev", network.operator_link(instance)]
    for place in _places(instance):
        processes.run(["ip", "route", "replace", place, *to])


def _places(instance: int) -> list[str]:
    """gpu's addresses over the ways, as routes and rules name them."""
    return [*(f"{way.address(instance)}/32" for way in WAYS), _crowd_prefix(instance)]


def clear(instance: int) -> None:
    """Take away what is left of ways whose programs ended."""
    login, gpu = (network.netns(instance, host) for host in ("login", "gpu"))
    for way in WAYS:
        processes.run(["ip", "-n", login, "link", "delete", way.device], check=False)
    for place in _places(instance):
        processes.run(["ip", "route", "delete", place], check=False)
        processes.run(["ip", "-n", gpu, "rule", "delete", "from", place], check=False)
    prefix = _crowd_prefix(instance)
    processes.run(["ip", "-n", gpu, "route", "delete", "local", prefix], check=False)
    _inside(login, "echo 0 > /proc/sys/net/ipv4/ip_forward")


def _start_link(program: Path, way: Way, paths: RigPaths) -> dict[str, int]:
    spaces = [f"/run/netns/{network.netns(paths.instance, host)}" for host in ("login", "gpu")]
    rate = RATE_BITS_S / 8
    queue = max(LEAST_QUEUE_BYTES, round(rate * way.round_trip_s))
    numbers = [round(way.round_trip_s / 2 * 1e6), round(rate), queue, way.loss_ppm]
    log = paths.live / f"{way.device}.log"
    log.unlink(missing_ok=True)
    child = processes.spawn([program, way.device, *spaces, *map(str, numbers)], log)

    def is_ready() -> bool:
        assert child.poll() is None, log.read_text()
        return "ready" in log.read_text()

    wait_for(is_ready, START_LIMIT_S, f"the link {way.name}")
    return processes.identify(child.pid)


def _compiled(cache: Path) -> Path:
    """The program that carries packets, compiled once for its source."""
    cache.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    program = cache / f"slow-link-{digest}"
    if not program.exists():
        new = cache / f"slow-link-{digest}.{os.getpid()}"
        processes.run(["cc", "-O2", "-pthread", "-o", new, SOURCE])
        new.replace(program)
    return program


def _inside(netns: str, script: str) -> None:
    processes.run(["ip", "netns", "exec", netns, "sh", "-c", script])
