"""What a training script says of itself, read from its text alone; it is never run (pure).

    argparse    calls of add_argument, in groups and parent parsers too
    dataclass   the fields of a class, where tyro, simple_parsing, draccus, HfArgumentParser or
                jsonargparse makes options of it; nested ones with a dot
    hydra       @hydra.main(config_path, config_name): which file it is, not what stands in it
    click, absl, fire    told apart, not read

A default that is no plain value (an expression, a call) is left to the script: such a parameter is
in `left`, not in `params`.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.errors import SpecError
from runner.fields import is_plain_text, valid_parameter
from runner.grammar.script_argparse import read_argparse
from runner.grammar.script_classes import read_classes
from runner.grammar.script_values import Left, Option, dotted, literal
from runner.model import Param

ReadModule = Callable[[str], "str | None"]
"""The text of a module of the project, by its dotted name; None for one that is none of it."""
MOST_MODULES = 200
_CLASS_READERS = {
    "tyro.cli": "tyro",
    "tyro.extras.cli": "tyro",
    "simple_parsing.parse": "simple_parsing",
    "draccus.wrap": "draccus",
    "pyrallis.wrap": "pyrallis",
    "pyrallis.parse": "pyrallis",
    "transformers.HfArgumentParser": "HfArgumentParser",
    "jsonargparse.CLI": "jsonargparse",
    "jsonargparse.auto_cli": "jsonargparse",
}
_UNREAD = ("click", "absl", "fire", "typer", "docopt", "ml_collections")
_CLEANRL_METRIC, _SB3_METRIC = "charts/episodic_return", "rollout/ep_rew_mean"
_SAVES = ("save", "savez", "dump", "SummaryWriter", "makedirs", "mkdir", "open", "RecordVideo")


@dataclass(frozen=True)
class HydraConfig:
    """Where a script's configuration lies."""

    file: str
    """Beside the script, as `conf/config.yaml`."""


@dataclass(frozen=True)
class Script:
    """What was found."""

    kind: str | None
    """`argparse`, `tyro` …, `hydra`, the name of a library that is not read, or None."""
    options: tuple[Option, ...] = ()
    left: tuple[Left, ...] = ()
    hydra: HydraConfig | None = None
    imports: Mapping[str, bool] = field(default_factory=dict)
    """Names of modules outside, and whether each is needed on every path."""
    own: tuple[str, ...] = ()
    """Modules of the project that it imports."""
    metric: str | None = None
    outside: tuple[tuple[int, str], ...] = ()
    """(line, path) of what it writes outside of its folder, as far as that stands there."""
    old_gymnasium: bool = False
    """It reads what gymnasium 1.0 no longer gives."""
    resumes: bool = False
    """It names RUNNER_RESUME, so it goes on from a checkpoint."""


def read_script(name: str, text: str, read: ReadModule) -> Script:
    """What a script says of itself. Raises SpecError when it is no Python.

    name: for messages. read: modules of the project.
    """
    tree = _parse(name, text)
    modules = _own_modules(tree, read)
    everything = {"": tree, **{module: found for module, (found, _) in modules.items()}}
    always = {"": True, **{module: needed for module, (_, needed) in modules.items()}}
    imports: dict[str, bool] = {}
    for module, each in everything.items():
        for top, needed in _tops(each):
            if read(top) is None:
                imports[top] = imports.get(top, False) or (needed and always[module])
    kind, options, left, hydra = _options(everything)
    options, unsaid = _sayable(options)
    left = [*left, *unsaid]
    texts = {
        node.value
        for tree in everything.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    metric = _CLEANRL_METRIC if _CLEANRL_METRIC in texts else None
    if metric is None and "stable_baselines3" in imports:
        metric = _SB3_METRIC
    return Script(
        kind=kind,
        options=tuple(options),
        left=tuple(left),
        hydra=hydra,
        imports=imports,
        own=tuple(modules),
        metric=metric,
        outside=tuple(_outside(tree)),
        old_gymnasium="gymnasium" in imports and bool(texts & {"final_info", "final_observation"}),
        resumes="RUNNER_RESUME" in texts,
    )


def _sayable(options: Sequence[Option]) -> tuple[list[Option], list[Left]]:
    """Those that a job file can hold, and the rest."""
    kept, left = [], []
    for each in options:
        if not valid_parameter(each.name):
            left.append(Left(each.name, "its name is none that a parameter can have"))
        elif not all(is_plain_text(text) for text in _texts(each.default)):
            left.append(Left(each.name, "its default is a text that no command line can hold"))
        else:
            kept.append(each)
    return kept, left


def _texts(default: Param) -> Iterator[str]:
    yield from (text for text in [default] if isinstance(text, str))
    if isinstance(default, list):
        yield from (text for text in default if isinstance(text, str))


def _parse(name: str, text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise SpecError(f"{name}:{error.lineno}: not Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise SpecError(f"{name}: cannot be read as Python: {error}") from error


def _options(
    everything: Mapping[str, ast.Module],
) -> tuple[str | None, list[Option], list[Left], HydraConfig | None]:
    """How it takes its options, and which; what stands in the script itself goes first."""
    for tree in everything.values():
        hydra = _hydra(tree)
        if hydra is not None:
            return "hydra", [], [], hydra
    for tree in everything.values():
        found = _class_call(tree)
        if found is not None:
            kind, names = found
            options, left = read_classes(names, everything, kind=kind)
            return kind, options, left, None
    for tree in everything.values():
        options, left = read_argparse(tree)
        if options or left or _uses(tree, "argparse.ArgumentParser"):
            if any(getattr(node, "attr", "") == "add_subparsers" for node in ast.walk(tree)):
                return "argparse with subcommands", [], [], None
            return "argparse", options, left, None
    for tree in everything.values():
        for name in _UNREAD:
            if name in {top for top, _ in _tops(tree)}:
                return name, [], [], None
    return None, [], [], None


def _uses(tree: ast.Module, name: str) -> bool:
    aliases = dotted(tree)
    return any(
        isinstance(node, ast.Call) and aliases.name_of(node.func) == name for node in ast.walk(tree)
    )


def _class_call(tree: ast.Module) -> tuple[str, list[str]] | None:
    """The library that makes options of classes here, and those classes' names."""
    aliases = dotted(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            kind = _CLASS_READERS.get(aliases.name_of(node.func) or "")
            if kind is not None:
                return kind, list(_class_names(node, kind))
        if isinstance(node, ast.FunctionDef):
            for each in node.decorator_list:
                called = each.func if isinstance(each, ast.Call) else each
                kind = _CLASS_READERS.get(aliases.name_of(called) or "")
                first = node.args.args[0].annotation if node.args.args else None
                if kind is not None and isinstance(first, ast.Name):
                    return kind, [first.id]
    return None


def _class_names(node: ast.Call, kind: str) -> Iterator[str]:
    for argument in [*node.args[:1], *(each.value for each in node.keywords)]:
        items = argument.elts if isinstance(argument, (ast.Tuple, ast.List)) else [argument]
        for item in items:
            if isinstance(item, ast.Name):
                yield item.id
            elif isinstance(item, ast.Attribute):
                yield item.attr


def _hydra(tree: ast.Module) -> HydraConfig | None:
    aliases = dotted(tree)
    for node in ast.walk(tree):
        for each in getattr(node, "decorator_list", ()):
            if isinstance(each, ast.Call) and aliases.name_of(each.func) == "hydra.main":
                named = {word.arg: literal(word.value) for word in each.keywords}
                folder = str(named.get("config_path") or ".")
                file = str(named.get("config_name") or "config")
                file = file if file.endswith((".yaml", ".yml")) else file + ".yaml"
                return HydraConfig(posixpath.normpath(posixpath.join(folder, file)))
    return None


# what it imports


def _tops(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """(name of the outermost package, whether it is imported on every path)."""
    for name, needed in _imported(tree.body, needed=True):
        yield name.split(".")[0], needed


def _imported(body: list[ast.stmt], *, needed: bool) -> Iterator[tuple[str, bool]]:
    """(dotted name, whether on every path): what stands in `if` or `try` may be done without."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from ((alias.name, needed) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module, needed
            # a module, or a name in one: who asks for it finds out
            yield from ((f"{node.module}.{alias.name}", needed) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            yield from _imported(node.orelse, needed=needed)
        elif isinstance(node, ast.If) and _is_main(node.test):
            yield from _imported(node.body, needed=needed)
        elif isinstance(node, ast.Try):
            handled = bool(node.handlers)
            yield from _imported(node.body, needed=needed and not handled)
            for handler in node.handlers:
                yield from _imported(handler.body, needed=False)
            yield from _imported([*node.orelse, *node.finalbody], needed=needed)
        else:
            always = not isinstance(node, ast.If)
            for inner in ("body", "orelse"):
                below = getattr(node, inner, None)
                if isinstance(below, list):
                    yield from _imported(below, needed=needed and always)


def _is_main(test: ast.expr) -> bool:
    return "__name__" in ast.dump(test) and "__main__" in ast.dump(test)


def _own_modules(tree: ast.Module, read: ReadModule) -> dict[str, tuple[ast.Module, bool]]:
    """The project's own modules that a script imports and those that these import, and whether
    that happens on every path.
    """
    found: dict[str, tuple[ast.Module, bool]] = {}
    todo = [(tree, True)]
    while todo:
        body, always = todo.pop(0)
        for name, needed in _imported(body.body, needed=always):
            parts = name.split(".")
            for count in range(1, len(parts) + 1):
                module = ".".join(parts[:count])
                known = found.get(module)
                if known is not None and (known[1] or not needed):
                    continue
                text = read(module) if len(found) < MOST_MODULES else None
                if text is None:
                    break
                try:
                    found[module] = ast.parse(text), needed
                except (SyntaxError, ValueError, RecursionError):
                    continue
                todo.append(found[module])
    return found


# where it writes


def _outside(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, path) of files written to places that no pull brings."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else name
        if name not in _SAVES or (name == "open" and not _writes(node)):
            continue
        for argument in [*node.args, *(each.value for each in node.keywords)]:
            path = _beginning(argument)
            if is_outside(path):
                yield node.lineno, path


def is_outside(path: str) -> bool:
    """Whether a path leads out of the run's own folder."""
    return path.startswith(("/", "~", "../")) and not path.startswith(("/dev/", "//"))


def _writes(node: ast.Call) -> bool:
    mode = literal(node.args[1]) if len(node.args) > 1 else None
    return isinstance(mode, str) and any(sign in mode for sign in "wax+")


def _beginning(node: ast.expr) -> str:
    """How a text begins, as far as it stands there."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return _beginning(node.values[0])
    if isinstance(node, ast.BinOp):
        return _beginning(node.left)
    if isinstance(node, ast.Call) and node.args:
        return _beginning(node.args[0])
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
