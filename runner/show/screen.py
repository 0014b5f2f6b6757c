"""What a terminal may be shown, and how wide it is there (pure).

Everything a host or a job said is escaped: control, bidirectional and invisible characters never
reach the screen as such. Columns are aligned by the width characters take there, not by count.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Iterable, Sequence

COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "dim": "2", "bold": "1"}
# Letters and marks that draw nothing; everything else that is invisible is not printable.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_GAP = "  "


def escaped(text: str) -> str:
    """The text on one line, with everything that could play with a terminal written out."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    code = ord(char)
    if char.isprintable() and char not in _INVISIBLE and not 0xFE00 <= code <= 0xFE0F:
        return char
    if unicodedata.category(char) == "Zs":
        return " "
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was no UTF-8 (surrogateescape)
        return f"\\x{code - 0xDC00:02x}"
    if char == "\n":
        return "\\n"
    if char == "\t":
        return "\\t"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width(text: str) -> int:
    """Columns the (escaped) text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def cut(text: str, columns: int) -> str:
    """The text in at most `columns`, its end replaced by `…` where it is longer."""
    if width(text) <= columns:
        return text
    taken: list[str] = []
    left = columns - 1
    for char in text:
        left -= _columns(char)
        if left < 0:
            break
        taken.append(char)
    return "".join(taken).rstrip() + "…" if columns > 0 else ""


def padded(text: str, columns: int, *, right: bool = False) -> str:
    """The text filled up with blanks to `columns`."""
    blanks = " " * max(0, columns - width(text))
    return blanks + text if right else text + blanks


class Paint:
    """Colours words, or leaves them plain."""

    def __init__(self, on: bool = False) -> None:
        self.on = on

    def __call__(self, text: str, colour: str | None) -> str:
        if not self.on or colour is None or not text:
            return text
        return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m"


Cell = tuple[str, str | None]
"""A text and its colour."""


def table(
    rows: Sequence[Sequence[str | Cell]],
    *,
    right: Iterable[int] = (),
    columns: int | None = None,
    paint: Paint | None = None,
) -> list[str]:
    """Lines of aligned columns, two blanks apart.

    `right` names the columns of numbers; `columns` is the terminal's width, at which the last
    column is cut, or None where nothing is. Cells are escaped here. Columns without a text vanish.
    """
    cells = [[_cell(item) for item in row] for row in rows]
    count = max((len(row) for row in cells), default=0)
    widths = [
        max((width(row[i][0]) for row in cells if i < len(row)), default=0) for i in range(count)
    ]
    return [_line(row, widths, frozenset(right), columns, paint or Paint()) for row in cells]


def _cell(item: str | Cell) -> Cell:
    text, colour = item if isinstance(item, tuple) else (item, None)
    return escaped(text), colour


def _line(
    row: Sequence[Cell],
    widths: Sequence[int],
    right: frozenset[int],
    columns: int | None,
    paint: Paint,
) -> str:
    line, used = "", 0
    last = max((i for i, (text, _) in enumerate(row) if text), default=-1)
    for i, (text, colour) in enumerate(row[: last + 1]):
        if not widths[i]:
            continue
        gap = _GAP if used else ""
        filled = padded(text, widths[i], right=i in right)
        if i == last:
            filled = filled.rstrip()
        used += len(gap) + width(filled)
        if columns is not None and used > columns:
            room = columns - (used - width(filled))
            filled = cut(filled, room) if room > 0 else ""
            line += gap + paint(filled, colour)
            break
        line += gap + paint(filled, colour)
    return line.rstrip()


_SGR = re.compile(r"\x1b\[([0-9;:]*)m")
_ERASE_LINE = re.compile(r"\x1b\[[0-2]?K")
_DRAWS_NOTHING = re.compile(r"\x1b\[[0-9;:]*[mK]")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:]*)?\Z")
_LONGEST = 64
"""Characters of an unfinished sequence that are waited for; no colour needs more."""


class TailFilter:
    """Passes a job's bytes to a terminal: text, colours, CR, TAB, LF, erase-line.

    All else is escaped. Sequences and UTF-8 characters may be cut anywhere between two calls.
    """

    def __init__(self, *, colours: bool = True) -> None:
        self._colours = colours
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._held = ""
        self._coloured = False
        self.is_inside_line = False
        """Whether the cursor may be behind something shown."""

    def feed(self, data: bytes) -> str:
        """What may be shown so far."""
        text = self._pass(self._held + self._decoder.decode(data), final=False)
        self._look_at_end(text)
        return text

    def finish(self) -> str:
        """The rest, and the end of any colour left on."""
        text = self._pass(self._held + self._decoder.decode(b"", True), final=True)
        self._look_at_end(text)
        return text + "\x1b[0m" if self._coloured else text

    def _look_at_end(self, text: str) -> None:
        drawn = _DRAWS_NOTHING.sub("", text[-_LONGEST:])
        if drawn:
            self.is_inside_line = not drawn.endswith("\n")

    def _pass(self, text: str, *, final: bool) -> str:
        self._held = ""
        if not final:
            unfinished = _UNFINISHED.search(text)
            if unfinished and len(unfinished[0]) < _LONGEST:
                self._held = unfinished[0]
                text = text[: unfinished.start()]
        if text.isascii() and text.replace("\n", "").isprintable():
            return text
        return "".join(self._pieces(text))

    def _pieces(self, text: str) -> Iterable[str]:
        position = 0
        while position < len(text):
            char = text[position]
            if char == "\x1b":
                length, shown = self._sequence(text, position)
                yield shown
                position += length
                continue
            yield char if char in "\r\n\t" else _shown(char)
            position += 1

    def _sequence(self, text: str, position: int) -> tuple[int, str]:
        """How much of the text at an escape character is one piece, and what is shown for it."""
        match = _SGR.match(text, position)
        if match and not _conceals(match[1]):
            self._coloured = self._colours and match[1].strip("0;") != ""
            return len(match[0]), match[0] if self._colours else ""
        match = _ERASE_LINE.match(text, position)
        return (len(match[0]), match[0]) if match else (1, "\\x1b")


def _conceals(parameters: str) -> bool:
    """Whether a colour sequence hides the text after it (8), outside of a colour's own numbers."""
    numbers = [part.lstrip("0") for part in parameters.split(";")]
    position = 0
    while position < len(numbers):
        if numbers[position].split(":")[0] == "8":
            return True
        # `38:5:N` has its numbers with it; nothing behind it is one of them
        if numbers[position] in ("38", "48", "58") and position + 1 < len(numbers):
            position += {"5": 2, "2": 4}.get(numbers[position + 1], 0)
        position += 1
    return False
