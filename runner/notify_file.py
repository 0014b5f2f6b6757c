"""How the operator wants to hear of runs: `~/.config/runner/notify.toml`, never a project's file.

    on = ["ended", "stuck", "missed", "disk"]      # or "failed": ends that were not good, alone

    [webhook]
    url_file = "slack-url"                         # or url = "https://…"
    format = "slack"                               # json, slack, ntfy or text
    [webhook.headers]
    Authorization = { file = "token" }             # or a text

    [command]
    argv = ["/home/me/bin/tell", "me"]             # on the worker; the message is on its stdin

    [heartbeat]
    url = "https://hc-ping.com/KEY/{name}?create=1"
    every = "5m"                                   # without it only firings of schedules are told

Files are named from its own folder. It is checked whenever it is read, every mistake at once. Where
it holds a secret (an address is one) nobody else may read it, nor the files it names.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runner import messages
from runner.errors import SpecError
from runner.fields import Fields, near, said
from runner.files import read_regular, write_whole

MOST_BYTES = 8192
"""Of an address, or of a header's value."""
MOST_HEADERS = 20
LEAST_EVERY_S, MOST_EVERY_S = 60.0, 86_400.0
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_OURS = ("content-length", "content-type", "host", "idempotency-key", "transfer-encoding")
_CLIENT = re.compile(r"c-[0-9a-f]{8,40}")


@dataclass(frozen=True)
class Settings:
    """What the file says, its secrets filled in."""

    path: Path
    body: Mapping[str, Any] = field(repr=False)
    """As `runner.messages` describes it."""


def path_of() -> Path:
    """Where the file is, or would be."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder) / "runner" / "notify.toml"


def read_settings(zone: str | None = None) -> Settings | None:
    """What the operator wants; None without a file. zone: in which times are told.

    Raises SpecError.
    """
    path = path_of()
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}") from error
    reader = _Reader(path, _table(path))
    body = reader.read()
    problem = _open_to(found, reads=reader.has_secret)
    if problem:
        raise SpecError(f"{path}: {problem}", f"chmod 600 {path}")
    return Settings(path, {**body, "zone": zone})


def _table(path: Path) -> dict[str, Any]:
    from runner.inventory import read_toml

    try:
        return read_toml(path)
    except SpecError as error:
        text = error.message.removeprefix(f"{path.parent.name}/{path.name}: ")
        raise SpecError(f"{path}: {text}") from error


def _open_to(found: os.stat_result, *, reads: bool) -> str | None:
    """Why a file is not the account's alone, where it must be."""
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (os.getuid(), 0):
        return "belongs to another user"
    if mode & 0o022:
        return f"others may write it (mode {mode:04o})"
    if reads and mode & 0o077:
        return f"others may read it (mode {mode:04o}), and it holds a secret"
    return None


class _Reader:
    """Reads the tables; what is wrong is gathered by `Fields`."""

    def __init__(self, path: Path, table: Mapping[str, Any]) -> None:
        self._path = path
        self._table = table
        self._fields = Fields(table, where=str(path))
        self.has_secret = False

    def read(self) -> dict[str, Any]:
        """The settings. Raises SpecError with every mistake."""
        fields = self._fields
        on = self._on()
        webhook = self._webhook(fields.table("webhook")) if "webhook" in fields else None
        command = self._command(fields.table("command")) if "command" in fields else None
        heartbeat = self._heartbeat(fields.table("heartbeat")) if "heartbeat" in fields else None
        if not any(name in fields for name in ("webhook", "command", "heartbeat")):
            fields.problem("webhook", "is missing, as are command and heartbeat: nothing would go")
        fields.finish()
        return {"on": on, "webhook": webhook, "command": command, "heartbeat": heartbeat}

    def _on(self) -> list[str]:
        value = self._fields.anything("on", list(messages.DEFAULT_ON))
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            self._fields.problem("on", f"is {said(value)}; it must be a list of texts")
            return []
        for each in value:
            if each not in messages.KINDS:
                close = near(each, messages.KINDS)
                hint = f" (did you mean {close!r}?)" if close else ""
                text = f"has {said(each)}; there are {', '.join(messages.KINDS)}{hint}"
                self._fields.problem("on", text)
        return list(dict.fromkeys(value))

    def _webhook(self, fields: Fields) -> dict[str, Any]:
        url = self._address(fields)
        form = fields.one_of("format", "json", messages.FORMATS)
        headers = self._headers(fields.table("headers")) if "headers" in fields else {}
        return {"url": url, "format": form, "headers": headers}

    def _command(self, fields: Fields) -> dict[str, Any]:
        argv = fields.texts("argv")
        if argv is None and "argv" not in fields:
            fields.problem("argv", 'is missing; it is a list such as ["/home/me/bin/tell"]')
        return {"argv": list(argv or ())}

    def _heartbeat(self, fields: Fields) -> dict[str, Any]:
        url = self._address(fields)
        every_s = fields.duration("every", 0.0) or None
        if every_s is not None and not LEAST_EVERY_S <= every_s <= MOST_EVERY_S:
            fields.problem("every", "must be between 1m and 1d")
        return {"url": url, "every_s": every_s}

    def _address(self, fields: Fields) -> str:
        if "url" in fields and "url_file" in fields:
            fields.anything("url_file", None)
            fields.anything("url", None)
            fields.problem("url", "is given twice, as url_file too")
            return ""
        key = "url_file" if "url_file" in fields else "url"
        value = fields.anything(key, None)
        if value is None:
            fields.problem("url", "is missing; so is url_file")
            return ""
        if not isinstance(value, str):
            fields.problem(key, "must be a text")
            return ""
        if key == "url_file":
            value = self._content(fields, key, value)
            if value is None:
                return ""
        else:
            self.has_secret = True
        problem = _wrong_address(value)
        if problem:
            # the address itself is not shown: it is a secret
            fields.problem(key, problem)
        return value

    def _headers(self, fields: Fields) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in fields.items():
            if _HEADER.fullmatch(name) is None:
                fields.problem(name, "cannot be a header's name")
                continue
            if name.lower() in _OURS:
                fields.problem(name, "is set by the runner")
                continue
            text: str | None
            if (
                isinstance(value, dict)
                and set(value) == {"file"}
                and isinstance(value["file"], str)
            ):
                text = self._content(fields, name, value["file"])
            elif isinstance(value, str):
                text, self.has_secret = value, True
            else:
                fields.problem(name, 'must be a text, or { file = "…" }')
                continue
            if text is None:
                continue
            if not text or not all(char.isprintable() and ord(char) < 256 for char in text):
                fields.problem(name, "has a value that no header can have")
            found[name] = text
        if len(found) > MOST_HEADERS:
            fields.problem("headers", f"are more than {MOST_HEADERS}")
        return found

    def _content(self, fields: Fields, key: str, name: str) -> str | None:
        """What a file that is named holds, without the end of its line."""
        file = self._path.parent / name
        try:
            file = self._path.parent / Path(name).expanduser()
            found = file.stat()
            problem = None if stat.S_ISDIR(found.st_mode) else _open_to(found, reads=True)
            if problem:
                fields.problem(key, f"is {file}: {problem}; chmod 600 {file}")
                return None
            data = read_regular(file)
            if len(data) > MOST_BYTES:
                fields.problem(key, f"is {file}, which has over {MOST_BYTES} bytes")
                return None
            text = data.decode("utf-8").strip()
        except OSError as error:
            fields.problem(key, f"is {file}: {error.strerror or error}")
            return None
        except UnicodeDecodeError:
            fields.problem(key, f"is {file}, which is not UTF-8")
            return None
        except (RuntimeError, ValueError) as error:  # ~ of nobody, a NUL
            fields.problem(key, f"is {said(name)}, which is no file's name: {error}")
            return None
        if not text:
            fields.problem(key, f"is {file}, which is empty")
            return None
        return text


def _wrong_address(url: str) -> str | None:
    """What is wrong with an address, without the address."""
    if len(url) > MOST_BYTES or not url.isascii() or not url.isprintable() or " " in url:
        return "is no address: it has blanks or other signs that none has"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no address"
    if parts.scheme not in ("http", "https"):
        return "must begin with https:// or http://"
    if not host:
        return "names no host"
    if parts.username is not None or parts.password is not None:
        return "has a user or password in it; put them into [webhook.headers] as Authorization"
    return None


def client_file() -> Path:
    """Where the random name of this account on this machine is kept."""
    folder = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(folder) / "runner" / "client"


def client_name(*, make: bool) -> str | None:
    """The name by which workers tell this operator from others; None when it has none.

    make: draw one then. Raises SpecError.
    """
    path = client_file()
    try:
        text = read_regular(path).decode("ascii", "replace").strip()
    except OSError:
        text = ""
    if _CLIENT.fullmatch(text):
        return text
    if not make:
        return None
    text = f"c-{secrets.token_hex(8)}"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, f"{text}\n".encode("ascii"), durable=True)
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}") from error
    return text
