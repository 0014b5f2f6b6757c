"""`runner __complete SHELL …`: what the shells' functions ask at each Tab (scripts.py).

    __complete bash BREAKS LINE     COMP_WORDBREAKS, and the line up to the cursor
    __complete zsh WORD…            the words after the program up to the cursor, the last as typed
    __complete fish WORD…           the same

The first line says what is meant: `words`, `open` (no space follows), `file` or `folder`, then a
blank and how many characters of the word come before the file's name, or need not be shown again.
For bash also `at`, a file after an @, whose name so far is the next line. Each further line is one
offer: for bash what replaces readline's word, quoted; for the others the word, a tab, what it is,
and for zsh another tab and `open` or nothing. Whatever goes wrong, nothing is said and nothing
written.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from runner.completing.known import Known
from runner.completing.line import parse_line
from runner.completing.offers import FILES, Answer, Offer, complete
from runner.show.screen import cut, escaped

_SAFE = re.compile(r"[A-Za-z0-9_./:@%+,=-]+")
"""What no shell reads as anything but itself."""
_WIDEST = 70
"""Columns of a description."""


def main(argv: Sequence[str]) -> int:
    """Writes the answer to stdout; never a word anywhere else."""
    gc.disable()  # a tenth of the time, and what is made lives until the end
    try:
        data = answer(argv, _here(), list(os.environ)).encode("utf-8")
        while data:
            data = data[os.write(1, data) :]
    except (Exception, KeyboardInterrupt):  # a prompt is no place for complaints
        return 1
    return 0


def answer(argv: Sequence[str], start: Path | None, environ: Iterable[str]) -> str:
    """The lines to print. start: the current folder."""
    from runner.cli import commands

    shell, *words = argv
    known = Known(start)
    if shell == "bash":
        breaks, text = words
        line = parse_line(text, breaks)
        if line.redirects or not line.words:
            return f"{FILES} 0\n"
        found = complete(commands, line.words[1:], line.current, known, environ)
        if found.files == FILES and line.current[line.begin :].startswith("@") and not line.quote:
            return f"at 0\n{line.current[found.skip :]}\n"
        return _for_bash(_sayable(found), line.begin, line.quote)
    current = words.pop()
    if shell == "fish":  # tells the word as typed, which may begin with a quote
        current = current.lstrip("'\"")
    found = complete(commands, words, current, known, environ)
    return _with_descriptions(_sayable(found), marked=shell == "zsh")


def _sayable(found: Answer) -> Answer:
    """Without words that a line cannot hold, or a terminal not show."""
    kept = [each for each in found.offers if escaped(each.text) == each.text]
    return Answer(kept, found.files, found.skip, found.hidden)


def _for_bash(found: Answer, begin: int, quote: str) -> str:
    texts = [_quoted(each.text[begin:], quote) for each in found.offers]
    return _lines(found, [text for text in texts if text])


def _quoted(text: str, quote: str) -> str:
    """What bash puts in place of its word; nothing where that would need other quotes."""
    if _SAFE.fullmatch(text):
        return text
    if quote:
        return "" if set(text) & set("'\"$`\\!") else text
    return shlex.quote(text)


def _with_descriptions(found: Answer, *, marked: bool) -> str:
    return _lines(found, [_described(each, marked) for each in found.offers])


def _described(offer: Offer, marked: bool) -> str:
    about = cut(escaped(offer.about), _WIDEST)
    return "\t".join([offer.text, about, *(["open" if offer.open else ""] if marked else [])])


def _lines(found: Answer, lines: Sequence[str]) -> str:
    is_open = bool(found.offers) and all(each.open for each in found.offers)
    kind = found.files or ("open" if is_open else "words")
    shown = found.skip if found.files else found.hidden
    return "".join(f"{line}\n" for line in (f"{kind} {shown}", *lines))


def _here() -> Path | None:
    """The current folder, if it is still there."""
    with contextlib.suppress(OSError):
        return Path.cwd()
    return None
