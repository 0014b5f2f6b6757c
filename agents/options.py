"""Options of an agent: from $RUNNER_PARAMS or `key=value` words, typed by their defaults."""

from __future__ import annotations

import ast
import difflib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class Refused(Exception):
    """The options, the environment or the device cannot be used: one line, exit status 2."""


def read_options(cls: type[T], words: Sequence[str]) -> T:
    """Options from the JSON file named by RUNNER_PARAMS, else from `key=value` words.

    cls: a dataclass whose defaults give each option's type (int, float, bool, str). Raises
    Refused with every problem, one a line, and the nearest known name.
    """
    defaults = {field.name: field.default for field in fields(cls)}  # type: ignore[arg-type]
    path = os.environ.get("RUNNER_PARAMS")
    if path:
        if words:
            raise Refused(f"options come from RUNNER_PARAMS={path}; '{words[0]}' is not read")
        try:
            given = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise Refused(f"RUNNER_PARAMS={path} cannot be read: {error}") from error
        if not isinstance(given, dict):
            raise Refused(f"RUNNER_PARAMS={path} must hold a JSON object")
        pairs = list(given.items())
    else:
        pairs = []
        for word in words:
            key, equals, text = word.partition("=")
            if not equals:
                raise Refused(f"'{word}' is not key=value")
            if key in dict(pairs):
                raise Refused(f"{key} is given twice")
            pairs.append((key, text))
    values, problems = {}, []
    for key, value in pairs:
        try:
            values[key] = convert(key, value, defaults, from_text=not path)
        except Refused as problem:
            problems.append(str(problem))
    if problems:
        raise Refused("\n".join(problems))
    return cls(**values)


def convert(key: str, value: Any, defaults: dict[str, Any], *, from_text: bool) -> Any:
    """`value` as the type of the option's default. Raises Refused."""
    if key not in defaults:
        raise Refused(f"{key} is not an option here{near(key, defaults)}")
    default = defaults[key]
    if isinstance(default, str):
        if isinstance(value, str):
            return value
        raise Refused(f"{key} is {value!r}; it must be text")
    if from_text:
        words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        try:
            value = words[value.lower()] if value.lower() in words else ast.literal_eval(value)
        except (ValueError, SyntaxError):
            pass  # stays text, and is refused below
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise Refused(f"{key} is {value!r}; it must be true or false")
    if isinstance(default, int):
        if number and math.isfinite(value) and value == int(value):
            return int(value)
        raise Refused(f"{key} is {value!r}; it must be a whole number")
    if number and math.isfinite(value):
        return float(value)
    raise Refused(f"{key} is {value!r}; it must be a number")


USUAL = {
    "steps num_envs rollout epochs batch_size buffer_size train_every updates": (1.0, math.inf),
    "hidden eval_episodes log_every": (1.0, math.inf),
    "clip max_grad_norm": (1e-9, math.inf),
    "gamma gae_lambda": (0.0, 1.0),
}
"""Limits of options that mean the same in every agent that has them."""


def check_ranges(options: Any, **limits: tuple[float, float]) -> None:
    """Raise Refused, naming each number outside its limits.

    limits: of what is not among the USUAL; all else is 0 or more.
    """
    usual = {name: both for names, both in USUAL.items() for name in names.split()}
    bad = []
    for field in fields(options):
        value = getattr(options, field.name)
        lowest, highest = {**usual, **limits}.get(field.name, (0, math.inf))
        if isinstance(value, (int, float)) and not lowest <= value <= highest:
            below = "" if highest == math.inf else f" and at most {highest:g}"
            bad.append(f"{field.name} is {value}; it must be at least {lowest:g}{below}")
    if bad:
        raise Refused("\n".join(bad))


def near(name: str, known: Any) -> str:
    """` (did you mean 'lr'?)`, or nothing when no known name resembles `name`."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(repr(c) for c in close)}?)" if close else ""
