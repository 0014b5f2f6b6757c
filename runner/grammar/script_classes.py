"""Options that a library makes of a class's fields, read from a script's text (pure).

tyro spells `env_id` as `--env-id` and switches as `--x/--no-x`; the others keep the underscore, and
switches take a value. The text below a field is its help, as CleanRL writes it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.grammar.script_values import (
    MISSING,
    Left,
    Option,
    constants,
    literal,
    one_line,
    value_of,
)

_DEEPEST = 8
_NOT_OPTIONS = ("ClassVar", "InitVar", "Final")


class _Reader:
    def __init__(self, everything: Mapping[str, ast.Module], kind: str) -> None:
        self.kind = kind
        self.options: list[Option] = []
        self.left: list[Left] = []
        self._classes: dict[str, tuple[ast.ClassDef, ast.Module]] = {}
        for tree in reversed(list(everything.values())):
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    self._classes[node.name] = (node, tree)

    def read(self, name: str, prefix: str = "", depth: int = 0) -> bool:
        """The fields of a class and of those it comes from; False where there is no such class."""
        found = self._classes.get(name)
        if found is None or depth > _DEEPEST:
            return False
        node, tree = found
        known = constants(tree)
        # a field that a class has anew stands where the class it comes from has it
        fields = {each[0]: each for each in self._fields(node, known, depth)}
        for own, item, text, its in fields.values():
            self._field(prefix + own, item, text, its, depth)
        return True

    def _fields(
        self, node: ast.ClassDef, known: Mapping[str, Any], depth: int
    ) -> Iterator[tuple[str, ast.AnnAssign, str, Mapping[str, Any]]]:
        """(name, the field, the text below it, constants of its module)."""
        for base in node.bases:
            name = base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
            if name in self._classes and name != node.name and depth <= _DEEPEST:
                inner, tree = self._classes[name]
                yield from self._fields(inner, constants(tree), depth + 1)
        for place, item in enumerate(node.body):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                after = node.body[place + 1] if place + 1 < len(node.body) else None
                text = literal(after.value) if isinstance(after, ast.Expr) else ""
                shown = one_line(text) if isinstance(text, str) else ""
                yield item.target.id, item, shown, known

    def _field(
        self, name: str, item: ast.AnnAssign, text: str, known: Mapping[str, Any], depth: int
    ) -> None:
        annotation = _annotation(item.annotation)
        if name.rpartition(".")[2].startswith("_") or annotation.kind in _NOT_OPTIONS:
            return
        default, made, told = _default(item.value, known)
        text = text or told
        inner = made or annotation.kind
        if inner in self._classes and self.read(inner, f"{name}.", depth + 1):
            return
        self._add(name, annotation, default, item.value is not None, text)

    def _add(self, name: str, annotation: _Type, default: Any, has: bool, text: str) -> None:
        flag = "--" + (name.replace("_", "-") if self.kind == "tyro" else name)
        if has and default is MISSING:
            self.left.append(Left(name, "its default is computed"))
            return
        value: Any = default
        if isinstance(value, bool):
            spelling = f"{flag}/--{_negated(flag[2:])}" if self.kind == "tyro" else f"{flag}="
        elif isinstance(value, list):
            spelling = flag + "?"
        elif value is None or value is MISSING:
            many = annotation.kind in ("list", "List", "tuple", "Tuple", "Sequence")
            value = [] if many else ""
            spelling = flag + ("?" if has else "!")
        else:
            spelling = flag
            if annotation.kind == "float" and isinstance(value, int):
                value = float(value)
        if annotation.kind == "bool" and not isinstance(value, bool):
            # a switch that is neither on nor off by itself
            self.left.append(Left(name, "a switch without a default"))
            return
        self.options.append(Option(name, value, spelling, text, annotation.choices))


def read_classes(
    names: Sequence[str], everything: Mapping[str, ast.Module], *, kind: str
) -> tuple[list[Option], list[Left]]:
    """The options of these classes, wherever in the project they stand; functions too, for tyro."""
    reader = _Reader(everything, kind)
    for name in names:
        if not reader.read(name):
            _read_function(reader, name, everything)
    return reader.options, reader.left


def _read_function(reader: _Reader, name: str, everything: Mapping[str, ast.Module]) -> None:
    """The parameters of a function, as `tyro.cli(main)` takes them."""
    for tree in everything.values():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or node.name != name:
                continue
            known = constants(tree)
            plain = [*node.args.posonlyargs, *node.args.args]
            defaults: list[ast.expr | None] = [None] * (len(plain) - len(node.args.defaults))
            pairs = [*zip(plain, [*defaults, *node.args.defaults], strict=True)]
            pairs += zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            for argument, value in pairs:
                target = ast.Name(argument.arg, ast.Store())
                kind = argument.annotation or ast.Name("", ast.Load())
                item = ast.AnnAssign(target, kind, value, 1)
                reader._field(argument.arg, item, "", known, 0)
            return


class _Type:
    def __init__(self, kind: str, choices: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.choices = choices


def _annotation(node: ast.expr) -> _Type:
    """What a field is annotated as, `Optional` and `Annotated` taken off."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            return _annotation(ast.parse(node.value, mode="eval").body)
        except SyntaxError:
            return _Type("")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        sides = [each for each in (node.left, node.right) if _plain_name(each) != "None"]
        return _annotation(sides[0]) if len(sides) == 1 else _Type("")
    if isinstance(node, ast.Subscript):
        outer = _plain_name(node.value)
        inner = node.slice
        if outer == "Literal":
            many = inner if isinstance(inner, ast.Tuple) else ast.Tuple([inner], ast.Load())
            found = literal(many)
            return _Type("Literal", tuple(map(str, found)) if isinstance(found, list) else ())
        if outer in ("Optional", "Annotated"):
            return _annotation(inner.elts[0] if isinstance(inner, ast.Tuple) else inner)
        return _Type(outer)
    return _Type(_plain_name(node))


def _plain_name(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and node.value is None:
        return "None"
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _default(node: ast.expr | None, known: Mapping[str, Any]) -> tuple[Any, str, str]:
    """(value, the class that makes it, help) of what stands behind a field's `=`."""
    if not isinstance(node, ast.Call):
        return value_of(node, known), "", ""
    name = _plain_name(node.func)
    told = {word.arg: word.value for word in node.keywords if word.arg}
    if name not in ("field", "arg", "choice", "list_field"):
        return MISSING, name, ""
    metadata = told.get("metadata")
    help_text = literal(told.get("help"))
    if isinstance(metadata, ast.Dict):
        for key, value in zip(metadata.keys, metadata.values, strict=True):
            if key is not None and literal(key) == "help":
                help_text = literal(value)
    text = one_line(help_text) if isinstance(help_text, str) else ""
    factory = told.get("default_factory")
    if isinstance(factory, ast.Lambda):
        return value_of(factory.body, known), "", text
    if isinstance(factory, ast.Name):
        return ([] if factory.id == "list" else MISSING), factory.id, text
    if "default" in told:
        return value_of(told["default"], known), "", text
    return (value_of(node.args[0], known) if node.args else MISSING), "", text


def _negated(name: str) -> str:
    """`optimizer.no-nesterov` for `optimizer.nesterov`, as tyro has it."""
    group, dot, own = name.rpartition(".")
    return f"{group}{dot}no-{own}"
