"""What stands in a script's text: names, plain values, and the options made of them (pure)."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.model import Param


@dataclass(frozen=True)
class Option:
    """One parameter of a script."""

    name: str
    """As the script itself calls it, `env_id`."""
    default: Param
    spelling: str
    """As passing.py reads it."""
    help: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Left:
    """A parameter that the script settles by itself, and why it is not declared."""

    name: str
    why: str


class _Missing:
    """Stands for what is no plain value."""


MISSING = _Missing()


def literal(node: ast.expr | None) -> Any:
    """The value that stands there; MISSING for an expression or a value TOML cannot hold."""
    if node is None:
        return MISSING
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return MISSING
    return plain_value(value)


def plain_value(value: Any) -> Any:
    """A value as parameters have it, None also; MISSING for what they cannot be."""
    if isinstance(value, (list, tuple)):
        items = [plain_value(each) for each in value]
        return MISSING if any(each is MISSING or each is None for each in items) else items
    if isinstance(value, float):
        return value if math.isfinite(value) else MISSING
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else MISSING
    return MISSING


class Aliases:
    """What names in a module stand for, by its imports."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known

    def name_of(self, node: ast.AST) -> str | None:
        """`tyro.cli` for `cli` after `from tyro import cli`; None for what is no dotted name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        return ".".join([self._known.get(node.id, node.id), *reversed(parts)])


def dotted(tree: ast.Module) -> Aliases:
    """The names that a module's imports make, wherever in it they stand."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    known[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return Aliases(known)


def constants(tree: ast.Module) -> dict[str, Any]:
    """Plain values that stand at a module's top under a name that is given once."""
    found: dict[str, Any] = {}
    twice: set[str] = set()
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(node, (ast.Assign, ast.AnnAssign)):
                twice |= {target.id} & found.keys()
                found[target.id] = literal(node.value)
    return {k: v for k, v in found.items() if k not in twice and v is not MISSING}


def value_of(node: ast.expr | None, known: Mapping[str, Any]) -> Any:
    """The value of a literal or of a name of `constants`."""
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    return literal(node)


def one_line(text: str) -> str:
    """A help text as a comment."""
    return " ".join(text.split())
