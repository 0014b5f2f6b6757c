"""The inventory's own commands: add a host with its key, list, remove."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

from runner import inventory, states
from runner.app.context import Context
from runner.carriers.host_keys import (
    HostKey,
    KnownKeys,
    key_algorithms,
    key_types,
    read_known,
    refusal,
    scan_key,
    trusted_keys,
)
from runner.carriers.ssh_config import Hop, Route, have_ssh, read_route
from runner.errors import Conflict, HostError, HostKeyError, NotFound, SpecError
from runner.fields import NAME_RULE, said, valid_name
from runner.model import Host

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}(?![A-Za-z0-9+/])")
Ask = Callable[[str], str]


def add(
    ctx: Context,
    name: str,
    target: str,
    jump: str | None,
    fingerprint: str | None,
    ask: Ask | None,
) -> Path:
    """Writes hosts/NAME.toml once the keys on the way are known, or accepted by someone.

    ask: puts a question to a person and returns what they typed; None where nobody is there.
    Raises SpecError, Conflict, HostError; then nothing was written.
    """
    path = ctx.project.root / "hosts" / f"{name}.toml"
    _check_name(name, path)
    given = None if fingerprint is None else _read_fingerprint(fingerprint)
    host = Host(name=name, ssh=target, jump=jump, source=path)
    try:
        keys = {} if target == "local" else _Keys(ctx, host, given, ask).collect()
    finally:
        ctx.report.done()
    lines = {"ssh": target, "jump": jump, **keys}
    text = "".join(f"{key} = {quoted(value)}\n" for key, value in lines.items() if value)
    path.parent.mkdir(exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise _in_the_way(path) from error
    with_key = " with the key" if "host_key" in keys else ""
    ctx.report.note(f"wrote hosts/{path.name}{with_key}; your known_hosts is untouched")
    ctx.report.note(f"whoever may use Docker on {name} is root there, and so is who holds your key")
    return path


def remove(ctx: Context, name: str) -> None:
    """Removes the host's file and nothing else. Raises NotFound."""
    host = inventory.find_host(ctx.hosts, name)
    if host.source is None:
        raise NotFound(f"{name} is always there and has no file to remove")
    live = [
        record.id
        for record in ctx.store.records()
        if record.host == name and record.run.get("state") != states.ENDED
    ]
    host.source.unlink()
    ctx.report.note(f"removed hosts/{host.source.name}; the worker on {name} is untouched")
    if live:
        ctx.report.note(f"runs that were last seen alive there go on: {', '.join(live[:5])}")


def quoted(text: str) -> str:
    """A text as TOML has it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _check_name(name: str, path: Path) -> None:
    if not valid_name(name):
        raise SpecError(f"{said(name)} is not a host's name; it has {NAME_RULE}")
    if name == "local":
        raise SpecError("local is this machine itself; give the host another name")
    if path.exists() or path.is_symlink():
        raise _in_the_way(path)


def _in_the_way(path: Path) -> Conflict:
    return Conflict(
        f"hosts/{path.name} is there already; it was not changed",
        "edit it, or remove it first:",
        f"  runner host remove {path.stem}",
    )


def _read_fingerprint(text: str) -> str:
    match = _FINGERPRINT.search(text)
    if match is None:
        raise SpecError(f"{said(text)} is not a fingerprint; it is of the form SHA256:6Zb9…")
    return match[0]


class _Keys:
    """Goes hop by hop to the host, so that each one's key is settled before the next is asked."""

    def __init__(self, ctx: Context, host: Host, given: str | None, ask: Ask | None) -> None:
        self._ctx = ctx
        self._host = host
        self._given = given
        self._ask = ask

    def collect(self) -> dict[str, str]:
        """What to pin: `jump_key` and `host_key`, where known_hosts do not know them."""
        if not have_ssh():
            raise HostError(
                f"{self._host.name}: without an ssh client its key cannot be looked at;"
                f" write hosts/{self._host.name}.toml by hand, with host_key"
            )
        route = read_route(self._host)
        self._width = max(len(hop.label) for hop in route.hops) + 2
        pins: dict[str, str] = {}
        for place, hop in enumerate(route.hops):
            key = self._settle(route, hop)
            if key is None:
                continue
            if place < len(route.hops) - 2:
                raise HostKeyError(
                    f"{hop.label}: the host key is not known; only the last jump's can be pinned",
                    f"shown     {key.shown}",
                    "log in there once with ssh, so that known_hosts has it",
                )
            pins["host_key" if hop is route.last else "jump_key"] = key.text
            route = _with_pin(route, place, key, f"hosts/{self._host.name}.toml")
        return {name: pins[name] for name in ("jump_key", "host_key") if name in pins}

    def _settle(self, route: Route, hop: Hop) -> HostKey | None:
        """The key to pin for a hop; None when known_hosts know it. Raises HostKeyError."""
        known = read_known(hop.config)
        trusted = trusted_keys(hop, known)
        if known.authorities and not trusted:
            self._note(hop, "known by a certificate authority (your known_hosts)")
            return None
        self._ctx.report.step(f"asking {hop.label} for its key")
        shown = scan_key(route, hop, key_algorithms(trusted))
        if shown is None and trusted:
            shown = scan_key(route, hop, key_algorithms(()))
        if shown is None:
            raise HostError(f"{hop.label}: it shows no key of a kind known here ({hop.address})")
        self._ctx.report.done()
        if trusted or _is_revoked(shown, known):
            refused = refusal(route, hop, shown, known)
            if refused is not None:
                raise refused
            if hop is route.last and self._given is not None:
                self._find(route, hop, shown, self._given)
            self._note(hop, "known (your known_hosts)")
            return None
        return self._accept(route, hop, shown)

    def _find(self, route: Route, hop: Hop, shown: HostKey, wanted: str) -> HostKey:
        """The hop's key with that fingerprint, which may be one of another type than it showed."""
        seen = [shown]
        for kind in key_types():
            if any(key.fingerprint == wanted for key in seen):
                break
            if kind != shown.type:
                other = scan_key(route, hop, key_algorithms([HostKey(kind, b"")]))
                seen += [other] if other is not None else []
        for key in seen:
            if key.fingerprint == wanted:
                return key
        raise HostKeyError(
            f"{hop.label}: its key is not the one you were told; nothing was written",
            f"expected  {wanted}",
            *[f"shown     {key.shown}" for key in seen],
            f"          by {hop.address}",
            "someone may stand in between; ask the machine's keeper, not the machine",
        )

    def _accept(self, route: Route, hop: Hop, shown: HostKey) -> HostKey:
        if hop is route.last and self._given is not None:
            key = self._find(route, hop, shown, self._given)
            self._note(hop, f"shows the key you were told, {key.shown}")
            return key
        self._note(hop, "not known; it shows")
        if self._ask is None:
            raise HostKeyError(
                f"{hop.label}: the host key is not known; nothing was written",
                f"shown     {shown.shown}",
                f"          by {hop.address}",
                "compare it with what the machine's keeper says. If it is the same:",
                *self._way_out(route, hop, shown),
            )
        indent = " " * (self._width + 2)
        for line in (
            f"{shown.type_name}  {shown.fingerprint}",
            "compare with what its keeper says, or at its own console:",
            f"  ssh-keygen -lf /etc/ssh/ssh_host_{shown.type_name.lower()}_key.pub",
        ):
            self._ctx.report.note(indent + line)
        answer = self._ask(
            f"Is it {hop.label}'s? Type yes, or paste the fingerprint you were given: "
        ).strip()
        if answer.lower() == "yes":
            return shown
        if _FINGERPRINT.search(answer):
            return self._find(route, hop, shown, _read_fingerprint(answer))
        raise HostKeyError(f"{hop.label}: its key was not accepted; nothing was written")

    def _way_out(self, route: Route, hop: Hop, shown: HostKey) -> list[str]:
        if hop is not route.last:
            return [
                "  " + shlex.join(["ssh", *hop.target.typed]),
                "(it asks, and your known_hosts has it from then on)",
            ]
        jump = ["--jump", self._host.jump] if self._host.jump else []
        words = ["runner", "host", "add", self._host.name, self._host.ssh or "", *jump]
        return ["  " + shlex.join([*words, "--fingerprint", shown.fingerprint])]

    def _note(self, hop: Hop, text: str) -> None:
        self._ctx.report.note(f"{hop.label:<{self._width}}{text}")


def _is_revoked(shown: HostKey, known: KnownKeys) -> bool:
    return any(item.key.blob == shown.blob for item in known.revoked)


def _with_pin(route: Route, place: int, key: HostKey, source: str) -> Route:
    """The way on which that hop must show `key`."""
    hops = list(route.hops)
    hops[place] = dataclasses.replace(hops[place], pinned=key.text, pinned_in=source)
    return dataclasses.replace(route, hops=tuple(hops))
