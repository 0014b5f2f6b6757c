"""Ignore rules as git means them, byte by byte: which line of a rule file matches a path.

Written from git's own matcher (dir.c, wildmatch.c), which its manual does not describe to the end:
classes, reversed ranges, `\\` at the end, `**` beside other letters. Names and rules are texts with
one character a byte (`by_byte`), because to git `?` is one byte.
"""

from __future__ import annotations

import itertools
import os
import re
import string
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from runner.code.complaints import shown

_SPECIAL = "*?[\\"
_NEVER = "(?!)"
_STAR, _FOLDERS, _ANYTHING = "[^/]*", "(?:.*/)?", ".*"
_SHORTEST = {_STAR: "[^/]*?", _FOLDERS: "(?:[^/]*/)*?", _ANYTHING: ".*?"}
"""The same, the shortest match first."""
_numbers = itertools.count()
"""Of groups, whose names must be different in all that is ever put into one expression."""
_ALL = frozenset(map(chr, range(256)))
_CLASSES = {
    "alnum": string.ascii_letters + string.digits,
    "alpha": string.ascii_letters,
    "blank": " \t",
    "cntrl": "".join(map(chr, (*range(32), 127))),
    "digit": string.digits,
    "graph": string.ascii_letters + string.digits + string.punctuation,
    "lower": string.ascii_lowercase,
    "print": string.ascii_letters + string.digits + string.punctuation + " ",
    "punct": string.punctuation,
    "space": " \t\n\r",
    "upper": string.ascii_uppercase,
    "xdigit": string.hexdigits,
}
"""As git has them: of ASCII alone, and no form feed among the blanks."""


@dataclass(frozen=True)
class Rule:
    """One line of a rule file."""

    source: str
    """The file, as messages name it."""
    line: int
    text: str
    """The line as it is written, a character a byte."""
    order: tuple[int, int]
    """Of two rules the greater one has the last word."""
    negated: bool = field(compare=False, default=False)
    folders_only: bool = field(compare=False, default=False)
    by_name: bool = field(compare=False, default=True)
    """Whether it is about the last part of a path alone, in whatever folder."""
    regex: str = field(compare=False, default=_NEVER, repr=False)

    def __str__(self) -> str:
        written = os.fsdecode(self.text.encode("latin-1"))
        return shown(f"{self.source}:{self.line}: {written}")


class RuleFile:
    """The rules of one file, for the paths below the folder it speaks of."""

    def __init__(self, data: bytes, source: str, depth: int = 0) -> None:
        """depth: of two files the one with the greater depth has the last word."""
        rules = parse_rules(data, source, depth)
        self._backwards = [(rule, re.compile(rule.regex, re.DOTALL)) for rule in reversed(rules)]
        self._names = _any_of([rule for rule in rules if rule.by_name])
        self._paths = _any_of([rule for rule in rules if not rule.by_name])
        self._brings_back = [rule for rule in rules if rule.negated]

    def last_match(self, path: str, is_folder: bool) -> Rule | None:
        """The rule that decides on a path, relative to the file's folder and `by_byte`."""
        name = path[path.rfind("/") + 1 :]
        of_names, of_paths = self._names, self._paths
        if (of_names is None or of_names.fullmatch(name) is None) and (
            of_paths is None or of_paths.fullmatch(path) is None
        ):
            return None  # most paths: two looks, however many rules there are
        for rule, regex in self._backwards:
            if (is_folder or not rule.folders_only) and regex.fullmatch(
                name if rule.by_name else path
            ):
                return rule
        return None

    def may_bring_back_below(self, folder: str) -> bool:
        """Whether a `!` line could match something below this folder."""
        return any(
            rule.by_name or _may_match_below(_pattern_of(rule), folder)
            for rule in self._brings_back
        )


def by_byte(name: str) -> str:
    """A name with a character for each byte, as rules are read."""
    return name if name.isascii() else os.fsencode(name).decode("latin-1")


def parse_rules(data: bytes, source: str, depth: int = 0) -> list[Rule]:
    """The rules in a file, in its order; a line that means nothing to git is passed over."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode("latin-1")
    rules = []
    for number, line in enumerate(text.split("\n"), 1):
        written = line.removesuffix("\r").partition("\0")[0]
        pattern = _without_blanks(written)
        if pattern and not pattern.startswith("#"):
            rules.append(_parse_rule(pattern, source, (depth, number), written))
    return rules


def escaped(path: str) -> str:
    """A rule that matches this path alone, from the folder of its rule file."""
    plain = re.sub(r"([*?\[\\])", r"\\\1", path)
    return "/" + re.sub(r" +$", lambda found: "\\ " * len(found[0]), plain)


def _parse_rule(pattern: str, source: str, order: tuple[int, int], written: str) -> Rule:
    negated = pattern.startswith("!")
    bare = pattern[1:] if negated else pattern
    folders_only = bare.endswith("/")
    bare = bare[:-1] if folders_only else bare
    by_name = "/" not in bare
    return Rule(
        source=source,
        line=order[1],
        text=written,
        order=order,
        negated=negated,
        folders_only=folders_only,
        by_name=by_name,
        regex=_to_regex(bare, by_name),
    )


def _without_blanks(line: str) -> str:
    """Without blanks at the end, but for one behind a backslash."""
    end = position = 0
    while position < len(line):
        if line[position] == "\\":
            if position + 1 == len(line):
                return line
            position += 1
            end = position + 1
        elif line[position] != " ":
            end = position + 1
        position += 1
    return line[:end]


def _any_of(rules: Sequence[Rule]) -> re.Pattern[str] | None:
    """One look instead of many; None where there are no rules."""
    return re.compile("|".join(rule.regex for rule in rules), re.DOTALL) if rules else None


def _to_regex(pattern: str, by_name: bool) -> str:
    """What a pattern without `!` and final `/` matches: a name, or a path from its folder on."""
    if not pattern:
        return _NEVER
    if not by_name and pattern.startswith("/"):
        pattern = pattern[1:]
    plain = next((i for i, c in enumerate(pattern) if c in _SPECIAL), len(pattern))
    rest = pattern[plain:]
    # git compares the plain beginning first, so that what follows is the beginning to `**`
    try:
        return re.escape(pattern[:plain]) + _joined(_pieces(rest, by_name)) or _NEVER
    except _Malformed:
        return _NEVER


class _Malformed(Exception):
    """Git matches nothing with such a pattern."""


def _pieces(pattern: str, by_name: bool) -> list[str]:
    out: list[str] = []
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            if position + 1 == len(pattern):
                raise _Malformed
            out.append(re.escape(pattern[position + 1]))
            position += 2
        elif char == "?":
            out.append("[^/]")
            position += 1
        elif char == "[":
            piece, position = _class(pattern, position + 1)
            out.append(piece)
        elif char == "*":
            piece, position = _stars(pattern, position, by_name)
            out.append(piece)
        else:
            out.append(re.escape(char))
            position += 1
    return out


def _stars(pattern: str, start: int, by_name: bool) -> tuple[str, int]:
    """One or more `*`; two of them mean folders only where they are a whole part of a path."""
    end = start
    while pattern[end : end + 1] == "*":
        end += 1
    rest = pattern[end:]
    whole = (start == 0 or pattern[start - 1] == "/") and (
        not rest or rest.startswith(("/", "\\/"))
    )
    if by_name or end - start == 1 or not whole:
        return _STAR, end
    if rest.startswith("/"):
        return _FOLDERS, end + 1
    return _ANYTHING, end


def _joined(pieces: Sequence[str]) -> str:
    """One expression, whose time is bounded: of many wildcards only the last one tries again.

    What stands between two of them is found where it comes first; any later place would leave less
    for the rest. That holds among the `*` of one name, and among the `**` of a path.
    """
    parts = _split(pieces, (_FOLDERS, _ANYTHING))
    joined = [_joined_stars(part) for part in parts]
    return joined[0] + "".join(
        _first(_SHORTEST[part[0]] + text[len(part[0]) :], number < len(parts) - 1)
        for number, (part, text) in enumerate(zip(parts[1:], joined[1:], strict=True), 1)
    )


def _joined_stars(pieces: Sequence[str]) -> str:
    parts = _split(pieces, (_STAR,))
    out = ["".join(parts[0])]
    for number, part in enumerate(parts[1:], 1):
        is_followed = number < len(parts) - 1 and "/" not in part
        out.append(
            _first("".join([_SHORTEST[_STAR], *part[1:]]), True) if is_followed else "".join(part)
        )
    return "".join(out)


def _split(pieces: Sequence[str], wild: Collection[str]) -> list[list[str]]:
    """What stands before the first of `wild`, and then each of them with what follows it."""
    parts: list[list[str]] = [[]]
    for piece in pieces:
        if piece in wild:
            parts.append([])
        parts[-1].append(piece)
    return parts


def _first(regex: str, alone: bool) -> str:
    """Its first match and no other one (`(?>…)` of newer Pythons)."""
    if not alone:
        return regex
    name = f"g{next(_numbers)}"
    return f"(?=(?P<{name}>{regex}))(?P={name})"


def _class(pattern: str, position: int) -> tuple[str, int]:
    """A class from behind its `[` on."""
    negated = pattern[position : position + 1] in ("!", "^")
    position += negated
    chars: set[str] = set()
    before = ""  # what a range may begin with
    first = True
    while first or pattern[position : position + 1] != "]":
        first = False
        char = pattern[position : position + 1]
        following = pattern[position + 1 : position + 2]
        if not char:
            raise _Malformed
        if char == "\\":
            if not following:
                raise _Malformed
            chars.add(following)
            before = following
            position += 2
        elif char == "-" and before and following not in ("", "]"):
            end, position = _range_end(pattern, position + 1)
            chars.update(map(chr, range(ord(before), ord(end) + 1)))
            before = ""
        elif char == "[" and following == ":" and (close := _class_name_end(pattern, position)):
            chars.update(_class_named(pattern[position + 2 : close - 1]))
            before = ""
            position = close + 1
        else:
            chars.add(char)
            before = char
            position += 1
    found = (_ALL - chars if negated else chars) - {"/"}
    inside = "".join(f"\\x{ord(char):02x}" for char in sorted(found))
    return f"[{inside}]" if inside else _NEVER, position + 1


def _range_end(pattern: str, position: int) -> tuple[str, int]:
    if pattern[position] == "\\":
        position += 1
    if position == len(pattern):
        raise _Malformed
    return pattern[position], position + 1


def _class_name_end(pattern: str, position: int) -> int | None:
    """Where the `]` of `[:name:]` is; None where it is no such name but plain characters."""
    close = pattern.find("]", position + 2)
    if close < 0:
        raise _Malformed
    return close if close > position + 2 and pattern[close - 1] == ":" else None


def _class_named(name: str) -> str:
    if name not in _CLASSES:
        raise _Malformed
    return _CLASSES[name]


def _pattern_of(rule: Rule) -> str:
    return _without_blanks(rule.text).removeprefix("!").removesuffix("/").removeprefix("/")


def _may_match_below(pattern: str, folder: str) -> bool:
    """Whether a pattern with `/` could match something below a folder; in doubt, yes."""
    parts = pattern.split("/")
    for number, name in enumerate(folder.split("/") if folder else ()):
        part = parts[number]
        if "**" in part or part.endswith("\\"):
            return True
        if number + 1 == len(parts) or not re.fullmatch(_to_regex(part, True), name, re.DOTALL):
            return False
    return True
