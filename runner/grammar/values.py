"""Turns what was typed for a parameter into a value of the type its default has (pure).

Numbers are written as in TOML, whole ones also as `1e6`; a switch is `true false yes no on off`.
`key:=JSON` gives any value and is the only way to give lists and tables, and texts that would
otherwise look like several values: commas and `a..b` make sweeps (sweeps.py).
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from runner.errors import SpecError
from runner.fields import said
from runner.model import Param

_INTEGER = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*")
_FLOAT = re.compile(
    r"[+-]?(?:[0-9]+(?:_[0-9]+)*\.?(?:[0-9]+(?:_[0-9]+)*)?|\.[0-9]+(?:_[0-9]+)*)(?:[eE][+-]?[0-9]+)?"
)
RANGE = re.compile(r"[+-]?[0-9][0-9_.eE+-]*?\.\.[+-]?[0-9][0-9_.eE+-]*")
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
INT64 = 2**63
"""The first whole number above what 64 bits hold."""
NOTHING_SENT = "nothing was sent"
LONGEST_ADVICE = 240
"""A word to copy that is longer is not shown: it would bury the message."""


@dataclass(frozen=True)
class RawValue:
    """A parameter as typed: text after `key=`, or JSON after `key:=`."""

    text: str
    is_json: bool = False


def kind_of(value: Param) -> str:
    """What a parameter with this default takes, in a user's words."""
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "a table"


def decode_json(key: str, text: str) -> Any:
    """The value of `key:=JSON`. Raises SpecError."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "not a value JSON has"
        raise SpecError(
            f"{key}:={said(text)[1:-1]} is not JSON ({reason})",
            f"a text needs its own quotes: {word_for(key, text, as_json=True)}",
            NOTHING_SENT,
        ) from error


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def word_for(key: str, value: Any, *, as_json: bool = False) -> str:
    """The word to type for a value, quoted for a shell; of a long one only how it is written."""
    if as_json or not isinstance(value, str):
        word = shlex.quote(f"{key}:={json.dumps(value, ensure_ascii=False)}")
        return word if len(word) <= LONGEST_ADVICE else f"{key}:='\"…\"'"
    return shlex.quote(f"{key}={value}")


def typed(key: str, raw: RawValue, default: Param) -> Param:
    """The one value that was typed for `key`, in the type of its default. Raises SpecError.

    Several (`1..5`, `a,b`) are refused: only submit makes sweeps.
    """
    if raw.is_json:
        return _from_json(key, decode_json(key, raw.text), default, raw)
    if not takes_json(default):
        _refuse_sweep(key, raw.text, default)
    return typed_text(key, raw.text, default)


def takes_json(default: Param) -> bool:
    """Whether a parameter with this default is only given as JSON: it never sweeps."""
    return isinstance(default, (list, dict)) or default is None


def typed_text(key: str, text: str, default: Param) -> Param:
    """The value of a text that is not looked at for sweeps. Raises SpecError."""
    if takes_json(default):
        example = json.dumps(default)
        raise SpecError(
            f"{key} is {said(text)}; it must be {kind_of(default)}, written as JSON",
            shlex.quote(f"{key}:={example}") if len(example) <= LONGEST_ADVICE else f"{key}:='…'",
            NOTHING_SENT,
        )
    if isinstance(default, bool):
        return _switch(key, text)
    if isinstance(default, int):
        return _integer(key, text)
    if isinstance(default, float):
        return _float(key, text)
    return text


def _refuse_sweep(key: str, text: str, default: Param) -> None:
    """Commas and ranges make sweeps, so that a word means the same wherever it stands."""
    ranged = RANGE.fullmatch(text) is not None
    if "," not in text and not ranged:
        return
    sign = "a comma" if "," in text else "a..b"
    advice = []
    if isinstance(default, str):
        advice = ["as one text:", "  " + word_for(key, text, as_json=True)]
    raise SpecError(
        f"{key} is {said(text)}; {sign} means a sweep, and this is of one run",
        *advice,
        NOTHING_SENT,
    )


def _wrong(key: str, text: str, wanted: str) -> SpecError:
    return SpecError(f"{key} is {said(text)}; it must be {wanted}", NOTHING_SENT)


def _switch(key: str, text: str) -> bool:
    value = _SWITCH.get(text.lower())
    if value is None:
        raise _wrong(key, text, "true or false (also yes, no, on, off)")
    return value


def _integer(key: str, text: str) -> int:
    value = whole(text)
    if value is None:
        raise _wrong(key, text, "a whole number (50000, 50_000 or 1e6)")
    if not -INT64 <= value < INT64:
        raise _wrong(key, text, "a whole number of at most 64 bits")
    return value


def whole(text: str) -> int | None:
    """The whole number in `text`, if any; beyond 64 bits only as exact as telling that needs."""
    digits = text.replace("_", "")
    if _INTEGER.fullmatch(text):
        return int(digits) if len(digits) < 1000 else INT64
    if _FLOAT.fullmatch(text) is None:
        return None
    size = abs(float(digits))
    if size >= 2 * INT64:
        return INT64
    if size < 1:
        # Never through Decimal: 0e999999999 would be multiplied out.
        return None if re.search("[1-9]", re.split("[eE]", digits)[0]) else 0
    exact = Decimal(digits)
    return int(exact) if exact == exact.to_integral_value() else None


def _float(key: str, text: str) -> float:
    if _FLOAT.fullmatch(text) is None:
        raise _wrong(key, text, "a number (0.001 or 1e-3)")
    value = float(text.replace("_", ""))
    if not math.isfinite(value):
        raise _wrong(key, text, "a number that 64 bits can hold")
    return value


def _from_json(key: str, value: Any, default: Param, raw: RawValue) -> Param:
    if isinstance(default, bool) or isinstance(value, bool):
        good = isinstance(default, bool) and isinstance(value, bool)
    elif isinstance(default, int):
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        good = isinstance(value, int) and -INT64 <= value < INT64
    elif isinstance(default, float):
        good = isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
        value = float(value) if good else value
    else:
        good = isinstance(value, type(default))
    if not good:
        raise _wrong(key, raw.text, kind_of(default))
    result: Param = value
    return result
