"""One line, five login shells, the same words."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from runner.carriers.quoting import login_shell_line

ARGVS = [
    [
        "printf",
        "%s|",
        "plain",
        "two words",
        'exec(bytes.fromhex("00"))',
        "$(id)",
        "{a,b}",
        "~",
        "*",
    ],
    ["printf", "%s|", "it's", "x!y", "!!", "^a^b", "\\", "\\'", "a\\nb", "\\\\", "#x", "%d%%"],
    ["printf", "%s|", "two\nlines", "end\n", "\t", "é", "\udcff", "", '$HOME `id` "q"', ";&|<>()"],
]


@pytest.mark.parametrize("argv", ARGVS)
@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "tcsh"])
def test_every_login_shell_makes_the_same_words_of_it(shell: str, argv: list[str]) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"left out: {shell}: not installed")
    ran = subprocess.run([path, "-c", login_shell_line(argv)], capture_output=True, check=False)
    want = b"".join(os.fsencode(word) + b"|" for word in argv[2:])
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, want, b"")


@pytest.mark.parametrize("argv", ARGVS)
def test_no_line_holds_what_some_shell_reads_in_single_quotes(argv: list[str]) -> None:
    line = login_shell_line(argv)
    assert not {"!", "\n"} & set(line) and line.isascii()
    assert "\\\\" not in line and "\\'" not in line


def test_a_line_of_harmless_words_stays_readable() -> None:
    assert login_shell_line(["docker", "ps", "-a b"]) == "exec docker ps '-a b'"


def test_no_word_can_hold_a_nul() -> None:
    with pytest.raises(ValueError, match="NUL"):
        login_shell_line(["a\0b"])
