"""Which key a machine shows: fetched by a handshake of ssh's that ends before anyone logs in."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from runner.carriers.host_keys import (
    HostKey,
    key_algorithms,
    parse_key,
    read_known,
    refusal,
    trusted_keys,
)
from runner.carriers.private import private_folder
from runner.carriers.ssh_command import run_ssh, ssh_argv
from runner.carriers.ssh_config import Hop, Route
from runner.carriers.ssh_failures import is_host_key_trouble, ssh_failure
from runner.errors import HostKeyError, RunnerError

_SCAN_S = 45


def scan_key(route: Route, hop: Hop, algorithms: Sequence[str]) -> HostKey | None:
    """The key a hop shows, fetched through the hops before it, which are checked; None if none.

    A real handshake that ends before anyone logs in. ssh writes what it saw into a file of ours.
    Raises HostError when a hop before refuses us or does not answer.
    """
    way = Route(
        route.host, (*route.hops[: route.hops.index(hop)], Hop(hop.label, hop.target, hop.config))
    )
    with tempfile.TemporaryDirectory(dir=private_folder(), prefix="scan-") as folder:
        seen = Path(folder) / "known"
        options = [
            f"UserKnownHostsFile={seen}",
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=accept-new",
            "HashKnownHosts=no",
            "LogLevel=INFO",
            "PreferredAuthentications=none",
            "PubkeyAuthentication=no",
            f"HostKeyAlgorithms={','.join(algorithms)}",
        ]
        argv = ssh_argv(way, options=[f"-o{item}" for item in options], shared=False)
        done = run_ssh([*argv, "true"], _SCAN_S)
        text = seen.read_text() if seen.exists() else ""
    for line in text.splitlines():
        try:
            return parse_key(" ".join(line.split()[1:3]))
        except ValueError:
            continue
    if done is not None:
        _raise_for(way, done.stderr.decode("utf-8", "replace"))
    return None


def shown_key(route: Route, hop: Hop, trusted: Sequence[HostKey]) -> HostKey | None:
    """The key a hop shows, of a trusted kind if it has one; None for none of a kind known here."""
    shown = scan_key(route, hop, key_algorithms(trusted))
    if shown is None and trusted:
        shown = scan_key(route, hop, key_algorithms(()))
    return shown


def _raise_for(way: Route, said: str) -> None:
    """The error of a scan that brought no key. That the last hop has no key of the kinds asked for
    is none; and asking why a hop before it is refused asks fewer hops each time, so it ends.
    """
    if is_host_key_trouble(said):
        if len(way.hops) > 1 and "no matching host key type" not in said:
            raise explain_host_key(Route(way.host, way.hops[:-1], way.jump), said)
        return
    raise ssh_failure(way, said)


def explain_host_key(route: Route, said: str) -> RunnerError:
    """The error for a host key that ssh refused: asks every hop for its key, nearest first."""
    for hop in route.hops:
        known = read_known(hop.config)
        trusted = trusted_keys(hop, known)
        try:
            shown = shown_key(route, hop, trusted)
        except RunnerError as error:
            return error
        if shown is None:
            break
        refused = refusal(route, hop, shown, known)
        if refused is not None:
            return refused
    return HostKeyError(
        f"{route.host}: ssh refused the host key; nothing was sent", f"ssh said: {said}"
    )
