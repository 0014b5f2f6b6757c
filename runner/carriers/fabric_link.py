"""A connection through Fabric and Paramiko: every hop, its key checked, its errors made ours.

Paramiko gets no known_hosts and no keys of its own choosing: `host_keys` says which host key is
good, `ssh_config` which of the user's keys to offer and how to get there. What it cannot honour is
named by `NotHonoured`, and an OpenSSH child serves instead. Its errors become ours in `translated`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fabric
import paramiko
from paramiko.agent import AgentSSH
from paramiko.auth_strategy import AuthStrategy, InMemoryPrivateKey
from paramiko.ssh_exception import (
    BadAuthenticationType,
    CouldNotCanonicalize,
    IncompatiblePeer,
    MessageOrderError,
    NoValidConnectionsError,
    PartialAuthentication,
    ProxyCommandFailure,
    UnableToAuthenticate,
)

from runner.carriers.again import Tries
from runner.carriers.base import ALIVE_INTERVAL_S
from runner.carriers.failures import Dropped, Refused
from runner.carriers.host_keys import (
    HostKey,
    KnownKeys,
    check_pin,
    key_algorithms,
    parse_key,
    read_known,
    refusal,
    trusted_keys,
)
from runner.carriers.ssh_config import (
    Hop,
    Route,
    baseline_options,
    chosen_algorithms,
    have_ssh,
)
from runner.carriers.ssh_failures import LOCKED, auth_refused
from runner.errors import HostError, HostKeyError, RunnerError, SpecError, Unreachable

# Without a handler of its own, paramiko's tracebacks would end up on the user's screen.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

WINDOW = 8 << 20
"""Measured: 2 MiB gives 9 MB/s at 100 ms, 8 MiB 19 to 28, more is slower here."""
_ADMINISTRATIVELY_PROHIBITED = 1
_CUT_LOGIN = r"saw EOF|uthentication timeout|No existing session"
_MORE_THAN_A_KEY = "the host asks for more than a key"


class NotHonoured(SpecError):
    """The user's ssh configuration asks for what paramiko cannot do."""


@contextlib.contextmanager
def translated(route: Route, hop: Hop, offered: Sequence[str] = ()) -> Iterator[None]:
    """Turns what paramiko and sockets raise into our errors, most specific first."""
    try:
        yield
    except RunnerError:
        raise
    except Exception as error:
        ours = translate(error, route, hop, offered)
        if ours is None:
            raise
        raise ours from error


def translate(
    error: Exception, route: Route, hop: Hop, offered: Sequence[str] = ()
) -> RunnerError | None:
    """Our error for one of paramiko's or a socket's; None for what is a bug."""
    where = route.subject(hop)
    seconds = hop.config.connect_timeout_s
    if isinstance(error, paramiko.BadHostKeyException):
        return HostKeyError(f"{where}: the host key is not the known one; nothing was sent")
    if isinstance(error, IncompatiblePeer):
        if "host key" in str(error):
            return HostKeyError(
                f"{where}: it shows no key of a kind we know it by; nothing was sent",
                f"by {hop.address}",
            )
        return HostError(f'{where}: no common way to encrypt ({error}); try transport = "openssh"')
    if isinstance(error, (BadAuthenticationType, PartialAuthentication)):
        return auth_refused(route, hop, list(offered), [_MORE_THAN_A_KEY])
    if isinstance(error, (UnableToAuthenticate, paramiko.AuthenticationException)):
        cut = _cut_login(error)
        if cut is not None:
            text = f"no answer for {seconds} s" if "timeout" in cut else "the connection was lost"
            return Unreachable(f"{where}: {text} during the login")
        return auth_refused(route, hop, list(offered), [])
    if isinstance(error, paramiko.ChannelException):
        if error.code == _ADMINISTRATIVELY_PROHIBITED:
            return HostError(f"{where}: it allows no connection to what lies behind it")
        return Unreachable(f"{where}: it cannot reach what lies behind it ({error.text})")
    if isinstance(error, ProxyCommandFailure):
        return Unreachable(f"{where}: the ProxyCommand of the ssh configuration ended")
    if isinstance(error, NoValidConnectionsError):
        return Refused(f"{where}: {hop.address} refused the connection")
    if isinstance(error, (CouldNotCanonicalize, paramiko.ConfigParseError)):
        return SpecError(f"{where}: {error}")
    if isinstance(error, MessageOrderError):
        return HostError(f"{where}: it does not keep to the protocol ({error})")
    if isinstance(error, paramiko.SSHException):
        return _translate_general(str(error), where, seconds, route, hop, offered)
    if isinstance(error, TimeoutError):
        return Unreachable(f"{where}: no answer for {seconds} s")
    if isinstance(error, socket.gaierror):
        return Unreachable(f"{where}: there is no machine called {hop.config.hostname}")
    if isinstance(error, ConnectionRefusedError):
        return Refused(f"{where}: {hop.address} refused the connection")
    if isinstance(error, (OSError, EOFError)):
        text = f" ({error})" if str(error) else ""
        return Unreachable(f"{where}: the connection was lost{text}")
    return None


def _translate_general(
    text: str, where: str, seconds: int, route: Route, hop: Hop, offered: Sequence[str]
) -> RunnerError:
    """paramiko says most things with its base class; only the text tells them apart."""
    if "No existing session" in text and offered:  # a server gave up over too many keys
        return auth_refused(route, hop, list(offered), ["the host ended the login"])
    # no session before any key was offered: nothing came in the time for connecting
    if "No existing session" in text or "imed out" in text or "imeout" in text:
        return Unreachable(f"{where}: no answer for {seconds} s")
    if "reading SSH protocol banner" in text:  # closed before it said who it is: MaxStartups
        kind = Refused if route.hops[0].config.proxy_command else Dropped
        return kind(f"{where}: the connection was lost ({text})")
    if any(
        word in text
        for word in ("banner", "not active", "not open", "EOF", "closed", "reset", "Unable to open")
    ):
        return Unreachable(f"{where}: the connection was lost ({text})")
    return HostError(f"{where}: ssh could not connect ({text})")


def _cut_login(error: Exception) -> str | None:
    """What paramiko says of a login that the link cut short; None where a server refused a key.

    A server that had enough of refused keys just ends the connection, so one refusal counts.
    """
    results = [row.result for row in getattr(error, "result", None) or ()] or [error]
    for result in results:
        if not (isinstance(result, (EOFError, OSError)) or re.search(_CUT_LOGIN, str(result))):
            return None
    return str(results[0])


def not_honoured(route: Route, known: Sequence[KnownKeys]) -> list[str]:
    """What the user's configuration asks for on this way that paramiko cannot do."""
    baseline = baseline_options() if have_ssh() else {}
    found: list[str] = []
    for hop, keys in zip(route.hops, known, strict=True):
        found += hop.config.not_honoured
        found += chosen_algorithms(hop.config, baseline) if baseline else []
        if hop.config.own_control:
            found.append("ControlPath")
        if keys.authorities and hop.pinned is None:
            found.append("@cert-authority in known_hosts")
    return found


@dataclass
class Link:
    """An open connection and all it stands on, the nearest first."""

    route: Route
    connections: list[Any]
    proxy: subprocess.Popen[bytes] | None = None

    @property
    def transport(self) -> Any:
        """paramiko's transport to the host itself."""
        return self.connections[-1].client.get_transport()

    def open_channel(self) -> Any:
        """A new channel for one command."""
        config = self.route.last.config
        timeout_s = config.connect_timeout_s
        with translated(self.route, self.route.last):
            channel = self.transport.open_session(window_size=WINDOW, timeout=timeout_s)
            channel.update_environment(dict(config.environment))
            return channel

    def start(self, channel: Any, command: str) -> None:
        """Has the server start a command, for which Paramiko itself would wait without end."""
        last = self.route.last
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self.transport.close()

        timer = threading.Timer(last.config.connect_timeout_s, give_up)
        timer.daemon = True
        timer.start()
        with translated(self.route, last):
            try:
                channel.exec_command(command)
            except Exception:
                if late.is_set():
                    raise TimeoutError from None
                raise
            finally:
                timer.cancel()

    def close(self) -> None:
        """Closes everything, the host first."""
        for connection in reversed(self.connections):
            connection.client.close()
        if self.proxy is not None:
            self.proxy.terminate()
            try:
                self.proxy.wait(0.5)
            except subprocess.TimeoutExpired:
                self.proxy.kill()
                self.proxy.wait()


def connect(route: Route) -> Link:
    """Goes the whole way, checking each hop's key before anything is sent to it.

    Raises NotHonoured before the first packet, HostError.
    """
    known = [read_known(hop.config) for hop in route.hops]
    found = not_honoured(route, known)
    if found:
        raise NotHonoured(
            f"{route.host}: transport fabric cannot honour {', '.join(found)}; in its file write",
            '  transport = "openssh"',
        )
    for hop, keys in zip(route.hops, known, strict=True):
        if hop.pinned is not None:
            check_pin(route, hop, keys)
    tries = Tries(route.last.config.connect_timeout_s)
    while True:
        try:
            return _go(route, known)
        except Dropped as error:
            pause = tries.pause_s(error)
            if pause is None:
                raise
        time.sleep(pause)


def _go(route: Route, known: Sequence[KnownKeys]) -> Link:
    link = Link(route, [])
    try:
        for hop, keys in zip(route.hops, known, strict=True):
            _open_hop(link, hop, keys)
    except BaseException:
        link.close()
        raise
    return link


def _open_hop(link: Link, hop: Hop, known: KnownKeys) -> None:
    config = hop.config
    timeout_s = config.connect_timeout_s
    login = _Login(config.user, hop)
    trusted = trusted_keys(hop, known)
    with contextlib.closing(login), translated(link.route, hop, login.offered):
        sock = _socket_to(link, hop, timeout_s)
        connection = fabric.Connection(
            host=config.hostname,
            user=config.user,
            port=config.port,
            connect_timeout=timeout_s,
            # Neither fabric's own files nor a second reading of ssh_config.
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            connect_kwargs={
                "sock": sock,
                "auth_strategy": login,
                "banner_timeout": timeout_s,
                "auth_timeout": timeout_s,
                "disabled_algorithms": _disabled(trusted),
            },
        )
        connection.client.set_missing_host_key_policy(_Policy(link.route, hop, known))
        link.connections.append(connection)
        connection.open()
        if not link.transport.is_authenticated():  # a key was right, and more is asked for
            raise auth_refused(link.route, hop, login.offered, [_MORE_THAN_A_KEY])
        link.transport.set_keepalive(ALIVE_INTERVAL_S)


def _disabled(trusted: Sequence[HostKey]) -> dict[str, list[str]]:
    """All key algorithms but those we can compare; none when we hold no key that paramiko knows."""
    wanted = set(key_algorithms(trusted))
    known = list(paramiko.Transport._preferred_keys)
    unwanted = [name for name in known if name not in wanted]
    return {"keys": unwanted} if trusted and len(unwanted) < len(known) else {}


class _Policy(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
    """Given no keys at all, paramiko asks this for every key."""

    def __init__(self, route: Route, hop: Hop, known: KnownKeys) -> None:
        self._route, self._hop, self._known = route, hop, known

    def missing_host_key(self, client: object, hostname: str, key: Any) -> None:
        """Raises HostKeyError unless the key is the one we expect."""
        error = refusal(self._route, self._hop, HostKey(key.get_name(), key.asbytes()), self._known)
        if error is not None:
            raise error


def _socket_to(link: Link, hop: Hop, timeout_s: int) -> Any:
    config = hop.config
    if link.connections:
        return link.transport.open_channel(
            "direct-tcpip",
            (config.hostname, config.port),
            ("", 0),
            window_size=WINDOW,
            timeout=timeout_s,
        )
    if config.proxy_command:
        return _through_command(link, config.proxy_command)
    family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(
        config.address_family, socket.AF_UNSPEC
    )
    return _dial(config.hostname, config.port, family, config.bind_address, timeout_s)


def _dial(name: str, port: int, family: int, bind: str | None, timeout_s: int) -> socket.socket:
    """A TCP connection with Nagle's delay off, which costs a round trip per small write."""
    trouble: OSError | None = None
    for kind, type_, proto, _, address in socket.getaddrinfo(
        name, port, family, socket.SOCK_STREAM
    ):
        sock = socket.socket(kind, type_, proto)
        try:
            sock.settimeout(timeout_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if bind:
                sock.bind((bind, 0))
            sock.connect(address)
        except OSError as error:
            trouble = trouble or error
            sock.close()
        else:
            return sock
    raise trouble or OSError(f"no address for {name}")


def _through_command(link: Link, command: str) -> socket.socket:
    """A socket whose other end is the user's ProxyCommand, run by their shell as ssh does."""
    ours, theirs = socket.socketpair()
    with theirs:
        link.proxy = subprocess.Popen(
            [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return ours


class _Agent(AgentSSH):  # type: ignore[misc]
    """The agent at a path, while a login takes; paramiko's own only reads SSH_AUTH_SOCK."""

    def __init__(self, path: str | None) -> None:
        super().__init__()
        if not path:
            return
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            conn.settimeout(5)
            conn.connect(path)
            self._connect(conn)
        except (OSError, paramiko.SSHException):
            conn.close()

    def close(self) -> None:
        """Lets go of the agent."""
        self._close()


class _Login(AuthStrategy):  # type: ignore[misc]
    """Offers keys in ssh's order: those of the configuration that the agent holds, the agent's
    others unless IdentitiesOnly, then key files.
    """

    def __init__(self, user: str, hop: Hop) -> None:
        super().__init__(ssh_config=None)
        self._user = user
        self._hop = hop
        self._agent = _Agent(hop.config.agent)
        self.offered: list[str] = []

    def close(self) -> None:
        """Lets go of the agent, whose keys can sign no more then."""
        self._agent.close()

    def get_sources(self) -> Iterator[InMemoryPrivateKey]:
        """The keys, one by one, noting the name of each."""
        config = self._hop.config
        blobs = {path: _public_blob(path) for path in config.identity_files}
        agent = list(self._agent.get_keys())
        listed = [key for key in agent if key.asbytes() in blobs.values()]
        others = [] if config.identities_only else [key for key in agent if key not in listed]
        for key in (*listed, *others):
            self.offered.append(f"{getattr(key, 'comment', '') or key.get_name()} (agent)")
            yield InMemoryPrivateKey(self._user, key)
        held = {key.asbytes() for key in agent}
        for path in config.identity_files:
            if path.endswith(".pub") or blobs[path] in held:
                continue
            key = self._load(path)
            if key is not None:
                yield InMemoryPrivateKey(self._user, key)

    def _load(self, path: str) -> Any:
        name = os.path.basename(path)
        try:
            mode = os.stat(path).st_mode
            if stat.S_IMODE(mode) & 0o077:
                self.offered.append(f"{name} (not used: others may read the file)")
                return None
            key = paramiko.PKey.from_path(path)
        except (paramiko.PasswordRequiredException, TypeError):
            # cryptography says TypeError for a key in its own formats that needs a passphrase
            self.offered.append(f"{name} ({LOCKED})")
            return None
        except (OSError, ValueError, paramiko.SSHException, paramiko.UnknownKeyType):
            self.offered.append(f"{name} (unreadable)") if os.path.exists(path) else None
            return None
        self.offered.append(name)
        return key


def _public_blob(path: str) -> bytes | None:
    """The public half of an identity file, from the file itself or the one beside it."""
    for name in (path, path + ".pub"):
        try:
            with open(name, encoding="utf-8", errors="replace") as file:
                return parse_key(file.read(65536)).blob
        except (OSError, ValueError):
            continue
    return None
