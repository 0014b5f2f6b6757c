"""Reads decoded tables (TOML) field by field and reports every problem at once.

    fields = Fields(table, where="hosts/gpu1.toml")
    slots = fields.integer("slots", None, least=1)
    fields.finish()

A wrong field gives its default and notes a problem; `finish` notes every key nobody read, and
raises one SpecError that names the file and all problems. Durations are `90s 15m 12h 2d 1h30m`;
sizes are `512m 8g` in powers of ten (k, m, g, t: 10^3 to 10^12 bytes); a bare number is neither.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runner.errors import SpecError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,62}")
NAME_RULE = "letters, digits and . _ - (63 at most, a letter or digit first)"
_DURATION = re.compile(r"(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_SIZE = re.compile(r"([0-9]{1,9})([kmgt])", re.IGNORECASE)
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def valid_name(text: str) -> bool:
    """Whether `text` may name a host, job, run or tag."""
    return NAME.fullmatch(text) is not None


def valid_parameter(text: str) -> bool:
    """Whether a job's parameter may be called so."""
    return _PARAMETER.fullmatch(text) is not None


def is_plain_text(text: str) -> bool:
    """Whether a command line can hold it: no NUL, nothing that no encoding has."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def near(word: str, known: Iterable[str]) -> str | None:
    """The known name `word` was most likely meant to be, if any is close."""
    names = sorted(known)
    folded = {name.casefold(): name for name in names}
    if word.casefold() in folded:
        return folded[word.casefold()]
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.85)
    # Initials come before a mere likeness: `learnig_rate` is `lr`, not `learning_starts`.
    close += [name for name in names if _initials(word) == name or _initials(name) == word]
    close += difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return close[0] if close else None


def _initials(name: str) -> str:
    """`lr` for `learning_rate`, nothing for a name of one part."""
    parts = [part for part in re.split(r"[._-]", name.casefold()) if part]
    return "".join(part[0] for part in parts) if len(parts) > 1 else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` (did you mean x?)`, or nothing."""
    name = near(word, known)
    return f" (did you mean {name}?)" if name else ""


def parse_duration(text: str) -> float:
    """Seconds in `90s`, `15m`, `12h`, `2d` or `1h30m`. Raises ValueError saying what is wrong."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        if re.fullmatch(r"[0-9_.]+", text.strip()):
            raise ValueError("a bare number has no unit; write 90s, 15m, 12h, 2d or 1h30m")
        raise ValueError("it must be a duration such as 90s, 15m, 12h, 2d or 1h30m")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_size(text: str) -> int:
    """Bytes in `512m` or `8g` (powers of ten). Raises ValueError saying what is wrong."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        if re.fullmatch(r"[0-9_.]+", text.strip()):
            raise ValueError("a bare number has no unit; write 512m or 8g")
        raise ValueError("it must be a size such as 512m or 8g")
    return int(match[1]) * _UNITS[match[2].lower()]


def said(value: object, *, limit: int = 60) -> str:
    """A value as an error quotes it: on one line, printable, cut when long."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Fields:
    """One decoded table, its name for messages, and the problems met while reading it."""

    def __init__(
        self, table: Mapping[str, Any], *, where: str, prefix: str = "", owner: Fields | None = None
    ) -> None:
        self._table = table
        self._prefix = prefix
        self._where = where
        self._known: set[str] = set()
        self._children: list[Fields] = []
        self._problems: list[str] = owner._problems if owner else []

    def __contains__(self, key: str) -> bool:
        return key in self._table

    def problem(self, key: str, text: str) -> None:
        """Notes that the field `key` is wrong: `text` goes after its name."""
        self._problems.append(f"{self._prefix}{_key(key)} {text}")

    def text(self, key: str, default: str | None = None, *, rule: str | None = None) -> str | None:
        """A text that is not empty and has no control characters. `rule`: a regular expression."""
        value: object = self._read(key, default)
        if value is default:
            return default
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            self._wrong(key, value, "a text")
        elif rule is not None and re.fullmatch(rule, value) is None:
            self._wrong(key, value, f"of the form {rule}")
        else:
            return value
        return default

    def one_of(
        self, key: str, default: str, choices: Sequence[str], later: Sequence[str] = ()
    ) -> str:
        """One of the words in `choices`; those in `later` are refused as not there yet."""
        value = self._read(key, default)
        if isinstance(value, str) and value in choices:
            return value
        if isinstance(value, str) and value in later:
            self.problem(key, f"is {value!r}, which is not in this version yet")
            return default
        near_word = near(value, choices) if isinstance(value, str) else None
        hint = f" (did you mean {near_word!r}?)" if near_word else ""
        self.problem(key, f"is {said(value)}; it must be one of {', '.join(choices)}{hint}")
        return default

    def integer(self, key: str, default: int | None, *, least: int = 0) -> int | None:
        """A whole number of at least `least`."""
        value: object = self._read(key, default)
        if value is default:
            return default
        if not isinstance(value, int) or isinstance(value, bool):
            self._wrong(key, value, "a whole number")
        elif value < least:
            self._wrong(key, value, f"at least {least}")
        else:
            return value
        return default

    def duration(self, key: str, default: float) -> float:
        """Seconds, from a text such as `25s`."""
        return float(self._measured(key, default, parse_duration, "a duration such as '25s'"))

    def size(self, key: str, default: int | None) -> int | None:
        """Bytes, from a text such as `8g`."""
        value = self._measured(key, default, parse_size, "a size such as '8g'")
        return None if value is None else int(value)

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of texts, as an argv is; the first one not empty."""
        value = self._read(key, None)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._wrong(key, value, "a list of texts")
        elif not value or not value[0] or any("\0" in item for item in value):
            self._wrong(key, value, "a list that begins with a program")
        else:
            return tuple(value)
        return None

    def anything(self, key: str, default: Any) -> Any:
        """The field as it is; the caller checks it and calls `problem`."""
        return self._read(key, default)

    def table(self, key: str) -> Fields:
        """The table under `key`, empty when there is none; `finish` of the outermost one counts."""
        value = self._read(key, {})
        if not isinstance(value, dict):
            self._wrong(key, value, "a table")
            value = {}
        child = Fields(value, where=self._where, prefix=f"{self._prefix}{_key(key)}.", owner=self)
        self._children.append(child)
        return child

    def names(self) -> list[str]:
        """The names of all fields, for a table of tables whose names are free."""
        return list(self._table)

    def items(self) -> list[tuple[str, Any]]:
        """Every field, all of them read by this: for tables whose keys are free."""
        self._known.update(self._table)
        return list(self._table.items())

    def later(self, *keys: str) -> None:
        """Notes the keys among these as not acting in this version; they are never just ignored."""
        for key in keys:
            self._known.add(key)
            if key in self._table:
                self.problem(key, "is not in this version yet")

    def finish(self) -> None:
        """Ends the reading. Raises SpecError with every problem, unknown keys included."""
        self._note_unknown()
        if not self._problems:
            return
        if len(self._problems) == 1:
            raise SpecError(f"{self._where}: {self._problems[0]}")
        raise SpecError(f"{self._where}:", *self._problems)

    def _note_unknown(self) -> None:
        for key in self._table:
            if key not in self._known:
                hint = near(key, self._known)
                self.problem(
                    key, "is not known here" + (f" (did you mean {hint!r}?)" if hint else "")
                )
        for child in self._children:
            child._note_unknown()

    def _read(self, key: str, default: Any) -> Any:
        self._known.add(key)
        return self._table.get(key, default)

    def _wrong(self, key: str, value: object, wanted: str) -> None:
        self.problem(key, f"is {said(value)}; it must be {wanted}")

    def _measured(self, key: str, default: Any, parse: Any, wanted: str) -> Any:
        value = self._read(key, default)
        if value is default:
            return default
        if not isinstance(value, str):
            self._wrong(key, value, wanted)
            return default
        try:
            return parse(value)
        except ValueError as error:
            self.problem(key, f"is {said(value)}; {error}")
            return default


def _key(key: str) -> str:
    """A key as messages show it: as typed, quoted when it is no plain word."""
    return key if re.fullmatch(r"[A-Za-z0-9._-]+", key) else said(key)


def type_name(value: object) -> str:
    """The type of a parameter with this default, as `runner jobs` names it."""
    names = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "table"}
    return names.get(type(value), "-")
