"""Links with a delay: the round trip is what they say, and ssh goes over them, and they end."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import give_up
from tests.helpers.wait import wait_for
from tests.rig import network
from tests.rig.operator import Operator
from tests.rig.paths import Unavailable
from tests.rig.rig import Rig
from tests.rig.ways import MS20, MS100, NEAR, WAYS, Way, crowd

ROOM_S = 0.04
"""What a loaded machine adds even to the quickest of several."""


@pytest.fixture(scope="module")
def far(request: pytest.FixtureRequest, rig: Rig) -> Iterator[Rig]:
    try:
        rig.bring_up_ways()
    except Unavailable as reason:
        give_up(request.config, "sshd", reason)
    yield rig
    rig.take_down_ways()
    assert rig.ways == ()


def connect_s(rig: Rig, way: Way) -> float:
    """How long a TCP connection to gpu's sshd takes, which is one round trip; at best of ten."""

    def once() -> float:
        began = time.perf_counter()
        socket.create_connection((way.address(rig.paths.instance), 22), timeout=10).close()
        return time.perf_counter() - began

    return min(once() for _ in range(10))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_round_trip_takes_what_the_way_says(far: Rig, way: Way) -> None:
    assert way.round_trip_s <= connect_s(far, way) <= way.round_trip_s + ROOM_S


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_ssh_knows_the_host_over_each_way(
    far: Rig, way: Way, make_operator: Callable[[], Operator]
) -> None:
    done = make_operator().ssh(way.alias, "hostname")
    assert (done.returncode, done.stdout) == (0, b"rig-gpu\n"), done.stderr


def test_the_jump_is_still_the_only_other_way(
    far: Rig, make_operator: Callable[[], Operator]
) -> None:
    words = ("-o", "ProxyJump=none", "-o", "ConnectTimeout=1", "rig-gpu", "true")
    assert make_operator().ssh(*words).returncode == 255


def test_what_is_sent_arrives_whole(far: Rig, make_operator: Callable[[], Operator]) -> None:
    size = 3_000_000  # more than a queue holds
    done = make_operator().ssh(MS20.alias, f"head -c {size} /dev/zero")
    assert done.stdout == bytes(size)


def test_a_dropped_link_is_silent_and_can_be_mended(
    far: Rig, make_operator: Callable[[], Operator]
) -> None:
    operator = make_operator()
    words = ("-o", "ServerAliveInterval=1", "-o", "ServerAliveCountMax=2", MS100.alias, "cat")
    ssh = operator.popen(
        ["ssh", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert ssh.stdin is not None and ssh.stdout is not None and ssh.stderr is not None
        ssh.stdin.write(b"a line\n")
        ssh.stdin.flush()
        assert ssh.stdout.readline() == b"a line\n"
        network.drop(far.paths.instance)
        assert ssh.wait(30) == 255
        assert b"not responding" in ssh.stderr.read()
    finally:
        network.mend(far.paths.instance)
        ssh.kill()
        ssh.communicate()
    wait_for(lambda: connect_s(far, NEAR) < 10, 20, "the way to work again")


def test_many_addresses_lead_to_one_sshd(far: Rig) -> None:
    addresses = crowd(far.paths.instance)
    assert len(set(addresses)) >= 50
    for address in (addresses[0], addresses[-1]):
        began = time.perf_counter()
        with socket.create_connection((address, 22), timeout=10) as there:
            assert there.recv(4) == b"SSH-"
        assert time.perf_counter() - began >= 2 * MS100.round_trip_s
