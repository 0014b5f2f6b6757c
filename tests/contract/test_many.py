"""Many hosts at once, connections that are dropped, and what a connection through Paramiko is set
to: over real sshd.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from runner.carriers import Carrier, open_carrier, open_session
from runner.carriers.fabric import FabricCarrier
from runner.carriers.fabric_link import WINDOW, connect
from runner.carriers.ssh_config import read_route
from runner.carriers.steady import SteadyCarrier
from runner.errors import AuthRefused, HostKeyError, RunnerError, Unreachable
from runner.model import Host
from tests.helpers.carried import said_by
from tests.helpers.extra_sshd import extra_sshd
from tests.helpers.wait import wait_for
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig


def say(host: Host) -> bytes:
    return said_by(open_carrier(host, ["echo", host.name], many=True))


class Dropping:
    """A port that ends the first connections unheard, as a server that is too busy; the others it
    passes on.
    """

    def __init__(self, target: int, drops: int) -> None:
        self._target = target
        self._drops = drops
        self.count = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self.count += 1
            if self.count <= self._drops:
                sock.close()
            else:
                threading.Thread(target=_pass_on, args=(sock, self._target), daemon=True).start()


def _pass_on(sock: socket.socket, target: int) -> None:
    """Bytes both ways until one end has ended."""
    with sock, socket.create_connection(("127.0.0.1", target)) as far:
        other = {sock: far, far: sock}
        with contextlib.suppress(OSError):
            while True:
                for ready in select.select([sock, far], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    other[ready].sendall(data)


@pytest.fixture
def dropping(sshd: RigHost, request: pytest.FixtureRequest) -> Iterator[Dropping]:
    port = Dropping(sshd.spec.port, int(request.param))
    yield port
    port.close()


def through(port: Dropping, sshd: RigHost, transport: str) -> Host:
    target = f"ssh://{sshd.user}@127.0.0.1:{port.port}"
    return Host("h", ssh=target, host_key=sshd.host_key, transport=transport)


# which way is taken


def test_one_of_many_takes_what_is_cheapest(me: Operator, sshd: RigHost) -> None:
    host = Host("h", ssh="rig-plain")

    def kind(host: Host) -> type[Carrier]:
        carrier = open_carrier(host, ["echo", "in"], many=True)
        assert said_by(carrier) == b"in\n"
        return type(carrier)

    assert kind(host) is FabricCarrier
    assert kind(Host("h", ssh="rig-plain", transport="openssh")) is SteadyCarrier
    assert kind(host) is SteadyCarrier  # now there is a warm connection
    me.ssh_config.write_text("Host *\n Ciphers aes256-ctr\n" + me.ssh_config.read_text())
    assert kind(host) is SteadyCarrier  # which Paramiko cannot honour


def test_fifty_at_once_all_answer_and_nothing_is_left(
    me: Operator, rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    before = threading.active_count()
    hosts = [Host(f"h{n}", ssh="rig-gpu" if n % 2 else "rig-plain") for n in range(50)]
    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(say, hosts))
    assert found == [f"{host.name}\n".encode() for host in hosts]
    wait_for(lambda: threading.active_count() <= before, 20, "all threads to end")
    assert capfd.readouterr() == ("", "")


def test_many_that_fail_each_say_why_and_print_nothing(
    me: Operator, rig: Rig, capfd: pytest.CaptureFixture[str]
) -> None:
    def outcome(host: Host) -> type[RunnerError]:
        with pytest.raises(RunnerError) as caught:
            say(host)
        return type(caught.value)

    me.trust(rig.login, rig.plain)
    hosts = [Host("a", ssh="rig-gpu"), Host("b", ssh="ssh://127.0.0.1:1")]
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(outcome, hosts * 5))
    assert issubclass(found[0], HostKeyError) and issubclass(found[1], Unreachable)
    assert found == found[:2] * 5
    assert capfd.readouterr() == ("", "")


def test_connections_that_break_print_nothing(
    me: Operator, sshd: RigHost, capfd: pytest.CaptureFixture[str]
) -> None:
    host = Host("h", ssh="rig-plain", transport="fabric")
    with ThreadPoolExecutor(8) as pool:
        script = ["sh", "-c", "echo on; exec sleep 60"]
        carriers = list(pool.map(lambda _: open_carrier(host, script), range(8)))
    assert [carrier.read(10) for carrier in carriers] == [b"on\n"] * 8
    sshd.break_sessions()
    for carrier in carriers:
        with pytest.raises(Unreachable):
            said_by(carrier)
    assert capfd.readouterr() == ("", "")


class Cut:
    """A port that passes so many bytes of the host's on; then nothing more, or an end."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.left = 1 << 30
        self.ends = False
        self._kept: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._kept):
            each.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._kept += [near, far]
                threading.Thread(target=self._pass, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, True), daemon=True).start()

    def _pass(self, source: socket.socket, to: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if counted:
                    data = data[: self.left]
                    self.left -= len(data)
                to.sendall(data)
                if counted and not self.left and self.ends:
                    to.shutdown(socket.SHUT_RDWR)
            to.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def cut(me: Operator, sshd: RigHost) -> Iterator[Cut]:
    me.ssh_config.write_text("Host *\n ConnectTimeout 2\n" + me.ssh_config.read_text())
    port = Cut(sshd.spec.port)
    yield port
    port.close()


def behind(cut: Cut, sshd: RigHost) -> Host:
    target = f"ssh://{sshd.user}@127.0.0.1:{cut.port}"
    return Host("h", ssh=target, host_key=sshd.host_key, transport="fabric")


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("count", [0, 41, 500, 1500, 1700, 1900])
def test_a_login_cut_at_any_moment_is_no_refused_key(
    cut: Cut, sshd: RigHost, count: int, ends: bool
) -> None:
    cut.left, cut.ends = count, ends
    began = time.monotonic()
    with pytest.raises(Unreachable) as caught:
        open_carrier(behind(cut, sshd), ["true"])
    assert time.monotonic() - began < 15
    assert "key" not in str(caught.value) and not caught.value.advice


def test_a_host_that_falls_silent_before_a_command_begins_is_given_up(
    cut: Cut, sshd: RigHost
) -> None:
    link = connect(read_route(behind(cut, sshd)))
    try:
        channel = link.open_channel()
        cut.left = 0
        with pytest.raises(Unreachable, match="no answer for 2 s"):
            link.start(channel, "true")
    finally:
        link.close()


def test_a_stream_whose_connection_ended_says_so_as_every_stream_does(
    me: Operator, sshd: RigHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paramiko raises EOFError where its socket takes nothing more and it has not heard yet."""
    carrier = open_carrier(Host("h", ssh="rig-plain", transport="fabric"), ["cat"])
    assert isinstance(carrier, FabricCarrier)

    def ended(*_: object) -> None:
        raise EOFError

    monkeypatch.setattr(carrier._link.transport.packetizer, "write_all", ended)
    with pytest.raises(OSError, match="the connection was lost"):
        carrier.write(b"x")
    carrier.close_write()
    carrier.close()


# what a connection is set to


@pytest.mark.parametrize("target", ["rig-plain", "rig-gpu"])
def test_small_writes_are_not_held_back_and_windows_are_wide(
    me: Operator, rig: Rig, target: str
) -> None:
    link = connect(read_route(Host("h", ssh=target)))
    try:
        first = link.connections[0].client.get_transport()
        assert first.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert link.open_channel().in_window_size == WINDOW
        if target == "rig-gpu":
            assert link.transport.sock.in_window_size == WINDOW  # the jump's channel carries it
    finally:
        link.close()


# connecting again


@pytest.mark.parametrize("dropping", [3], indirect=True)
def test_a_dropped_connection_is_made_again(
    me: Operator, sshd: RigHost, dropping: Dropping, transport: str
) -> None:
    host = through(dropping, sshd, transport)
    assert said_by(open_carrier(host, ["echo", "in"])) == b"in\n"
    assert dropping.count > 3


@pytest.mark.parametrize("dropping", [3], indirect=True)
def test_a_session_that_is_dropped_is_made_again(
    me: Operator, sshd: RigHost, dropping: Dropping, transport: str
) -> None:
    with open_session(through(dropping, sshd, transport)) as session:
        assert session.run(["cat"], input=b"in", timeout_s=20).stdout == b"in"
    assert dropping.count > 3


@pytest.mark.parametrize("dropping", [1000], indirect=True)
def test_a_server_that_always_drops_is_given_up_in_the_time_set(
    me: Operator, sshd: RigHost, dropping: Dropping, transport: str
) -> None:
    me.ssh_config.write_text("Host *\n ConnectTimeout 3\n" + me.ssh_config.read_text())
    began = time.monotonic()
    with pytest.raises(Unreachable, match="the connection was lost"):
        said_by(open_carrier(through(dropping, sshd, transport), ["true"]))
    assert dropping.count > 2 and time.monotonic() - began < 15


@pytest.mark.parametrize("dropping", [0], indirect=True)
def test_a_refused_key_is_refused_once(
    me: Operator, sshd: RigHost, dropping: Dropping, transport: str
) -> None:
    me.use_key("other_ed25519")
    with pytest.raises(AuthRefused):
        said_by(open_carrier(through(dropping, sshd, transport), ["true"]))
    assert dropping.count == 1


def test_a_server_with_room_for_one_is_waited_for(
    me: Operator, sshd: RigHost, transport: str
) -> None:
    with extra_sshd(sshd, "narrow", MaxStartups="1:100:1") as server:
        host = Host("h", ssh=server.target, host_key=sshd.host_key, transport=transport)
        first = wait_for(lambda: has_its_place(server.port), 10, "the only place")
        assert first is not None
        before = server.said().count("past MaxStartups")

        def let_go() -> None:
            with first:
                wait_for(lambda: server.said().count("past MaxStartups") > before, 20, "a drop")

        thread = threading.Thread(target=let_go)
        thread.start()
        assert said_by(open_carrier(host, ["echo", "in"])) == b"in\n"
        thread.join()


def has_its_place(port: int) -> socket.socket | None:
    """A connection that the server waits for the login of; None when there was no room."""
    sock = socket.create_connection(("127.0.0.1", port))
    with contextlib.suppress(OSError):
        if sock.recv(10).startswith(b"SSH-"):
            return sock
    sock.close()
    return None
