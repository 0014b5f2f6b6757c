"""Starting a `venv` worker at boot, where its keeper asked for it: cron, or a lingering user unit.

Nothing of it is there unasked: the next contact starts the worker just as well. Cron's environment
is poor and a crontab's line is a shell's, so the line holds two quoted paths and nothing else; all
the rest is in boot.json beside the script that the line names. Of a crontab only the line with our
mark is ever written or removed, all others stay byte for byte.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
from typing import Any, Dict, List, Optional, Tuple

import plain
import records

CRON, UNIT = "cron", "unit"
_LIMIT_S = 20.0
_PASSED = ("PATH", "LANG", "TZ", "LC_ALL")
_DAEMONS = ("cron", "crond", "busybox", "dcron", "fcron", "cronie")
SCRIPT = '''\
"""Starts this worker at boot; made by the runner, and gone with it."""
import json, os, sys
own = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(own, "boot.json")) as file:
    told = json.load(file)
os.environ.update(told["env"], RUNNER_VENV=own, RUNNER_WORKSPACE=told["workspace"])
top = os.path.join(told["workspace"], ".runner", "bundles")
there = [os.path.join(top, name) for name in os.listdir(top) if len(name) == 64]
program = max(there, key=os.path.getmtime)
python = os.path.join(own, "current", "bin", "python3")
os.execv(python, [python, "-I", "-S", "-B", program, "boot"])
'''


class Cannot(Exception):
    """Nothing there starts anything at boot for this account; the text says what is missing."""


def find(own: str) -> Optional[str]:
    """What starts this worker at boot: `cron`, `unit` or None."""
    if not os.path.exists(os.path.join(own, "boot.json")):
        return None
    if os.path.exists(unit_path(own)):
        return UNIT
    text = _crontab()
    return CRON if text and any(_is_ours(line, own) for line in _lines(text)) else None


def put(own: str, workspace: str) -> Tuple[str, Optional[str]]:
    """Have this worker started at boot: (by what, what its keeper should know). Raises Cannot."""
    for sign in own:
        if sign in "\n\r\0":
            raise Cannot("the path of its home holds a line break, which no crontab can hold")
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    body = {"workspace": workspace, "env": env, "format": records.FORMAT}
    records.write(os.path.join(own, "boot.json"), body, sync=False, spare=False)
    records.write_new_bytes(os.path.join(own, "boot.py"), SCRIPT.encode())
    try:
        if shutil.which("crontab"):
            _replace(own, [cron_line(own)])
            return CRON, None if _has_daemon() else "no cron daemon runs there now"
        if _has_user_systemd():
            _enable(own)
            return UNIT, None
        raise Cannot("it has neither crontab nor a systemd that works for this account")
    except BaseException:
        _forget(own)
        raise


def remove(own: str) -> Optional[str]:
    """Have it started at boot no more: by what it was, None when it was not. Raises Cannot."""
    was = find(own)
    if was == CRON:
        _replace(own, [])
    elif was == UNIT:
        unit = os.path.basename(unit_path(own))
        _run(["systemctl", "--user", "disable", unit])
        os.unlink(unit_path(own))
        _run(["systemctl", "--user", "daemon-reload"])
    _forget(own)
    return was


def _forget(own: str) -> None:
    for name in ("boot.json", "boot.py"):
        try:
            os.unlink(os.path.join(own, name))
        except FileNotFoundError:
            pass


# cron


def mark(own: str) -> bytes:
    """What our line ends with."""
    return b"# runner " + os.fsencode(os.path.basename(own))


def cron_line(own: str) -> bytes:
    """The line that starts the worker at boot; `%` would end it for cron."""
    python = os.path.join(own, "current", "bin", "python3")
    words = [python, "-I", "-S", os.path.join(own, "boot.py")]
    command = " ".join("'%s'" % word.replace("'", "'\\''") for word in words)
    line = "@reboot %s >/dev/null 2>&1 " % command.replace("%", "\\%")
    return os.fsencode(line) + mark(own) + b"\n"


def changed(text: bytes, own: str, ours: List[bytes]) -> bytes:
    """A crontab with our line put at its end or taken out, and every other byte as it was."""
    kept = [line for line in _lines(text) if not _is_ours(line, own)]
    if ours and kept and not kept[-1].endswith(b"\n"):
        kept[-1] += b"\n"
    return b"".join(kept + ours)


def _lines(text: bytes) -> List[bytes]:
    return [line + b"\n" for line in text.split(b"\n")[:-1]] + [
        line for line in text.split(b"\n")[-1:] if line
    ]


def _is_ours(line: bytes, own: str) -> bool:
    return line.startswith(b"@reboot ") and line.rstrip(b"\n").endswith(mark(own))


def _replace(own: str, ours: List[bytes]) -> None:
    before = _crontab()
    after = changed(before or b"", own, ours)
    if after == before or (before is None and not after):
        return
    if not after:
        done = _run(["crontab", "-r"])
    else:
        done = _run(["crontab", "-"], after)
    if done.returncode:
        raise Cannot("its crontab cannot be written: %s" % _last(done.stderr))


def _crontab() -> Optional[bytes]:
    """The account's crontab; None when it has none. Raises Cannot when that cannot be told."""
    if not shutil.which("crontab"):
        return None
    done = _run(["crontab", "-l"])
    if done.returncode == 0:
        return _without_header(done.stdout)
    if b"no crontab" in done.stderr.lower() or b"can't open" in done.stderr.lower():
        return None
    raise Cannot("its crontab cannot be read: %s" % _last(done.stderr))


def _without_header(text: bytes) -> bytes:
    """Old crons show three lines of their own, and put them there once more when written."""
    lines = _lines(text)
    if len(lines) > 2 and lines[0].startswith(b"# DO NOT EDIT THIS FILE"):
        return b"".join(lines[3:])
    return text


def _has_daemon() -> bool:
    for path in glob.glob("/proc/[0-9]*/comm"):
        try:
            with open(path) as file:
                if file.read().strip() in _DAEMONS:
                    return True
        except OSError:
            continue
    return False


# systemd


def unit_path(own: str) -> str:
    """The user unit that starts this worker."""
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "systemd", "user", "runner-%s.service" % os.path.basename(own))


def unit_text(own: str) -> str:
    """The unit: what it starts leaves the unit's command and stays in its group."""
    python = os.path.join(own, "current", "bin", "python3")
    words = [python, "-I", "-S", os.path.join(own, "boot.py")]
    shown = " ".join('"%s"' % _unit_quoted(word) for word in words)
    return (
        "[Unit]\nDescription=worker of the runner\n\n"
        "[Service]\nType=oneshot\nRemainAfterExit=yes\nKillMode=process\nExecStart=%s\n\n"
        "[Install]\nWantedBy=default.target\n" % shown
    )


def _unit_quoted(word: str) -> str:
    for sign, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(sign, written)
    return word


def _has_user_systemd() -> bool:
    if not shutil.which("systemctl") or not shutil.which("loginctl"):
        return False
    return _run(["systemctl", "--user", "show-environment"]).returncode == 0


def _enable(own: str) -> None:
    path = unit_path(own)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    records.write_new_bytes(path, unit_text(own).encode())
    for argv in (
        ["loginctl", "enable-linger"],
        ["systemctl", "--user", "daemon-reload"],
        ["systemctl", "--user", "enable", os.path.basename(path)],
    ):
        done = _run(argv)
        if done.returncode:
            os.unlink(path)
            raise Cannot("%s failed: %s" % (" ".join(argv[:3]), _last(done.stderr)))


def _run(argv: List[str], data: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    env = dict(os.environ, LC_ALL="C")
    try:
        return subprocess.run(
            argv, input=data, capture_output=True, timeout=_LIMIT_S, check=False, env=env
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 1, b"", str(error).encode())


def _last(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "nothing was said"


def told(own: Optional[str]) -> Optional[str]:
    """As `find`, for those who only show it."""
    try:
        return find(own) if own and plain.is_folder(own) else None
    except (Cannot, OSError):
        return None


def answer(own: str, workspace: str, wanted: bool) -> Dict[str, Any]:
    """What the verb of this name says. Raises Cannot."""
    if not wanted:
        return {"at_boot": None, "was": remove(own), "note": None}
    by, note = put(own, workspace)
    return {"at_boot": by, "was": None, "note": note}
