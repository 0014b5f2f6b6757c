"""A shared connection that died while it was warm: the next command goes on over a new one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.carriers import open_carrier, open_session
from runner.carriers.masters import let_go, living
from runner.carriers.ssh_command import control_socket
from runner.carriers.ssh_config import read_route
from runner.errors import Unreachable
from runner.model import Host
from tests.helpers.carried import hang_up, logins, say
from tests.rig import network
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig

HOST = Host("h", ssh="rig-plain", transport="openssh")
FAR_LESS_THAN_ALIVE_S = 14.0
"""ssh itself gives a dead connection up after 15 s, and then fails; this takes about 5."""


@pytest.fixture
def me(me: Operator) -> Iterator[Operator]:
    yield me
    hang_up(me)


def control_of(host: Host, lane: int = 0) -> Path:
    path = control_socket(read_route(host), lane=lane)
    assert path is not None
    return path


@contextlib.contextmanager
def frozen(sshd: RigHost) -> Iterator[None]:
    """The host's ends of all connections stand still, as if the link carried nothing: no answer,
    and no end either.
    """
    pids = [pid for pid, _, args in sshd.processes() if args.startswith(f"sshd: {sshd.user}")]
    assert pids
    for pid in pids:
        sshd.signal(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            sshd.run(["kill", "-KILL", str(pid)], check=False)


def test_a_stream_over_a_dead_connection_goes_on_over_a_new_one(
    me: Operator, sshd: RigHost
) -> None:
    assert say(HOST) == b"in\n"
    dead = living(control_of(HOST))
    before = logins(sshd)
    with frozen(sshd):
        began = time.monotonic()
        assert say(HOST) == b"in\n"
        assert time.monotonic() - began < FAR_LESS_THAN_ALIVE_S
        assert say(HOST) == b"in\n"
    assert logins(sshd) - before == 1  # the new one is shared in its turn
    assert living(control_of(HOST)) not in (None, dead)


def test_a_command_that_may_do_harm_is_run_once(me: Operator, sshd: RigHost) -> None:
    assert say(HOST) == b"in\n"
    done = sshd.home / "done"
    done.unlink(missing_ok=True)
    with frozen(sshd), open_session(HOST) as session:
        began = time.monotonic()
        argv = ["sh", "-c", f"echo x >> {done}; cat {done}"]
        assert session.run(argv, timeout_s=30).stdout == b"x\n"
        assert time.monotonic() - began < FAR_LESS_THAN_ALIVE_S
    done.unlink()


def test_a_master_of_ours_that_hangs_is_gone_around(me: Operator, sshd: RigHost) -> None:
    assert say(HOST) == b"in\n"
    check = [me.bin / "ssh", "-O", "check", "-S", control_of(HOST), "x"]
    told = subprocess.run(check, capture_output=True, text=True, check=True).stderr
    found = re.search(r"pid=(\d+)", told)
    assert found is not None
    os.kill(int(found[1]), signal.SIGSTOP)
    began = time.monotonic()
    try:
        assert say(HOST) == b"in\n"
        assert time.monotonic() - began < 30  # it would hang for ever
    finally:
        os.kill(int(found[1]), signal.SIGKILL)


def test_what_is_under_way_over_a_connection_that_is_let_go_lives_on(
    me: Operator, sshd: RigHost
) -> None:
    carrier = open_carrier(HOST, ["sh", "-c", "echo on; exec cat"])
    assert carrier.read(10) == b"on\n"
    control = control_of(HOST)
    number = living(control)
    assert number is not None
    let_go(control, number)
    assert living(control) is None and not control.exists()
    assert say(HOST) == b"in\n"
    newer = living(control)
    let_go(control, number)  # the old number no longer means this one
    assert living(control) == newer
    carrier.write(b"still")
    assert carrier.read(10) == b"still"
    carrier.close()


def test_a_link_that_comes_back_is_used_at_once(me: Operator, rig: Rig, jump_host: RigHost) -> None:
    host = Host("h", ssh="rig-gpu", transport="openssh")
    assert say(host) == b"in\n"
    network.drop(rig.paths.instance)
    mender = threading.Timer(5.0, network.mend, [rig.paths.instance])
    mender.start()
    try:
        assert say(host) == b"in\n"
    finally:
        mender.join()


def test_a_link_that_stays_cut_is_told_in_the_time_set(me: Operator, rig: Rig) -> None:
    me.ssh_config.write_text("Host *\n ConnectTimeout 2\n" + me.ssh_config.read_text())
    host = Host("h", ssh="rig-login", transport="openssh")
    assert say(host) == b"in\n"
    network.drop(rig.paths.instance)
    try:
        with pytest.raises(Unreachable):
            say(host)
    finally:
        network.mend(rig.paths.instance)
    assert say(host) == b"in\n"


def test_lanes_have_a_connection_each(me: Operator, sshd: RigHost) -> None:
    before = logins(sshd)
    for _ in range(2):
        for lane in (0, 1, 2):
            assert say(HOST, lane) == b"in\n"
    assert logins(sshd) - before == 3
    assert len({control_of(HOST, lane) for lane in (0, 1, 2)}) == 3
    assert control_of(HOST).parent.stat().st_mode & 0o777 == 0o700


def test_a_lane_is_not_the_users_own_connection(me: Operator, sshd: RigHost) -> None:
    own = f"Host rig-plain\n ControlPath {me.home}/own\n ControlMaster no\n"
    me.ssh_config.write_text(own + me.ssh_config.read_text())
    assert control_socket(read_route(HOST)) is None
    before = logins(sshd)
    assert say(HOST, 1) == say(HOST, 1) == b"in\n"
    assert logins(sshd) - before == 1 and not (me.home / "own").exists()
