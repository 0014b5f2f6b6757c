"""The ssh command for a way: every hop strict about host keys, nothing asked, nothing forwarded.

Each connection is shared through a control socket of our own for 60 seconds, unless the user's
configuration has one. Jumps are made by ssh children of ours too (ProxyCommand with -W), so that
strict host keys, pins and no questions hold on every hop.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from runner.carriers.base import ALIVE_COUNT, ALIVE_INTERVAL_S
from runner.carriers.private import key_file, socket_path
from runner.carriers.quoting import plain_line
from runner.carriers.ssh_config import Hop, Route, SshConfig

_PERSIST_S = 60
_WHERE_KNOWN = {
    # Options of the user's that would stop a command or start something beside it; older ssh
    # does not know them all, and refuses what it does not know.
    "forkafterauthentication": "ForkAfterAuthentication=no",
    "stdinnull": "StdinNull=no",
    "sessiontype": "SessionType=default",
}


def ssh_env() -> dict[str, str]:
    """Our environment, in which no ssh asks anything in a window."""
    return {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}


def run_ssh(argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[bytes] | None:
    """An ssh that carries nothing, once it has ended; None when it took longer."""
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=ssh_env(),
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        return None


def ssh_argv(
    route: Route, *, options: Sequence[str] = (), shared: bool = True, lane: int = 0
) -> list[str]:
    """The ssh command up to and including the destination; the remote command comes after it.

    options: further `-oNAME=VALUE`, ahead of all others. shared: over a control socket. lane: over
    which; each has its own, and so a connection of its own.
    """
    hop = route.last
    control: list[str] = []
    path = control_socket(route, lane=lane)
    if not shared:
        control = ["-oControlMaster=no", "-oControlPath=none"]
    elif path is not None:
        control = [
            "-oControlMaster=auto",
            f"-oControlPath={path}",
            f"-oControlPersist={_PERSIST_S}",
        ]
    return [
        "ssh",
        "-T",
        *options,
        *control,
        *_safe_options(hop.config),
        *_key_options(hop),
        *_jump_options(route.hops),
        *hop.target.words,
    ]


def control_socket(route: Route, *, lane: int = 0) -> Path | None:
    """Our socket for the connection, named by all that decides which one it is; None where the
    user has one of their own, which is for lane 0.
    """
    if route.last.config.own_control and not lane:
        return None
    identity = [f"{hop.config.text}\0{hop.pinned}" for hop in route.hops]
    return socket_path("\0".join([*identity, *([f"lane {lane}"] if lane else [])]))


def _safe_options(config: SshConfig) -> list[str]:
    fixed = [
        "BatchMode=yes",
        f"ConnectTimeout={config.connect_timeout_s}",
        f"ServerAliveInterval={ALIVE_INTERVAL_S}",
        f"ServerAliveCountMax={ALIVE_COUNT}",
        "StrictHostKeyChecking=yes",
        "UpdateHostKeys=no",
        "NoHostAuthenticationForLocalhost=no",
        "ForwardAgent=no",
        "ForwardX11=no",
        "PermitLocalCommand=no",
        "RemoteCommand=none",
        "RequestTTY=no",
        "ClearAllForwardings=yes",
        "Tunnel=no",
        "EscapeChar=none",
        "VisualHostKey=no",
        # Errors are read by ssh_failures; banners and notices of INFO are not wanted.
        "LogLevel=ERROR",
    ]
    known = [text for key, text in _WHERE_KNOWN.items() if key in config.options]
    return [f"-o{text}" for text in (*fixed, *known)]


def _key_options(hop: Hop) -> list[str]:
    """With a pin that key alone counts; else what the user's known_hosts say."""
    if hop.pinned is None:
        return []
    options = [
        f"-oUserKnownHostsFile={key_file(hop.pinned)}",
        "-oGlobalKnownHostsFile=/dev/null",
        "-oVerifyHostKeyDNS=no",
        "-oCheckHostIP=no",
    ]
    if "knownhostscommand" in hop.config.options:
        options.append("-oKnownHostsCommand=none")
    return options


def jump_argv(route: Route) -> list[str]:
    """The ssh that carries bytes from the last jump to the host itself."""
    *earlier, jump = route.hops[:-1]
    host = route.last.config
    return [
        "ssh",
        "-T",
        *_safe_options(jump.config),
        *_key_options(jump),
        *_jump_options([*earlier, jump]),
        "-W",
        f"[{host.hostname}]:{host.port}",
        *jump.target.words,
    ]


def _jump_options(hops: Sequence[Hop]) -> list[str]:
    """How the last of `hops` is reached through those before it."""
    if len(hops) < 2:
        return []
    # ssh expands % in a ProxyCommand, and puts `exec` in front of it.
    command = plain_line(jump_argv(Route("", tuple(hops)))).replace("%", "%%")
    return ["-oProxyUseFdpass=no", f"-oProxyCommand={command}"]
