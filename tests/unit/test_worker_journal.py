from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import journal
import pytest


def test_a_word_that_cannot_be_said_ends_nothing() -> None:
    """On a device that is always full, as a log on a full disk is."""
    code = "import journal, sys; journal.say('x' * 100); sys.exit(7)"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], env=_env(), stderr=full, check=False)
    assert done.returncode == 7


def test_the_same_trouble_is_said_once_until_it_is_over(capfd: pytest.CaptureFixture[str]) -> None:
    book = journal.Journal()
    for _ in range(3):
        book.trouble("a", "no room")
        book.trouble("b", "no room")
    book.trouble("a", "gone")
    book.over("b")
    book.over("never")
    book.trouble("b", "no room\udcff")
    said = capfd.readouterr().err.splitlines()
    assert said == ["a: no room", "b: no room", "a: gone", "b: no room\\udcff"]


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (OSError(errno.ENOSPC, ""), True),
        (OSError(errno.EDQUOT, ""), True),
        (OSError(errno.EIO, ""), False),
        (ValueError(errno.ENOSPC), False),
    ],
)
def test_no_room_is_no_other_trouble(error: Exception, full: bool) -> None:
    assert journal.is_full(error) is full


def _env() -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=str(Path(journal.__file__).parent))
