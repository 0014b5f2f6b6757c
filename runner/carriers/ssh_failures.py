"""What it means when ssh itself fails, read from its last words."""

from __future__ import annotations

import os
import re
import shlex
import subprocess

from runner.carriers.failures import Dropped, Refused, last_line
from runner.carriers.ssh_config import Hop, Route
from runner.errors import AuthRefused, HostError, RunnerError, Unreachable

SSH_STATUS = 255
LOCKED = "locked by a passphrase, and no agent holds it"
GONE = "the file is gone, only its .pub is there"
_LOST = re.compile(
    r"timed? ?out|timeout, server|no route to host|network is unreachable|host is down"
    r"|connection (reset|closed|refused)|connection to .* (closed|lost)|lost connection"
    r"|broken pipe|client_loop|closed by|stdio forwarding failed|exchange_identification"
    r"|mux_client|master (is|has) (dead|gone)",
    re.IGNORECASE,
)
_RESOLVE = re.compile(r"could not resolve hostname (\S+?)(?::\s|$)", re.IGNORECASE)
_REFUSED = re.compile(r"connect to host (\S+) port (\d+): Connection refused")
_DENIED = re.compile(r"(?:(\S+)@)?([^\s:@]+): Permission denied \(([^)]*)\)")
_SILENT = re.compile(r"UNKNOWN port|exchange_identification|stdio forwarding failed|closed by")
_BEHIND = re.compile(r"open failed: (?:connect failed: )?(.*)|stdio forwarding failed")
_NO_BANNER = re.compile(r"exchange_identification: (Connection closed|read: Connection reset)")
_HOST_KEY = re.compile(
    r"Host key verification failed|host key .* (known|changed|revoked)|IDENTIFICATION HAS CHANGED"
    r"|no matching host key type|REVOKED HOST KEY",
    re.IGNORECASE,
)


def is_host_key_trouble(said: str) -> bool:
    """Whether ssh refused a host key; `host_keys` can say more of it."""
    return _HOST_KEY.search(said) is not None


def is_silent(said: str) -> bool:
    """Whether ssh only said that nothing came from the other end, be it the host or a jump."""
    return not said.strip() or _SILENT.search(said) is not None


def ssh_failure(route: Route, said: str) -> RunnerError:
    """The error behind ssh's status 255 and what it said, host keys apart."""
    if _DENIED.search(said) or "Too many authentication failures" in said:
        return _auth_failure(route, said)
    if match := _RESOLVE.search(said):
        return Unreachable(f"{route.host}: there is no machine called {match[1]}", *_way(route))
    if match := _REFUSED.search(said):
        return Refused(
            f"{route.host}: {match[1]} port {match[2]} refused the connection", *_way(route)
        )
    if len(route.hops) > 1 and (match := _BEHIND.search(said)):
        way = f"{route.hops[-2].label} cannot reach it"
        return Unreachable(
            f"{route.host}: {way} ({(match[1] or 'forwarding failed').strip()})", *_way(route)
        )
    if re.search(r"timed out", said, re.IGNORECASE):
        seconds = route.last.config.connect_timeout_s
        return Unreachable(
            f"{route.host}: no answer for {seconds} s", *_way(route), f"ssh said: {last_line(said)}"
        )
    if _LOST.search(said):
        return _kind_of_loss(route, said)(
            f"{route.host}: the connection was lost", *_way(route), f"ssh said: {last_line(said)}"
        )
    if said.strip():
        return HostError(
            f"{route.host}: ssh could not connect", *_way(route), f"ssh said: {last_line(said)}"
        )
    return Unreachable(f"{route.host}: ssh ended without a word", *_way(route))


def _kind_of_loss(route: Route, said: str) -> type[Unreachable]:
    if not _NO_BANNER.search(said):
        return Unreachable
    # the same is said of a ProxyCommand of the user's that does not work at all
    return Refused if route.hops[0].config.proxy_command else Dropped


def way_text(route: Route, hop: Hop) -> str:
    """Where a hop is and how it is reached."""
    place = route.hops.index(hop)
    through = f", reached through {route.hops[place - 1].label}" if place else ""
    return f"{hop.address}{through}"


def _way(route: Route) -> list[str]:
    if len(route.hops) == 1:
        return []
    return ["the way is: " + ", ".join(hop.address for hop in route.hops)]


def _auth_failure(route: Route, said: str) -> AuthRefused:
    hop = _denying_hop(route, said)
    return auth_refused(route, hop, offered_keys(hop), _key_troubles(said))


def auth_refused(route: Route, hop: Hop, offered: list[str], troubles: list[str]) -> AuthRefused:
    """Says who was refused where, with which keys, and how to let them in.

    offered: none where none could be read; then those that were to be are named.
    """
    offered = offered or offered_keys(hop)
    keys = f"offered {', '.join(offered)}" if offered else "no key to offer"
    through = ["-o", f"ProxyJump={route.jump}"] if route.jump and hop is route.last else []
    copy = ["ssh-copy-id", *through, *hop.target.typed]
    advice = ["let this key in with:", "  " + shlex.join(copy)]
    if offered and all(each.endswith(f"({LOCKED})") for each in offered):
        advice = [
            "unlock it for this session (ssh-add FILE), or name a key without a passphrase in the"
            " ssh config (IdentityFile FILE)"
        ]
    if offered and all(each.endswith(f"({GONE})") for each in offered):
        advice = ["put the key file back, or name another in the ssh config (IdentityFile FILE)"]
    if not offered:
        advice = [
            "no key file of this account and no agent key is there; make one with:",
            "ssh-keygen -t ed25519",
        ]
    if len(offered) > 5:
        advice = ["so many keys make a server give up; name the right one in the ssh config:",
                  "IdentityFile FILE", "IdentitiesOnly yes"]  # fmt: skip
    return AuthRefused(
        f"{route.subject(hop)}: key refused for {hop.config.user} ({keys})", *troubles, *advice
    )


def _denying_hop(route: Route, said: str) -> Hop:
    """The first hop whose name the refusal holds; the jumps' own words come before the host's."""
    for match in _DENIED.finditer(said):
        for hop in route.hops:
            names = (hop.config.hostname, hop.target.name)
            if match[2] in names and match[1] in (None, hop.config.user):
                return hop
    return route.last


def _key_troubles(said: str) -> list[str]:
    """What ssh said of single keys: too open files, unusable ones."""
    lines = [line.strip() for line in said.splitlines()]
    return [line for line in lines if re.search(r"are too open|bad permissions|^Load key", line)][
        :4
    ]


def offered_keys(hop: Hop) -> list[str]:
    """Names of the keys ssh had to offer a hop: files it could read, then those of the agent."""
    agent = hop.config.agent
    files = []
    for path in hop.config.identity_files:
        name = os.path.basename(path)
        if not agent and not os.path.exists(path):
            name += f" ({GONE})"
        elif _locked(path):
            name += f" ({LOCKED})"
        files.append(name)
    return files + ([] if hop.config.identities_only else _agent_keys(agent))


def _locked(path: str) -> bool:
    """Whether the key file needs a passphrase, which nobody can be asked for here."""
    if not os.access(path, os.R_OK):
        return False
    done = _quiet(["ssh-keygen", "-y", "-P", "", "-f", path])
    return done is not None and done.returncode != 0 and b"passphrase" in done.stderr


def _agent_keys(agent: str | None) -> list[str]:
    if not agent:
        return []
    done = _quiet(["ssh-add", "-l"], SSH_AUTH_SOCK=agent)
    if done is None or done.returncode:
        return []
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return [
        f"{' '.join(line.split()[2:-1]) or line.split()[1]} (agent)"
        for line in lines
        if len(line.split()) > 2
    ]


def _quiet(argv: list[str], **env: str) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=5,
            env={**os.environ, **env},
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
