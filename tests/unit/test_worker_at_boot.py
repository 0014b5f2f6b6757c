"""The line of a crontab, the unit, and what is left alone of the others' lines."""

from __future__ import annotations

import shlex

import at_boot
import pytest

OWN = "/home/it's 50% odd/.local/state/runner/workers/venv-0a1b2c3d"
OTHERS = [
    b"",
    b"0 0 * * * true\n",
    b"# a\n\n@reboot echo  '%'\t# runner venv-99999999\n",
    b"0 0 * * * true   # no end",
    b"\xff\xfe\r\n\n\n",
]


@pytest.mark.parametrize("others", OTHERS)
def test_others_lines_stay_byte_for_byte(others: bytes) -> None:
    line = at_boot.cron_line(OWN)
    put = at_boot.changed(others, OWN, [line])
    assert put.startswith(others) and put.endswith(line)
    assert at_boot.changed(put, OWN, [line]) == put
    taken = at_boot.changed(put, OWN, [])
    assert taken == (others if not others or others.endswith(b"\n") else others + b"\n")


def test_a_line_of_ours_in_the_midst_goes_alone() -> None:
    line = at_boot.cron_line(OWN)
    assert at_boot.changed(b"a\n" + line + b"b", OWN, []) == b"a\nb"
    assert at_boot.changed(b"a\n" + line + b"b\n", OWN, [line]) == b"a\nb\n" + line


def test_the_line_is_two_quoted_paths_for_sh_and_no_percent_for_cron() -> None:
    line = at_boot.cron_line(OWN).decode()
    assert line.count("\n") == 1 and "%" not in line.replace("\\%", "")
    command = line.removeprefix("@reboot ").replace("\\%", "%")
    words = shlex.split(command, comments=True)
    python = f"{OWN}/current/bin/python3"
    assert words == [python, "-I", "-S", f"{OWN}/boot.py", ">/dev/null", "2>&1"]


def test_a_path_that_no_crontab_can_hold_is_refused() -> None:
    with pytest.raises(at_boot.Cannot, match="line break"):
        at_boot.put("/home/two\nlines/venv-1", "/ws")


def test_the_unit_quotes_for_systemd() -> None:
    text = at_boot.unit_text('/h/a"b\\c$d%e/venv-1')
    assert 'ExecStart="/h/a\\"b\\\\c$$d%%e/venv-1/current/bin/python3" "-I" "-S" "' in text
    assert "KillMode=process" in text and "RemainAfterExit=yes" in text
