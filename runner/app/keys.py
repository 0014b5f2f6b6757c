"""Host keys before a person: looked at, shown, compared with what they were told, accepted."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

from runner.app.results import Report
from runner.carriers.host_keys import (
    HostKey,
    KnownKeys,
    key_algorithms,
    key_types,
)
from runner.carriers.key_scan import scan_key, shown_key
from runner.carriers.ssh_config import Hop, Route
from runner.errors import HostError, HostKeyError, SpecError
from runner.fields import said

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}(?![A-Za-z0-9+/])")
Ask = Callable[[str], str]
"""Puts a question to a person and returns what they typed."""


def read_fingerprint(text: str) -> str:
    """The fingerprint in what someone gave. Raises SpecError."""
    match = _FINGERPRINT.search(text)
    if match is None:
        raise SpecError(f"{said(text)} is not a fingerprint; it is of the form SHA256:6Zb9…")
    return match[0]


def look(report: Report, route: Route, hop: Hop, trusted: Sequence[HostKey]) -> HostKey:
    """The key a hop shows, of a trusted kind if it has one. Raises HostError."""
    report.step(f"asking {hop.label} for its key")
    shown = shown_key(route, hop, trusted)
    if shown is None:
        raise HostError(f"{hop.label}: it shows no key of a kind known here ({hop.address})")
    report.done()
    return shown


def find_key(route: Route, hop: Hop, shown: HostKey, *wanted: str) -> HostKey:
    """The hop's key with one of these fingerprints, which may be of another type than it showed.

    Raises HostKeyError.
    """
    seen = all_keys(route, hop, shown, *wanted)
    if seen[-1].fingerprint in wanted:
        return seen[-1]
    raise HostKeyError(
        f"{hop.label}: its key is not the one you were told; nothing was written",
        *[f"expected  {each}" for each in wanted],
        *[f"shown     {key.shown}" for key in seen],
        f"          by {hop.address}",
        "someone may stand in between; ask the machine's keeper, not the machine",
    )


def all_keys(route: Route, hop: Hop, shown: HostKey, *wanted: str) -> list[HostKey]:
    """The keys of a hop, one of each type, until one that is wanted, which is the last then."""
    seen = [shown]
    for kind in key_types():
        if seen[-1].fingerprint in wanted:
            break
        if kind != shown.type:
            other = scan_key(route, hop, key_algorithms([HostKey(kind, b"")]))
            seen += [other] if other is not None else []
    return seen


def ask_about(report: Report, ask: Ask, route: Route, hop: Hop, shown: HostKey) -> HostKey:
    """The hop's key once a person said that it is; shown before. Raises HostKeyError."""
    for line in (
        "compare with what its keeper says, or at its own console:",
        f"  ssh-keygen -lf /etc/ssh/ssh_host_{shown.type_name.lower()}_key.pub",
    ):
        report.note(indent(route) + line)
    question = f"Is it {hop.label}'s? Type yes, or paste the fingerprint you were given: "
    answer = ask(question).strip()
    if answer.lower() == "yes":
        return shown
    if _FINGERPRINT.search(answer):
        return find_key(route, hop, shown, read_fingerprint(answer))
    raise HostKeyError(f"{hop.label}: its key was not accepted; nothing was written")


def note(report: Report, route: Route, hop: Hop, text: str) -> None:
    """One line about a hop, under each other for all of the way."""
    report.note(f"{hop.label:<{_width(route)}}{text}")


def indent(route: Route) -> str:
    """What stands before further lines about a hop."""
    return " " * (_width(route) + 2)


def _width(route: Route) -> int:
    return max(len(hop.label) for hop in route.hops) + 2


def is_revoked(shown: HostKey, known: KnownKeys) -> bool:
    """Whether known_hosts say that the key must not be used."""
    return any(item.key.blob == shown.blob for item in known.revoked)


def with_pinned(route: Route, hop: Hop, key: HostKey, source: str) -> Route:
    """The way on which that hop must show `key`."""
    hops = list(route.hops)
    hops[hops.index(hop)] = dataclasses.replace(hop, pinned=key.text, pinned_in=source)
    return dataclasses.replace(route, hops=tuple(hops))
