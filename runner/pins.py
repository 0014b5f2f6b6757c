"""One pinned key in a host's file, written there without touching anything else of it.

The file is its owner's: comments, order, quotes and line ends stay byte for byte. A line that only
looks like the key's, in a table or within a long text, is told apart by reading the result: nothing
but that key may differ.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

from runner.errors import Conflict, SpecError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_VALUE = r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_AFTER = ("jump", "ssh")
"""A new line goes below the last of these that there is."""


def with_pin(text: str, name: str, value: str) -> str | None:
    """`text`, a TOML file's, with the top-level `name` set to `value`; None when no line of it can
    be changed or added so.
    """
    before = tomllib.loads(text)
    wanted = {**before, name: value}
    if before == wanted:
        return text
    shown = json.dumps(value)
    if name in before:
        found = re.finditer(rf"(?m)^([ \t]*{_key(name)}[ \t]*=[ \t]*){_VALUE}", text)
        tried = (text[: match.end(1)] + shown + text[match.end() :] for match in found)
    else:
        tried = (text[:place] + line for place, line in _lines_to_add(text, f"{name} = {shown}"))
    return next((new for new in tried if _reads_as(new, wanted)), None)


def write_pin(path: Path, name: str, value: str) -> None:
    """The same in a file, at once or not at all. Raises SpecError, Conflict."""
    target = path.resolve()
    shown = f"hosts/{path.name}"
    try:
        before = target.read_bytes()
        mode = stat.S_IMODE(target.stat().st_mode)
        new = with_pin(before.decode("utf-8"), name, value)
    except (OSError, ValueError) as error:
        raise SpecError(f"{shown} cannot be read: {error}") from error
    if new is None:
        raise SpecError(
            f"{shown}: the line of {name} cannot be found; write it by hand:",
            f"  {name} = {json.dumps(value)}",
        )
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(new.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        if target.read_bytes() != before:
            raise Conflict(f"{shown} was changed meanwhile; nothing was written")
        os.replace(part, target)
    except OSError as error:
        raise SpecError(f"{shown} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _key(name: str) -> str:
    return rf"(?:{name}|\"{name}\"|'{name}')"


def _lines_to_add(text: str, line: str) -> list[tuple[int, str]]:
    """Where the line may be added, the best place first, and what the text is from there on."""
    end = "\r\n" if "\r\n" in text else "\n"
    places = [
        match.end()
        for name in _AFTER
        for match in re.finditer(rf"(?m)^[ \t]*{_key(name)}[ \t]*=[^\n]*(?:\n|\Z)", text)
    ]
    added: list[tuple[int, str]] = []
    for place in (*places, 0):
        lead = end if place and not text[:place].endswith("\n") else ""
        added.append((place, f"{lead}{line}{end}{text[place:]}"))
    return added


def _reads_as(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return tomllib.loads(text) == wanted
    except tomllib.TOMLDecodeError:
        return False
