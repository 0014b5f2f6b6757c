"""Both ways to a real sshd, held to the same claims: OpenSSH's client, and Fabric."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from runner.carriers import open_carrier, open_session
from runner.carriers.fabric import FabricSession
from runner.carriers.session import ChildSession
from runner.errors import AuthRefused, HostKeyError, RunnerError, TimedOut, Unreachable
from runner.model import Host
from tests.helpers.carried import go_through_a_proxy, read_all, running
from tests.helpers.wait import wait_for
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig

AWKWARD = ["it's", 'a "b"', "x!y", "\\", "\\'", "two\nlines", "end\n", "$HOME `id`", "é", "", "*"]


def refused(host: Host) -> RunnerError:
    """The error of a carrier, which must also be a session's."""
    with pytest.raises(RunnerError) as by_stream:
        read_all(host, ["true"])
    with pytest.raises(type(by_stream.value)) as by_session, open_session(host) as session:
        session.run(["true"], timeout_s=30)
    assert by_session.value.message == by_stream.value.message
    return by_stream.value


def test_words_arrive_as_they_are(me: Operator, transport: str) -> None:
    host = Host("h", ssh="rig-plain", transport=transport)
    want = "".join(f"<{word}>" for word in AWKWARD).encode()
    assert read_all(host, ["printf", "<%s>", *AWKWARD]) == want


def test_bytes_go_both_ways_through_a_jump(
    me: Operator, jump_host: RigHost, transport: str
) -> None:
    carrier = open_carrier(Host("h", ssh="rig-gpu", transport=transport), ["cat"])
    data, back = os.urandom(3 << 20), bytearray()

    def send() -> None:
        carrier.write(data)
        carrier.close_write()

    thread = threading.Thread(target=send)
    thread.start()
    while piece := carrier.read(1 << 18):
        back += piece
    thread.join()
    assert bytes(back) == data and carrier.failure() is None
    carrier.close()


def test_what_start_up_files_print_is_no_result(
    me: Operator, sshd: RigHost, transport: str
) -> None:
    rc = sshd.home / ".bashrc"
    rc.write_text("echo HELLO; printf x >&2; stty sane\n")
    rc.chmod(0o644)
    lines: list[str] = []
    try:
        with open_session(Host("h", ssh="rig-plain", transport=transport)) as session:
            done = session.run(
                ["sh", "-c", "cat; echo err >&2; exit 7"],
                input=[b"a\n", b"b"],
                timeout_s=20,
                on_line=lines.append,
            )
    finally:
        rc.unlink()
    assert (done.status, done.stdout, done.stderr) == (7, b"a\nb", b"err\n")
    assert sorted(lines) == ["a", "err"]


def test_a_command_of_status_255_is_no_lost_connection(me: Operator, transport: str) -> None:
    with open_session(Host("h", ssh="rig-plain", transport=transport)) as session:
        assert session.run(["sh", "-c", "exit 255"], timeout_s=20).status == 255


def test_a_command_that_takes_too_long_is_given_up(me: Operator, transport: str) -> None:
    with (
        open_session(Host("h", ssh="rig-plain", transport=transport)) as session,
        pytest.raises(TimedOut),
    ):
        session.run(["sleep", "30"], timeout_s=1)


def test_a_connection_that_breaks_is_told(me: Operator, sshd: RigHost, transport: str) -> None:
    with open_session(Host("h", ssh="rig-plain", transport=transport)) as session:
        breaker = threading.Timer(1.0, sshd.break_sessions)
        breaker.start()
        began = time.monotonic()
        with pytest.raises(Unreachable):
            session.run(["sleep", "30"], timeout_s=30)
        assert time.monotonic() - began < 20
        breaker.join()


def test_closing_from_another_thread_ends_a_read(me: Operator, transport: str) -> None:
    carrier = open_carrier(Host("h", ssh="rig-plain", transport=transport), ["sleep", "60"])
    threading.Timer(0.3, carrier.close).start()
    assert carrier.read(10) == b""
    carrier.close()
    with pytest.raises(OSError):
        carrier.write(b"x")


def test_a_refused_key_names_the_user_and_the_key(me: Operator, transport: str) -> None:
    me.use_key("other_ed25519")
    error = refused(Host("h", ssh="rig-plain", transport=transport))
    assert isinstance(error, AuthRefused) and error.status == 3
    assert error.message == "h: key refused for rig-plain (offered id_ed25519)"


def test_a_key_that_others_may_read_is_not_used(me: Operator, transport: str) -> None:
    (me.ssh_folder / "id_ed25519").chmod(0o644)
    error = refused(Host("h", ssh="rig-plain", transport=transport))
    assert isinstance(error, AuthRefused)
    text = "\n".join([error.message, *error.advice])
    assert "too open" in text or "others may read" in text


def test_a_locked_key_without_an_agent_is_named(me: Operator, transport: str) -> None:
    key = me.ssh_folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", key], check=True)
    error = refused(Host("h", ssh="rig-plain", transport=transport))
    assert "locked by a passphrase, and no agent holds it" in error.message


@pytest.fixture
def agent(me: Operator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    """An agent that holds seven keys, the right one last."""
    socket = me.home / "agent"
    started = subprocess.Popen(
        ["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(socket.exists, 10, "the agent")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    try:
        for number in range(7):
            other = me.home / f"other{number}"
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
            subprocess.run(["ssh-add", "-q", other], check=True)
        subprocess.run(["ssh-add", "-q", me.ssh_folder / "id_ed25519"], check=True)
        yield me
    finally:
        started.kill()
        started.wait()


def test_with_identities_only_the_agents_right_key_is_offered_first(
    agent: Operator, transport: str
) -> None:
    (agent.ssh_folder / "id_ed25519").unlink()
    text = agent.ssh_config.read_text().replace("/id_ed25519\n", "/id_ed25519.pub\n")
    agent.ssh_config.write_text(text)
    assert read_all(Host("h", ssh="rig-plain", transport=transport), ["echo", "in"]) == b"in\n"


def test_too_many_keys_are_told(agent: Operator, transport: str) -> None:
    for name in ("id_ed25519", "id_ed25519.pub"):
        (agent.ssh_folder / name).unlink()
    agent.ssh_config.write_text(agent.ssh_config.read_text().replace("IdentitiesOnly yes", ""))
    error = refused(Host("h", ssh="rig-plain", transport=transport))
    assert isinstance(error, AuthRefused) and "IdentitiesOnly yes" in error.advice


def test_a_closed_port_is_unreachable(me: Operator, sshd: RigHost, transport: str) -> None:
    sshd.stop_sshd()
    error = refused(Host("h", ssh="rig-plain", transport=transport))
    assert isinstance(error, Unreachable)
    assert error.message == f"h: 127.0.0.1 port {sshd.spec.port} refused the connection"


def test_a_silent_address_is_unreachable_after_the_time_set(me: Operator, transport: str) -> None:
    me.ssh_config.write_text(
        "Host silent\n HostName 198.51.100.7\n ConnectTimeout 1\n" + me.ssh_config.read_text()
    )
    began = time.monotonic()
    error = refused(Host("h", ssh="silent", transport=transport))
    assert isinstance(error, Unreachable) and time.monotonic() - began < 10


def test_a_name_that_is_none_is_unreachable(me: Operator, transport: str) -> None:
    error = refused(Host("h", ssh="no-such-host.invalid", transport=transport))
    assert error.message == "h: there is no machine called no-such-host.invalid"


def test_the_users_proxy_command_is_run_by_their_shell_and_ended(
    me: Operator, sshd: RigHost, transport: str
) -> None:
    mark = f"runner-proxy-{os.getpid()}"
    go_through_a_proxy(me, "rig-plain", mark)
    host = Host("h", ssh="rig-plain", transport=transport)
    assert read_all(host, ["echo", "through"]) == b"through\n"
    if transport == "openssh":  # its shared connection lives on it
        subprocess.run([me.bin / "ssh", "-O", "exit", "-S", *sockets(me), "x"], check=False)
    wait_for(lambda: running(mark) == 0, 10, "the proxy command to end")


def sockets(me: Operator) -> list[str]:
    return [str(path) for path in (me.runtime / "runner").glob("c-" + "?" * 16)]


# host keys


def test_a_wrong_key_of_the_host_is_refused(me: Operator, sshd: RigHost, transport: str) -> None:
    me.trust_wrongly(sshd)
    before = me.known_hosts.read_bytes()
    error = refused(Host("h", ssh="rig-plain", transport=transport))
    assert isinstance(error, HostKeyError) and "HOST KEY CHANGED" in error.message
    text = "\n".join(error.advice)
    assert f"by 127.0.0.1 port {sshd.spec.port}" in text and str(me.known_hosts) in text
    assert text.count("SHA256:") == 2
    assert me.known_hosts.read_bytes() == before


@pytest.mark.parametrize("which", ["login", "gpu"])
def test_a_wrong_key_on_either_hop_is_refused_by_name(
    me: Operator, rig: Rig, which: str, transport: str
) -> None:
    me.trust_wrongly(rig.login if which == "login" else rig.gpu)
    error = refused(Host("h", ssh="rig-gpu", transport=transport))
    assert isinstance(error, HostKeyError) and "HOST KEY CHANGED" in error.message
    assert ("rig-login (the jump)" in error.message) == (which == "login")


@pytest.mark.parametrize("which", ["login", "gpu"])
def test_an_unknown_key_on_either_hop_is_refused_with_its_fingerprint(
    me: Operator, rig: Rig, which: str, transport: str
) -> None:
    unknown, known = (rig.login, rig.gpu) if which == "login" else (rig.gpu, rig.login)
    me.trust(known)
    error = refused(Host("h", ssh="rig-gpu", jump="rig-login", transport=transport))
    assert isinstance(error, HostKeyError) and "the host key is not known" in error.message
    pin = "jump_key" if which == "login" else "host_key"
    assert f'  {pin} = "{unknown.host_key}"' in error.advice


def test_pinned_keys_alone_are_enough_and_known_hosts_stay_empty(
    me: Operator, rig: Rig, transport: str
) -> None:
    me.trust()
    host = Host(
        "h",
        ssh="rig-gpu",
        jump="rig-login",
        jump_key=rig.login.host_key,
        host_key=rig.gpu.host_key,
        transport=transport,
    )
    assert read_all(host, ["echo", "in"]) == b"in\n"
    with open_session(host) as session:
        assert session.run(["echo", "in"], timeout_s=20).text == "in"
    assert me.known_hosts.read_bytes() == b""


@pytest.mark.parametrize("which", ["host_key", "jump_key"])
def test_a_wrong_pin_is_refused_though_nothing_is_known(
    me: Operator, rig: Rig, which: str, transport: str
) -> None:
    me.trust()
    pins = {"jump_key": rig.login.host_key, "host_key": rig.gpu.host_key, which: rig.plain.host_key}
    host = Host("h", ssh="rig-gpu", jump="rig-login", transport=transport, **pins)  # type: ignore[arg-type]
    error = refused(host)
    assert isinstance(error, HostKeyError) and "HOST KEY CHANGED" in error.message
    assert "          from hosts/h" in "\n".join(error.advice)


def test_a_pin_against_known_hosts_is_refused_even_if_it_is_right(
    me: Operator, rig: Rig, transport: str
) -> None:
    me.trust_wrongly(rig.plain)
    error = refused(Host("h", ssh="rig-plain", host_key=rig.plain.host_key, transport=transport))
    assert isinstance(error, HostKeyError) and "name different keys" in error.message


def test_a_lax_configuration_accepts_and_writes_nothing(
    me: Operator, rig: Rig, transport: str
) -> None:
    me.trust()
    lax = "Host *\n StrictHostKeyChecking no\n UpdateHostKeys yes\n"
    me.ssh_config.write_text(lax + me.ssh_config.read_text())
    for target in ("rig-plain", "rig-gpu"):
        assert isinstance(refused(Host("h", ssh=target, transport=transport)), HostKeyError)
    assert me.known_hosts.read_bytes() == b""


def test_which_session_serves_is_chosen_by_what_the_configuration_needs(
    me: Operator, rig: Rig
) -> None:
    with open_session(Host("h", ssh="rig-plain")) as session:
        assert isinstance(session, FabricSession)
    me.ssh_config.write_text("Host *\n Ciphers aes256-ctr\n" + me.ssh_config.read_text())
    with open_session(Host("h", ssh="rig-plain")) as session:
        assert isinstance(session, ChildSession)
        assert session.run(["echo", "in"], timeout_s=20).text == "in"
