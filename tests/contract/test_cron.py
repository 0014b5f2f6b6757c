"""The crontab is written only when it still is what was read; cron's bare environment."""

from __future__ import annotations

import os
import pwd
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from runner import cron
from runner.errors import Conflict, ProvisionError
from tests.helpers.wait import wait_for

STAND_IN = """#!/bin/sh
{before}
case $1 in
-l) [ -e {file} ] || {{ echo "no crontab for you" >&2; exit 1; }}; cat {file} ;;
-) cat > {file} ;;
-r) rm {file} ;;
esac
"""
LINE = b"1 * * * * ours\n"
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Puts a `crontab` on PATH that keeps a file, and the file's path."""

    def put(text: bytes | None, before: str = "") -> Path:
        file = tmp_path / "tab"
        if text is not None:
            file.write_bytes(text)
        program = tmp_path / "crontab"
        program.write_text(STAND_IN.format(file=file, before=before.replace("FILE", str(file))))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return file

    return put


def add(text: bytes) -> bytes:
    return text if LINE in text else text + LINE


def test_a_crontab_is_changed_and_an_empty_one_is_made_and_taken_away(
    make: Make, tmp_path: Path
) -> None:
    file = make(None)
    assert cron.read_crontab() is None
    cron.change_crontab(add, tmp_path / "lock")
    assert file.read_bytes() == LINE
    cron.change_crontab(lambda text: text.replace(LINE, b""), tmp_path / "lock")
    assert not file.exists()


def test_what_somebody_else_wrote_meanwhile_is_kept(make: Make, tmp_path: Path) -> None:
    # another editor adds a line between our first look and our second
    seen, did = tmp_path / "seen", tmp_path / "did"
    before = f"if [ -e {seen} ] && [ ! -e {did} ]; then echo theirs >> FILE; touch {did}; fi"
    file = make(b"a\n", f"{before}\ntouch {seen}")
    cron.change_crontab(add, tmp_path / "lock")
    assert file.read_bytes() == b"a\ntheirs\n" + LINE


def test_a_crontab_that_never_stays_the_same_is_left_alone(make: Make, tmp_path: Path) -> None:
    file = make(b"a\n", "[ $1 = -l ] && echo more >> FILE")
    with pytest.raises(Conflict, match="somebody else"):
        cron.change_crontab(add, tmp_path / "lock")
    assert LINE not in file.read_bytes() and file.read_bytes().startswith(b"a\nmore\n")


def test_a_crontab_that_cannot_be_read_is_not_taken_for_an_empty_one(
    make: Make, tmp_path: Path
) -> None:
    file = make(b"a\n", "echo 'you may not use crontab' >&2; exit 1")
    with pytest.raises(ProvisionError, match="may not use"):
        cron.change_crontab(add, tmp_path / "lock")
    assert file.read_bytes() == b"a\n"


def test_a_write_that_fails_is_told(make: Make, tmp_path: Path) -> None:
    make(b"a\n", "[ $1 = - ] && { echo 'bad minute' >&2; exit 1; }")
    with pytest.raises(ProvisionError, match="bad minute"):
        cron.change_crontab(add, tmp_path / "lock")


def test_without_the_program_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProvisionError, match="not installed"):
        cron.read_crontab()


def test_two_of_ours_at_once_lose_nothing(make: Make, tmp_path: Path) -> None:
    file = make(b"a\n")
    words = [b"%d\n" % number for number in range(4)]

    def put(word: bytes) -> None:
        cron.change_crontab(lambda text: text + word, tmp_path / "lock")

    threads = [threading.Thread(target=put, args=(word,)) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(file.read_bytes().splitlines(keepends=True)) == sorted([b"a\n", *words])


def test_cron_gives_a_home_and_little_else() -> None:
    env = cron.bare_environment(b"PATH=/opt/bin:/bin\nLOGNAME=x\nZ=1\n", "a-1")
    who = pwd.getpwuid(os.getuid())
    assert env["HOME"] == who.pw_dir and env["LOGNAME"] == who.pw_name
    assert (env["PATH"], env["SHELL"], env["Z"]) == ("/opt/bin:/bin", "/bin/sh", "1")
    assert "SSH_AUTH_SOCK" not in env


def test_a_try_has_no_terminal_and_nothing_of_this_session(tmp_path: Path) -> None:
    env = {**cron.bare_environment(b"", "a-1"), "HOME": str(tmp_path)}
    done = cron.try_bare("pwd; env | sort; tty; cat; exit 4", env)
    assert done.returncode == 4
    lines = done.stdout.decode().splitlines()
    assert lines[0] == str(tmp_path) and "not a tty" in lines
    names = {line.split("=")[0] for line in lines if "=" in line}
    assert names <= {"HOME", "LOGNAME", "USER", "SHELL", "PATH", "PWD", "XDG_RUNTIME_DIR", "_"}


DEBIAN = """#!/bin/sh
case $1 in
-l) sed 's/\\r/\\\\r/g' {file} ;;
-) cat > {file} ;;
-e) {edit} ;;
esac
"""
ODD = b"# CR\r\n0 1 * * * tr -d '\\r' \xff\r\n"


@pytest.mark.parametrize("text", [ODD, b"0 1 * * * tr -d '\\r'\n"])
def test_a_carriage_return_that_crontab_shows_as_two_letters_stays_one(
    make: Make, tmp_path: Path, text: bytes
) -> None:
    file = make(text)
    program = tmp_path / "crontab"
    program.write_text(DEBIAN.format(file=file, edit=f'sh -c "$VISUAL {file}"'))
    assert cron.read_crontab() == text
    cron.change_crontab(add, tmp_path / "lock")
    assert file.read_bytes() == text + LINE


def test_a_carriage_return_that_cannot_be_told_is_not_guessed_at(
    make: Make, tmp_path: Path
) -> None:
    file = make(ODD)
    (tmp_path / "crontab").write_text(DEBIAN.format(file=file, edit="exit 1"))
    with pytest.raises(ProvisionError, match="carriage return"):
        cron.change_crontab(add, tmp_path / "lock")
    assert file.read_bytes() == ODD
    file.write_bytes(b"0 1 * * * tr -d '\\r'\n")  # nothing that could be meant otherwise
    cron.change_crontab(add, tmp_path / "lock")
    assert file.read_bytes().endswith(LINE)


def test_a_try_that_takes_too_long_ends_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    env = {"HOME": str(tmp_path), "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
    command = f"sleep 600 & echo $! > {pids}; sleep 600 | cat"
    done = cron.try_bare(command, env, limit_s=1.0)
    assert done.returncode == 127 and done.stderr == b"it did not end within 1 s"
    pid = int(pids.read_text())
    wait_for(lambda: not _lives(pid), 10, "the end of what it started")


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
