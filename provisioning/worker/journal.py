"""Our own words in the worker's log, on stderr: said without fail, on a full disk not at all.

`print` is not for a program that lives for weeks: what it could not write stays in its buffer,
raises now or at the next word, and ends the process with a status of its own.
"""

from __future__ import annotations

import errno
import os
from typing import Dict

FULL = (errno.ENOSPC, errno.EDQUOT)
"""No room, of bytes or of inodes."""


def say(text: str) -> None:
    """One line; never raises."""
    try:
        os.write(2, (text + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        pass


def is_full(error: BaseException) -> bool:
    """Whether something failed because there is no room on the disk."""
    return isinstance(error, OSError) and error.errno in FULL


class Journal:
    """Says a trouble once, however often it comes up, until it is over."""

    def __init__(self) -> None:
        self._said: Dict[str, str] = {}

    def trouble(self, about: str, text: str) -> None:
        """What is wrong with something, unless that was the last word about it."""
        if self._said.get(about) != text:
            self._said[about] = text
            say("%s: %s" % (about, text))

    def over(self, about: str) -> None:
        """All is well with it: the same trouble would be news again."""
        self._said.pop(about, None)
