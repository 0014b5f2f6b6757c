"""The commands that the documentation shows, as they are typed (pure).

A block of code whose lines begin with `$ ` is a session: these lines are typed, the others are what
is answered. In another block each line that begins with a command is typed. Code within a sentence
is a mention: it may leave things out (`…`) and name them by capitals.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ("runner", "make")
SHELLS = ("", "console", "sh", "shell", "bash")
ID = re.compile(r"\b((?:[a-z_]+|cmd)-[0-9][0-9a-z]{4}|[a-z_]+-[a-z][0-9a-z]{4})(\.[0-9]+)?\b")
ANY_RUN = "ppo-4qnz3"
_FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(\w*)")


@dataclass(frozen=True)
class Command:
    """One command of a page."""

    page: str
    line: int
    words: tuple[str, ...]
    """The argv, the program first; what a shell would do with its output is left out."""
    answer: tuple[str, ...] = ()
    """The lines that the page shows below it."""

    @property
    def text(self) -> str:
        """As it is typed."""
        return shlex.join(self.words)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Block:
    """A block of code and where it begins."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]


def pages() -> list[Path]:
    """README, what contributors read, and all of docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: str, text: str) -> Iterator[Block]:
    """Every fenced block."""
    inside: list[str] | None = None
    fence, indent, language, began = "", "", "", 0
    for number, line in enumerate(text.split("\n"), 1):
        match = _FENCE.match(line)
        if inside is None and match:
            indent, fence, language = match[1], match[2], match[3]
            inside, began = [], number + 1
        elif inside is not None and match and match[2].startswith(fence) and not match[3]:
            yield Block(page, began, language, tuple(inside))
            inside = None
        elif inside is not None:
            inside.append(line.removeprefix(indent))


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Lines that stand in no block, with their numbers."""
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def typed(page: str, text: str) -> list[Command]:
    """Every command that stands in a block of code, in order."""
    found: list[Command] = []
    for block in blocks(page, text):
        if block.language in SHELLS:
            found += _typed_in(block)
    return found


def _typed_in(block: Block) -> list[Command]:
    is_session = any(line.startswith("$ ") for line in block.lines)
    found: list[Command] = []
    answers: dict[int, list[str]] = {}
    number = 0
    while number < len(block.lines):
        line, at = block.lines[number], block.line + number
        number += 1
        begins = line.startswith("$ ") if is_session else line.split(" ")[0] in PROGRAMS
        if not begins and not (not is_session and _is_shell(line)):
            if is_session and found:
                answers.setdefault(len(found) - 1, []).append(line)
            continue
        text = line.removeprefix("$ ")
        while text.endswith("\\") and number < len(block.lines):
            text = text[:-1] + " " + block.lines[number].strip()
            number += 1
        found += [Command(block.page, at, words) for words in commands_of(text)]
    return [
        Command(each.page, each.line, each.words, tuple(answers.get(index, ())))
        for index, each in enumerate(found)
    ]


def _is_shell(line: str) -> bool:
    """Whether a line holds a command of ours behind something else: `cd x && runner init`."""
    return re.search(r"(&&|;|\|) *(runner|make) ", line) is not None


def commands_of(text: str) -> list[tuple[str, ...]]:
    """The argvs of our programs in a line for a shell; comments, pipes and redirections go."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    found: list[tuple[str, ...]] = []
    words: list[str] = []
    skip = False
    for word in [*lexer, ";"]:
        if set(word) <= set("();<>|&"):
            if ">" in word or "<" in word:
                skip = True  # its file
                continue
            while words and re.fullmatch(r"[A-Z_][A-Z0-9_]*=.*", words[0]):
                words.pop(0)
            if word == "(" and words[-1:] == ["$"]:
                words[-1] = ANY_RUN  # what another command prints
            if words and words[0] in PROGRAMS:
                found.append(tuple(words))
            words = []
        elif skip:
            skip = False
        else:
            words.append(word)
    return found


def mentions(page: str, text: str) -> list[Command]:
    """Commands within sentences and tables, as far as they are words: `runner pull --watch`."""
    found = []
    for number, line in sentences(text):
        for code in re.findall(r"`((?:runner|make) [^`]+)`", line):
            alone = re.split(r" \\?\| ", code)[0]
            plain = re.sub(r"\\\||[\[\]…]", " ", alone)
            try:
                words = shlex.split(plain)
            except ValueError:
                words = plain.split()
            found.append(Command(page, number, tuple(words)))
    return found
