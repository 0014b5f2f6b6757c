"""A command line as bash hands it over, not yet expanded, cut into words (pure).

Bash cuts `host=gpu1` and `name:base` into three words each, and readline replaces only what stands
after the last of COMP_WORDBREAKS. So the line is cut here, and where readline's word begins is
told. Nothing is expanded: `$HOME` and `$(…)` stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_ENDS = ";|&("
"""What begins another command."""


@dataclass
class Line:
    """The words before the cursor, without quotes and backslashes."""

    words: list[str] = field(default_factory=list)
    """Complete ones; the first is the program."""
    current: str = ""
    """The word at the cursor, which may be empty."""
    begin: int = 0
    """Where in `current` readline's word begins."""
    quote: str = ""
    """The quote that is open at the cursor."""
    redirects: bool = False
    """The word at the cursor is a file of the shell's, as after `>`."""


def parse_line(text: str, breaks: str) -> Line:
    """The line up to the cursor; breaks: bash's COMP_WORDBREAKS."""
    line = Line()
    begun = False
    at = 0
    while at < len(text):
        sign = text[at]
        at += 1
        if line.quote:
            if sign == line.quote:
                line.quote = ""
                line.begin = len(line.current) if sign in breaks else line.begin
            elif sign == "\\" and line.quote == '"' and text[at : at + 1] in ("$", "`", '"', "\\"):
                line.current += text[at]
                at += 1
            else:
                line.current += sign
            continue
        if sign in "'\"":
            line.quote = sign
            line.begin = len(line.current)
            begun = True
        elif sign == "\\":
            line.current += text[at : at + 1]
            at += 1
            begun = True
        elif sign in "<>" or (sign == "&" and text[at : at + 1] == ">"):
            if line.current.isdigit():
                begun = False
            _end_word(line, begun)
            begun = False
            while text[at : at + 1] and text[at] in "<>&|":
                at += 1
            line.redirects = True
        elif sign in _ENDS:
            line = Line()
            begun = False
        elif sign.isspace():
            _end_word(line, begun)
            begun = False
        else:
            line.current += sign
            begun = True
            if sign in breaks:  # readline keeps an @, by which it would know machines
                line.begin = len(line.current) - (sign == "@")
    return line


def _end_word(line: Line, begun: bool) -> None:
    """The word at the cursor is complete, if there was one."""
    if begun and not line.redirects:
        line.words.append(line.current)
    if begun:
        line.redirects = False
    line.current = ""
    line.begin = 0
