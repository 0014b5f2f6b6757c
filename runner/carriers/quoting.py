"""One command line out of an argv, the same for every login shell (pure).

sshd hands the command to the account's login shell: sh, bash, zsh, fish or tcsh. They agree on
very little: within single quotes fish reads `\\\\` and `\\'`, tcsh reads `!` and ends at a newline.
So words with only harmless characters are put in single quotes, and anything else is sent as octal
numbers that a POSIX sh, which every host has, turns back.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

_PLAIN = re.compile(r"[A-Za-z0-9_@%+:,./-]+")
_HARMLESS_IN_QUOTES = re.compile(r"[ -~]*")
_HARMFUL = frozenset("'\\!")


def login_shell_line(argv: Sequence[str]) -> str:
    """The line to give to a login shell so that it becomes exactly `argv`."""
    return "exec " + plain_line(argv)


def plain_line(argv: Sequence[str]) -> str:
    """The same without `exec`, which ssh itself puts in front of a ProxyCommand."""
    if any("\0" in word for word in argv):
        raise ValueError("a word of a command cannot hold a NUL")
    if all(_HARMLESS_IN_QUOTES.fullmatch(word) and not _HARMFUL & set(word) for word in argv):
        return " ".join(word if _PLAIN.fullmatch(word) else f"'{word}'" for word in argv)
    script = "exec " + " ".join(shlex.quote(word) for word in argv)
    # $(…) drops newlines at the end; there are none, a word's own are within quotes.
    return f"""sh -c 'eval "$(printf %b "{_octal(script)}")"'"""


def _octal(text: str) -> str:
    return "".join(
        chr(byte) if _PLAIN.fullmatch(chr(byte)) or byte == 0x20 else f"\\0{byte:03o}"
        for byte in os.fsencode(text)
    )
