"""How a run's parameters become words of its program's command line: pure, on both sides.

A spec's `pass` is {"how": "flags" or "hydra", "flags": {parameter: spelling}}; a spec without it
passes them by $RUNNER_PARAMS alone, which is there in any case. For flags a spelling is

    --name              the words --name VALUE; of true or false: --name when it is true
    --name/--no-name    of true or false: one of both (/--no-name: a word for false alone)
    --name=             one word --name=VALUE, also of true or false
    --name*             of a list: --name A --name B (without *: --name A B)
    1, 2 …              a word without a name, the first, second … after the command's own

and `--PARAMETER` where none is given. For hydra it is the key of an override, say `+db.user`, the
parameter's name where none is given. Behind either may stand `?` (left out while the value is an
empty text or list) or `!` (needed: there is no run while it is empty).
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

FLAGS, HYDRA = "flags", "hydra"
_FLAG = re.compile(r"--?[A-Za-z0-9_][A-Za-z0-9_.:-]*")
_KEY = re.compile(r"(\+\+?)?[A-Za-z0-9_][A-Za-z0-9_./@:-]*")
_PLACE = re.compile(r"[1-9][0-9]?")
_HYDRA_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_/.:@+-]*")
_HYDRA_OTHERS = frozenset({"true", "false", "null", "inf", "nan"})
"""Words that would not be read as texts."""


class Spelling(NamedTuple):
    """How one parameter is written."""

    name: str = ""
    """`--name`, the word for true, or an override's key."""
    other: Optional[str] = None
    """The word for false; None: it is none of a pair."""
    joined: bool = False
    repeated: bool = False
    place: int = 0
    """Of a word without a name; 0: it has one."""
    optional: bool = False
    needed: bool = False


def read_spelling(text: str, how: str) -> Optional[Spelling]:
    """What a spelling means, or None for one that is none."""
    mark = text[-1:] if text[-1:] in ("?", "!") else ""
    body = text[: len(text) - len(mark)]
    marks: Dict[str, Any] = {"optional": mark == "?", "needed": mark == "!"}
    if how == HYDRA:
        return Spelling(body, **marks) if _KEY.fullmatch(body) else None
    if _PLACE.fullmatch(body):
        return Spelling(place=int(body), **marks)
    if "/" in body:
        first, second = body.split("/", 1)
        words = [word for word in (first, second) if word]
        good = words and all(_FLAG.fullmatch(word.partition("=")[0]) for word in words)
        return Spelling(first, second, **marks) if good and not mark else None
    joined, repeated = body.endswith("="), body.endswith("*")
    name = body[:-1] if joined or repeated else body
    if not _FLAG.fullmatch(name):
        return None
    return Spelling(name, None, joined, repeated, **marks)


def spelling_of(name: str, how: str, flags: Mapping[str, str]) -> Spelling:
    """How a parameter is written; a spelling that is none is as good as none."""
    usual = name if how == HYDRA else "--" + name
    return read_spelling(str(flags.get(name, usual)), how) or Spelling(usual)


def passed_words(passed: Any, params: Mapping[str, Any]) -> List[str]:
    """The words behind a command that say these parameters. passed: a spec's `pass`."""
    if not isinstance(passed, dict) or passed.get("how") not in (FLAGS, HYDRA):
        return []
    how, flags = passed["how"], passed.get("flags") or {}
    placed: List[Tuple[int, List[str]]] = []
    named: List[str] = []
    # by name, as records are: the same words on both sides
    for name, value in sorted(params.items()):
        spelling = spelling_of(name, how, flags)
        if spelling.optional and is_empty(value):
            continue
        if how == HYDRA:
            named.append("%s=%s" % (spelling.name, hydra_value(value)))
        elif spelling.place:
            values = value if isinstance(value, list) else [value]
            placed.append((spelling.place, [_text(each) for each in values]))
        else:
            named += _flag_words(spelling, value)
    in_place = [word for _, words in sorted(placed, key=lambda item: item[0]) for word in words]
    return in_place + named


def is_empty(value: Any) -> bool:
    """Whether a value is nothing that could be said."""
    return value is None or (isinstance(value, (str, list)) and not value)


def _flag_words(spelling: Spelling, value: Any) -> List[str]:
    if isinstance(value, bool) and not spelling.joined:
        word = spelling.name if value else spelling.other
        return [word] if word else []
    if isinstance(value, list):
        if spelling.repeated:
            return [word for each in value for word in _one(spelling, each)]
        return [spelling.name, *(_text(each) for each in value)]
    return _one(spelling, value)


def _one(spelling: Spelling, value: Any) -> List[str]:
    text = _text(value)
    # as a word of its own it would be taken for the next option
    if spelling.joined or text.startswith("-"):
        return ["%s=%s" % (spelling.name, text)]
    return [spelling.name, text]


def _text(value: Any) -> str:
    """A value as a program reads it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def hydra_value(value: Any) -> str:
    """A value in the grammar of Hydra's overrides; `${…}` in a text stays what it is to Hydra."""
    if isinstance(value, str):
        if _HYDRA_PLAIN.fullmatch(value) and value.lower() not in _HYDRA_OTHERS:
            return value
        # backslashes count only before a quote
        inner = re.sub(r"(\\*)'", lambda match: match[1] * 2 + "\\'", value)
        return "'%s'" % re.sub(r"(\\+)\Z", lambda match: match[1] * 2, inner)
    if isinstance(value, list):
        return "[%s]" % ",".join(map(hydra_value, value))
    if isinstance(value, dict):
        return "{%s}" % ",".join("%s:%s" % (key, hydra_value(each)) for key, each in value.items())
    return json.dumps(value)
