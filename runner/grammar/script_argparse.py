"""Options that argparse is told of, read from a script's text (pure)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from runner.grammar.script_values import (
    MISSING,
    Aliases,
    Left,
    Option,
    constants,
    dotted,
    one_line,
    value_of,
)
from runner.model import Param

_TEXTUAL = ("str", "pathlib.Path", "Path", "os.path.expanduser", "os.path.abspath")
_NUMBERS = {"int": int, "float": float}
_NO_OPTION = ("help", "version")
_MANY = ("*", "+", "...")


def read_argparse(tree: ast.Module) -> tuple[list[Option], list[Left]]:
    """Every option added anywhere in a module, whichever parser or group it is added to."""
    aliases, known = dotted(tree), constants(tree)
    later = _set_defaults(tree, known)
    options: dict[str, Option] = {}
    left: dict[str, Left] = {}
    place = 0
    for node in _calls(tree):
        flags = [value_of(each, known) for each in node.args]
        if not flags or not all(isinstance(each, str) and each for each in flags):
            continue
        told = {word.arg: word.value for word in node.keywords if word.arg}
        if any(word.arg is None for word in node.keywords):
            left[flags[-1]] = Left(str(flags[-1]).lstrip("-"), "what it takes is computed")
            continue
        positional = not flags[0].startswith("-")
        place += positional
        found = _option(flags, told, aliases, known, later, place if positional else 0)
        if isinstance(found, Option):
            options.setdefault(found.name, found)
        elif found is not None:
            left.setdefault(found.name, found)
    # the option that sets a thing comes before the one that unsets it
    return list(options.values()), [each for each in left.values() if each.name not in options]


def _calls(tree: ast.Module) -> list[ast.Call]:
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
    ]
    return sorted(found, key=lambda node: (node.lineno, node.col_offset))


def _set_defaults(tree: ast.Module, known: Mapping[str, Any]) -> dict[str, Any]:
    """What `set_defaults` says, which goes before the options' own defaults."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "set_defaults"
        ):
            told = {word.arg: word.value for word in node.keywords if word.arg}
            found.update({name: value_of(value, known) for name, value in told.items()})
    return found


def _option(
    flags: list[str],
    told: Mapping[str, ast.expr],
    aliases: Aliases,
    known: Mapping[str, Any],
    later: Mapping[str, Any],
    place: int,
) -> Option | Left | None:
    flag = next((each for each in flags if each.startswith("--")), flags[0])
    dest = value_of(told.get("dest"), known)
    name = dest if isinstance(dest, str) else flag.lstrip("-").replace("-", "_")
    action = value_of(told.get("action"), known) if "action" in told else "store"
    if action is MISSING:
        action = (aliases.name_of(told["action"]) or "").rpartition(".")[2]
    if action in _NO_OPTION:
        return None
    default = later[name] if name in later else value_of(told.get("default"), known)
    if default is MISSING and "default" in told:
        return Left(name, "its default is computed")
    help_text = value_of(told.get("help"), known)
    shown = one_line(help_text) if isinstance(help_text, str) else ""
    shown = "" if shown == "==SUPPRESS==" else shown.replace("%(default)s", "the default")
    choices = _choices(told.get("choices"), known)
    switch = _switch(name, flag, str(action), default)
    if switch is not None:
        return Option(name, switch[0], switch[1], shown) if switch[1] else Left(name, "not read")
    if action not in ("store", "append", "extend"):
        return Left(name, f"its action {action or '…'} is not read")
    kind = aliases.name_of(told["type"]) if "type" in told else "str"
    computed = "type" in told and kind is None
    many = value_of(told.get("nargs"), known)
    required = (place > 0 and many not in ("?", "*")) or _true(told, known)
    required = required and "default" not in told and name not in later
    spelled = str(place) if place else flag
    if action in ("append", "extend") or many in _MANY or (_is_count(many) and many != 1):
        added = str(action) if action != "store" else ""
        sayable = not place and many == "*"
        return _list(name, default, spelled, added, required, shown, sayable_empty=sayable)
    if isinstance(default, bool):
        return Option(name, default, _switch_word(kind, flag, place), shown, choices)
    if default is None or default is MISSING:
        mark = "!" if required else "?"
        return Option(name, "", spelled + mark, shown, choices)
    value = _typed(default, kind)
    if value is MISSING or (computed and not isinstance(value, (int, float, str))):
        return Left(name, "its default does not fit its type")
    return Option(name, value, spelled, shown, choices)


def _true(told: Mapping[str, ast.expr], known: Mapping[str, Any]) -> bool:
    return value_of(told.get("required"), known) is True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _switch(name: str, flag: str, action: str, default: Any) -> tuple[bool, str] | None:
    """(default, spelling) of an option that takes no value; None for one that does."""
    dashes = flag[: len(flag) - len(flag.lstrip("-"))]
    if action == "BooleanOptionalAction":
        return default is True, f"{flag}/{dashes}no-{flag.lstrip('-')}"
    if action == "store_true":
        return default is True, flag
    if action == "store_false":
        return default is not False, f"/{flag}"
    return None


def _switch_word(kind: str | None, flag: str, place: int) -> str:
    """How a value of true or false is said. `type=bool` takes any text but none for true."""
    if place:
        return str(place)
    return f"{flag}=true/{flag}=" if kind == "bool" else f"{flag}="


def _list(
    name: str, default: Any, spelled: str, added: str, required: bool, shown: str,
    *, sayable_empty: bool,
) -> Option | Left:  # fmt: skip
    """added: `append` or `extend`, whose values come on top of the default. sayable_empty: whether
    the option without a value is an empty list; else the script would take its default.
    """
    mark = "!" if required else "?"
    repeated = added == "append"
    if default is MISSING or default is None or default == []:
        return Option(name, [], f"{spelled}{'*' if repeated else ''}{mark}", shown)
    if not isinstance(default, list):
        return Left(name, "its default is no list")
    if added:
        # argparse adds to the default, so saying it would double it
        return Left(name, "what is given is added to its default")
    return Option(name, default, spelled + ("" if sayable_empty else "!"), shown)


def _typed(default: Any, kind: str | None) -> Param | Any:
    """A default as the option's type makes it; argparse converts texts only."""
    number = _NUMBERS.get(kind or "")
    if number is None:
        return default if isinstance(default, (int, float, str)) else MISSING
    try:
        if isinstance(default, str):
            return number(default)
        if number is float and isinstance(default, int):
            return float(default)
    except ValueError:
        return MISSING
    return default if isinstance(default, (int, float)) else MISSING


def _choices(node: ast.expr | None, known: Mapping[str, Any]) -> tuple[str, ...]:
    found = value_of(node, known)
    return tuple(str(each) for each in found) if isinstance(found, list) else ()
