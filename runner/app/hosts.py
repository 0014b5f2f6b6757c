"""The inventory's own commands: add a host with its key, list, remove."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from runner import inventory, states
from runner.app.context import Context
from runner.app.keys import (
    Ask,
    all_keys,
    ask_about,
    find_key,
    indent,
    is_revoked,
    look,
    note,
    read_fingerprint,
    with_pinned,
)
from runner.carriers.host_keys import HostKey, read_known, refusal, trusted_keys
from runner.carriers.ssh_config import Hop, Route, have_ssh, read_route
from runner.errors import Conflict, HostError, HostKeyError, NotFound, SpecError
from runner.fields import NAME_RULE, said, valid_name
from runner.model import Host


def add(
    ctx: Context,
    name: str,
    target: str,
    jump: str | None,
    fingerprints: Sequence[str] | None,
    ask: Ask | None,
) -> Path:
    """Writes hosts/NAME.toml once the keys on the way are known, or accepted by someone.

    fingerprints: each accepts the key of the hop that has it; the host must have one of them.
    ask: puts a question to a person and returns what they typed; None where nobody is there.
    Raises SpecError, Conflict, HostError; then nothing was written.
    """
    path = ctx.project.root / "hosts" / f"{name}.toml"
    _check_name(name, path)
    given = [read_fingerprint(each) for each in fingerprints or ()]
    if jump == "":
        raise SpecError("--jump is empty; write NAME, USER@NAME or ssh://USER@NAME:PORT")
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
    if name in ctx.broken:  # a file that is wrong is one to be removed as well
        source: Path | None = ctx.project.root / "hosts" / f"{name}.toml"
    else:
        source = inventory.find_host(ctx.hosts, name).source
    if source is None:
        raise NotFound(f"{name} is always there and has no file to remove")
    live = [
        record.id
        for record in ctx.store.records()
        if record.host == name and record.run.get("state") != states.ENDED
    ]
    source.unlink()
    ctx.report.note(f"removed hosts/{source.name}; the worker on {name} is untouched")
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


class _Keys:
    """Goes hop by hop to the host, so that each one's key is settled before the next is asked."""

    def __init__(self, ctx: Context, host: Host, given: Sequence[str], ask: Ask | None) -> None:
        self._ctx = ctx
        self._host = host
        self._given = given
        self._left = list(dict.fromkeys(given))
        """Those that no hop has shown so far."""
        self._ask = ask

    def collect(self) -> dict[str, str]:
        """What to pin: `jump_key` and `host_key`, where known_hosts do not know them."""
        if not have_ssh():
            raise HostError(
                f"{self._host.name}: without an ssh client its key cannot be looked at;"
                f" write hosts/{self._host.name}.toml by hand, with host_key"
            )
        route = read_route(self._host)
        pins: dict[str, str] = {}
        for place in range(len(route.hops)):
            hop = route.hops[place]
            key = self._settle(route, hop)
            if key is None:
                continue
            pin = route.pin_name(hop)
            assert pin is not None  # else it was refused
            pins[pin] = key.text
            route = with_pinned(route, hop, key, f"hosts/{self._host.name}.toml")
        return {name: pins[name] for name in ("jump_key", "host_key") if name in pins}

    def _settle(self, route: Route, hop: Hop) -> HostKey | None:
        """The key to pin for a hop; None when known_hosts know it. Raises HostKeyError."""
        known = read_known(hop.config)
        trusted = trusted_keys(hop, known)
        if known.authorities and not trusted:
            note(
                self._ctx.report, route, hop, "known by a certificate authority (your known_hosts)"
            )
            if hop is route.last:
                self._left.clear()
            return None
        shown = look(self._ctx.report, route, hop, trusted)
        if trusted or is_revoked(shown, known):
            refused = refusal(route, hop, shown, known)
            if refused is not None:
                raise refused
            if hop is route.last or len(self._left) > 1:  # a single one is the host's
                self._told(route, hop, shown)
            note(self._ctx.report, route, hop, "known (your known_hosts)")
            return None
        if route.pin_name(hop) is None:
            raise HostKeyError(
                f"{hop.label}: the host key is not known; only the last jump's can be pinned",
                f"shown     {shown.shown}",
                "log in there once with ssh, so that known_hosts has it:",
                "  " + shlex.join(["ssh", *hop.target.typed]),
            )
        return self._accept(route, hop, shown)

    def _told(self, route: Route, hop: Hop, shown: HostKey) -> HostKey | None:
        """The hop's key that was told of, if any; the host's must be. Raises HostKeyError."""
        if shown.fingerprint in self._given:  # also once more: machines may share a key
            key = shown
        elif not self._left:
            return None
        elif hop is route.last:
            key = find_key(route, hop, shown, *self._left)
        else:
            key = all_keys(route, hop, shown, *self._left)[-1]
            if key.fingerprint not in self._left:
                return None
        self._left = [each for each in self._left if each != key.fingerprint]
        if hop is route.last and self._left:
            raise HostKeyError(
                f"{self._host.name}: no machine on the way has the key {self._left[0]};"
                " nothing was written"
            )
        return key

    def _accept(self, route: Route, hop: Hop, shown: HostKey) -> HostKey:
        told = self._told(route, hop, shown)
        if told is not None:
            note(self._ctx.report, route, hop, f"shows the key you were told, {told.shown}")
            return told
        note(self._ctx.report, route, hop, "not known; it shows")
        if self._ask is None:
            raise HostKeyError(
                f"{hop.label}: the host key is not known; nothing was written",
                f"shown     {shown.shown}",
                f"          by {hop.address}",
                "compare it with what the machine's keeper says. If it is the same:",
                *self._way_out(shown),
            )
        self._ctx.report.note(f"{indent(route)}{shown.type_name}  {shown.fingerprint}")
        return ask_about(self._ctx.report, self._ask, route, hop, shown)

    def _way_out(self, shown: HostKey) -> list[str]:
        jump = ["--jump", self._host.jump] if self._host.jump else []
        words = ["runner", "host", "add", self._host.name, self._host.ssh or "", *jump]
        for told in dict.fromkeys([*self._given, shown.fingerprint]):
            words += ["--fingerprint", told]
        return ["  " + shlex.join(words)]
