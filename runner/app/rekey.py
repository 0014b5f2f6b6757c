"""The key of a machine that was installed anew: looked at, accepted by someone, pinned."""

from __future__ import annotations

import dataclasses
import shlex

from runner.app import keys
from runner.app.context import Context
from runner.app.keys import Ask
from runner.carriers.host_keys import (
    HostKey,
    KnownKeys,
    contradicting,
    from_known_hosts,
    parse_key,
    read_known,
    refusal,
    trusted_keys,
)
from runner.carriers.ssh_config import Hop, Route, have_ssh, read_route
from runner.carriers.ssh_failures import way_text
from runner.errors import HostError, HostKeyError, SpecError
from runner.model import Host
from runner.pins import write_pin


@dataclasses.dataclass(frozen=True)
class NewKey:
    """A pin that was written."""

    name: str
    """`host_key` or `jump_key`."""
    old: str | None
    """Fingerprints."""
    new: str


def rekey(ctx: Context, name: str, fingerprint: str | None, ask: Ask | None) -> list[NewKey]:
    """The pins that changed in hosts/NAME.toml, once someone accepted the keys that are shown.

    ask: None where nobody is there; then only the key with `fingerprint` is accepted. Goes the way
    hop by hop, so it finds which one changed. Raises SpecError, NotFound, HostError.
    """
    host = ctx.host(name)
    given = None if fingerprint is None else keys.read_fingerprint(fingerprint)
    if host.source is None or host.ssh in (None, "local"):
        raise SpecError(f"{name} is this machine itself and shows no key")
    if not have_ssh():
        raise HostError(f"{name}: without an ssh client its key cannot be looked at")
    try:
        return _Rekey(ctx, host, given, ask).go()
    finally:
        ctx.report.done()


class _Rekey:
    """Goes hop by hop to the host."""

    def __init__(self, ctx: Context, host: Host, given: str | None, ask: Ask | None) -> None:
        self._ctx = ctx
        self._host = host
        self._given = given
        self._ask = ask

    def go(self) -> list[NewKey]:
        """What was pinned anew."""
        route = read_route(self._host)
        made: list[NewKey] = []
        for place in range(len(route.hops)):
            hop = route.hops[place]
            known = read_known(hop.config)
            old, new = self._settle(route, hop, known)
            if new is None or new == old:
                continue
            name = route.pin_name(hop)
            assert self._host.source is not None and name is not None
            write_pin(self._host.source, name, new.text)
            made.append(NewKey(name, old.fingerprint if old else None, new.fingerprint))
            self._ctx.report.note(
                f"wrote {name} in hosts/{self._host.source.name}; your known_hosts is untouched"
            )
            route = keys.with_pinned(route, hop, new, f"hosts/{self._host.source.name}")
            self._check_known_hosts(route, route.hops[place], known, new, written=True)
        return made

    def _settle(
        self, route: Route, hop: Hop, known: KnownKeys
    ) -> tuple[HostKey | None, HostKey | None]:
        """(the key that was pinned, the key to pin; None for no change). Raises HostKeyError."""
        trusted = trusted_keys(hop, known)
        if known.authorities and not trusted:
            self._note(route, hop, "known by a certificate authority (your known_hosts)")
            return None, None
        shown = keys.look(self._ctx.report, route, hop, trusted)
        if keys.is_revoked(shown, known):
            raise refusal(route, hop, shown, known) or AssertionError
        pinned = parse_key(hop.pinned) if hop.pinned is not None else None
        if shown in trusted or (pinned is None and trusted):
            self._check_known_hosts(route, hop, known, shown, written=False)
            if hop is route.last and self._given is not None:
                keys.find_key(route, hop, shown, self._given)
            self._note(route, hop, f"shows the key it is known by, {shown.shown}")
            return pinned, None
        if route.pin_name(hop) is None:
            raise refusal(route, hop, shown, known) or AssertionError
        return pinned, self._accept(route, hop, shown, pinned)

    def _accept(self, route: Route, hop: Hop, shown: HostKey, old: HostKey | None) -> HostKey:
        given, self._given = self._given, None  # it is for one key
        if given is not None:
            key = keys.find_key(route, hop, shown, given)
            self._note(route, hop, f"shows the key you were told, {key.shown}")
            return key
        told = [f"was       {old.shown}", f"          from {hop.pinned_in}"] if old else []
        told += [f"shown     {shown.shown}", f"          by {way_text(route, hop)}"]
        what = "the host key changed" if old else "the host key is not known"
        if self._ask is None:
            command = ["runner", "host", "rekey", self._host.name, "--fingerprint"]
            raise HostKeyError(
                f"{hop.label}: {what}; nothing was written",
                *told,
                "compare it with what the machine's keeper says. If it is the same:",
                "  " + shlex.join([*command, shown.fingerprint]),
            )
        self._note(route, hop, what)
        for line in told:
            self._ctx.report.note(keys.indent(route) + line)
        return keys.ask_about(self._ctx.report, self._ask, route, hop, shown)

    def _check_known_hosts(
        self, route: Route, hop: Hop, known: KnownKeys, key: HostKey, *, written: bool
    ) -> None:
        """Refuses what only the keeper of known_hosts may change. Raises HostKeyError."""
        against = contradicting(key, known)
        if not against:
            return
        done = f"hosts/{self._host.name}.toml has the new one" if written else "nothing was written"
        again = [] if written else [f"  {shlex.join(['runner', 'host', 'rekey', self._host.name])}"]
        raise HostKeyError(
            f"{hop.label}: your known_hosts has another key; {done}",
            *from_known_hosts(against),
            f"shown     {key.shown}",
            f"          by {way_text(route, hop)}",
            "known_hosts is yours and is not written here. Ask the machine's keeper, and if the",
            "key is the machine's, take the old one out:",
            *[f"  {item.removal}" for item in against],
            *again,
        )

    def _note(self, route: Route, hop: Hop, text: str) -> None:
        keys.note(self._ctx.report, route, hop, text)
