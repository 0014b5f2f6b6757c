"""What may stand at a place of a command line, as Click's commands say it in their help (pure).

A command is read for its arguments' metavars: `RUN [key=value …]` takes a run and then the words of
a fork, `[host=H]` one key. So a new command is completed without a word here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KEYS = "key"
"""`key=value` in a metavar: the words of a submit or a fork."""
_KINDS = {"RUN": "run", "DIR": "folder", "NAME": "name", "'CRON'": ""}
_OF_NAMES = {"run": "run", "job": "job", "script": "file"}
_OF_OPTIONS = {"--to": "folder", "--out": "file", "--project": "folder"}
_MORE = {"cancel": ("host",), "schedule add": ("overlap", "missed", "code")}
"""Keys that a command's metavar has no room for."""
_LISTS = {"--what": ("checkpoints", "logs", "work", "best", "last", "events")}


@dataclass(frozen=True)
class Option:
    """One option."""

    names: tuple[str, ...]
    about: str
    takes: bool = False
    """A value follows."""
    again: bool = False
    """It may be given several times."""
    kind: str = ""
    """What its value is, where names are known: `file`, `folder` …"""
    choices: tuple[str, ...] = ()
    several: bool = False
    """Choices may be joined by commas."""


@dataclass(frozen=True)
class Place:
    """One command: what it may be given."""

    path: str
    """As typed, without the program: `host add`; empty for the program itself."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Commands of a group, and what they do."""
    options: Sequence[Option] = ()
    before: tuple[str, ...] = ()
    """The kinds of the words that come first, in order."""
    rest: str = ""
    """The kind of all further words: `run`, or nothing."""
    keys: tuple[str, ...] = ()
    """Keys that it takes; KEYS: those of a job."""
    choices: tuple[str, ...] = ()
    """What its `choice` word is one of."""
    command: bool = False
    """It takes a command after `--`."""


def place_of(command: Any, path: str) -> Place:
    """What a Click command may be given. (Any: this module knows no Click.)"""
    options = [_option(each) for each in command.params if _is_option(each)]
    options.append(Option(("--help",), "Show this message and exit."))
    if hasattr(command, "commands"):
        inner = {
            name: each.get_short_help_str(70)
            for name, each in command.commands.items()
            if not each.hidden
        }
        return Place(path, inner, options)
    before: list[str] = []
    keys: list[str] = []
    choices: tuple[str, ...] = ()
    rest = ""
    takes_command = False
    for argument in command.params:
        if hasattr(argument, "is_flag"):
            continue
        if argument.metavar is None:
            listed = getattr(argument.type, "choices", None)
            choices = tuple(map(str, listed)) if listed else choices
            before.append("choice" if listed else _kind(argument.name, path))
            continue
        takes_command = takes_command or "-- CMD" in argument.metavar
        for word in argument.metavar.partition("-- CMD")[0].split():
            bare = word.strip("[]")
            if key := re.match(r"([a-z_]+)=", bare):
                keys.append(key[1])
            elif bare == "RUN…":
                rest = "run"
            elif bare in _KINDS and word != "['CRON']":
                before.append(_kind(_KINDS[bare], path))
    return Place(
        path=path,
        options=options,
        before=tuple(before),
        rest=rest,
        keys=(*keys, *_MORE.get(path, ())),
        choices=choices,
        command=takes_command,
    )


def _kind(name: str, path: str) -> str:
    if name == "name":
        return {"host": "host", "schedule": "schedule"}.get(path.split()[0], "") * (
            path.split()[-1] != "add"
        )
    return _OF_NAMES.get(name, name if name in _KINDS.values() else "")


def _is_option(parameter: Any) -> bool:
    return hasattr(parameter, "is_flag") and not parameter.hidden


def _option(option: Any) -> Option:
    long = [name for name in option.opts if name.startswith("--")]
    about = option.help or ""
    return Option(
        names=(*option.opts, *option.secondary_opts),
        about=about,
        takes=not option.is_flag and not option.count,
        again=option.multiple,
        kind=next((_OF_OPTIONS[name] for name in long if name in _OF_OPTIONS), ""),
        choices=next(
            (_LISTS[name] for name in long if name in _LISTS),
            tuple(map(str, getattr(option.type, "choices", None) or ())),
        ),
        several=any(name in _LISTS for name in long),
    )
