"""What the code itself says of its values: the keys it reads, the documents it makes (pure)."""

from __future__ import annotations

import ast
import collections.abc
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.app.results import Contact
from runner.fields import Fields, type_name

Row = tuple[str, str, str]


class Recorder(Fields):
    """An empty table that notes which keys are asked for, of which type, with which default.

    full: it says of every key that it is there.
    """

    def __init__(
        self, *, prefix: str = "", owner: Recorder | None = None, full: bool = False
    ) -> None:
        super().__init__({}, where="", prefix=prefix, owner=owner)
        self.asked: dict[str, tuple[str, str]] = {} if owner is None else owner.asked
        """Key to its type and its default, both in words."""

        self._full = full

    def __contains__(self, key: object) -> bool:
        return self._full

    def _note(self, key: str, kind: str, default: object) -> None:
        self.asked.setdefault(self._prefix + key, (kind, shown(default)))

    def text(self, key: str, default: str | None = None, *, rule: str | None = None) -> str | None:
        self._note(key, "text", default)
        return default

    def one_of(
        self, key: str, default: str, choices: Sequence[str], later: Sequence[str] = ()
    ) -> str:
        self._note(key, "one of " + ", ".join(f'`"{each}"`' for each in choices), default)
        return default

    def integer(self, key: str, default: int | None, *, least: int = 0) -> int | None:
        self._note(key, f"whole number, {least} or more", default)
        return default

    def duration(self, key: str, default: float) -> float:
        self._note(key, "duration", f"{default:g}s" if default else None)
        return default

    def size(self, key: str, default: int | None) -> int | None:
        self._note(key, "size", size_word(default))
        return default

    def texts(self, key: str) -> tuple[str, ...] | None:
        self._note(key, "list of texts", None)
        return None

    def anything(self, key: str, default: Any) -> Any:
        self._note(key, "", default)
        return default

    def table(self, key: str) -> Recorder:
        return Recorder(prefix=f"{self._prefix}{key}.", owner=self, full=self._full)

    def items(self) -> list[tuple[str, Any]]:
        self._note("NAME", "", None)
        return []

    def problem(self, key: str, text: str) -> None:
        """Nothing is wrong with a table that is only asked."""

    def finish(self) -> None:
        """Nor at its end."""


def size_word(count: int | None) -> str | None:
    """A size as it is typed: 500m, 8g; None for none, or nothing."""
    if not count:
        return None
    for letter, unit in (("g", 10**9), ("m", 10**6), ("k", 10**3)):
        if count % unit == 0:
            return f"{count // unit}{letter}"
    return str(count)


def shown(value: object) -> str:
    """A default as a table shows it, nothing for none."""
    if value is None or value == [] or value == ():
        return ""
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


# samples of classes of data


def sample(kind: Any, around: tuple[Any, ...] = ()) -> Any:
    """A value of that type, everything in it present, but nothing of a class within itself."""
    kind, _ = _without_none(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any or kind is object:
        return "…"
    if origin in (tuple, list, collections.abc.Sequence):
        return (
            tuple(sample(each, around) for each in inner if each is not ...)
            if origin is tuple
            else [sample(inner[0], around)]
        )
    if origin in (dict, collections.abc.Mapping):
        return {"NAME": sample(inner[1], around)}
    if origin in (typing.Union, types.UnionType):
        return sample(inner[0], around)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        inside = (*around, kind)
        return kind(**{name: _within(hint, inside) for name, hint in hints(kind).items()})
    simple = {int: 1, float: 1.5, str: "text", bool: True, Path: Path("file"), dict: {}, list: []}
    return simple[kind]


def _within(kind: Any, around: tuple[Any, ...]) -> Any:
    bare, optional = _without_none(kind)
    return None if optional and bare in around else sample(kind, around)


def _without_none(kind: Any) -> tuple[Any, bool]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = [each for each in typing.get_args(kind) if each is not types.NoneType]
        if len(inner) < len(typing.get_args(kind)):
            return (inner[0] if len(inner) == 1 else typing.Union[tuple(inner)]), True  # noqa: UP007
    return kind, False


def hints(kind: type) -> dict[str, Any]:
    """Its fields and their types."""
    names = vars(sys.modules[kind.__module__])
    found = typing.get_type_hints(kind, globalns={**names, "Mapping": Mapping})
    order = getattr(kind, "_fields", None) or [field.name for field in dataclasses.fields(kind)]
    return {name: found[name] for name in order}


def type_words(kind: Any) -> str:
    """A type in words."""
    kind, optional = _without_none(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (tuple, list, collections.abc.Sequence):
        word = "list"
    elif (
        origin in (dict, collections.abc.Mapping) or kind is dict or dataclasses.is_dataclass(kind)
    ):
        word = "object"
    elif origin in (typing.Union, types.UnionType):
        word = " or ".join(dict.fromkeys(type_words(each) for each in inner))
    else:
        word = {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(
            kind, "text" if kind is Path else "any"
        )
    return f"{word} or null" if optional else word


def attribute_lines(kind: type) -> dict[str, str]:
    """The text below each field of a class of data, on one line."""
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    for before, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[before.target.id] = " ".join(str(after.value.value).split()).rstrip(".")
    return found


def document_rows(document: Mapping[str, Any], *kinds: type) -> list[Row]:
    """Key, type and text of everything in a document that was made of samples of these classes."""
    return list(_rows(document, "", _known(kinds)))


def _known(kinds: Sequence[type]) -> dict[str, tuple[str, str]]:
    """What the fields of these classes say of themselves; the first class counts."""
    known: dict[str, tuple[str, str]] = {}
    for kind in kinds:
        lines = attribute_lines(kind)
        for name, hint in hints(kind).items():
            known.setdefault(name, (type_words(hint), lines.get(name, "")))
    return known


def _rows(
    value: Mapping[str, Any], path: str, known: Mapping[str, tuple[str, str]]
) -> Iterator[Row]:
    for key, item in value.items():
        if key == "NAME":  # of a table whose keys are free
            continue
        here = f"{path}{key}"
        word, text = known.get(key, (_kind_of(item), ""))
        if isinstance(item, (list, tuple)) and item and isinstance(item[0], Mapping):
            yield here + "[]", "list of objects", text
            yield from _rows(item[0], here + "[].", known)
            continue
        if key.endswith("_at") or key == "at":
            word = "time" + (" or null" if word.endswith("or null") else "")
        yield here, word, text
        if isinstance(item, Mapping):
            inner = _known([Contact]) if key == "contact" else known
            yield from _rows(item, here + ".", inner)


def _kind_of(value: object) -> str:
    word = type_name(list(value) if isinstance(value, tuple) else value)
    return {
        "bool": "true or false",
        "int": "whole number",
        "float": "number",
        "str": "text",
        "table": "object",
    }.get(word, word)
