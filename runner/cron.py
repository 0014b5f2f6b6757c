"""The user's crontab and cron itself: the only place that runs `crontab`.

A crontab is written only when it still is what was read, and read again after. Between that last
look and the write lie a few milliseconds that no program can close: `crontab` has no compare.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from runner.errors import Conflict, ProvisionError
from runner.schedule.crontab import settings, without_header

_LIMIT_S = 20.0
TRY_LIMIT_S = 180.0
_TRIES = 3
_DAEMONS = ("cron", "crond", "busybox", "dcron", "fcron", "cronie", "anacron", "systemd-cron")
_RETURN = b"\\r"
SHELL, PATH = "/bin/sh", "/usr/bin:/bin"


def read_crontab() -> bytes | None:
    """The account's crontab; None when it has none. Raises ProvisionError."""
    if shutil.which("crontab") is None:
        raise ProvisionError(
            "crontab is not installed here; schedules fire by it", "install cron, or cronie"
        )
    done = _run(["crontab", "-l"])
    if done.returncode == 0:
        return _as_it_is(without_header(done.stdout))
    said = done.stderr.lower()
    if b"no crontab" in said or b"can't open" in said:
        return None
    raise ProvisionError(f"your crontab cannot be read: {_last(done.stderr)}")


def _as_it_is(shown: bytes) -> bytes:
    """The text that `crontab -l` shows; Debian's shows a carriage return as two letters.

    What it hands to an editor is true. Raises ProvisionError where it cannot be told.
    """
    if _RETURN not in shown:
        return shown
    with tempfile.TemporaryDirectory(prefix="runner-crontab-") as folder:
        out, editor = Path(folder) / "out", Path(folder) / "editor"
        editor.write_text(f'#!/bin/sh\nexec cat "$1" >{shlex.quote(str(out))}\n')
        editor.chmod(0o700)
        _run(["crontab", "-e"], EDITOR=str(editor), VISUAL=str(editor))
        true = without_header(out.read_bytes()) if out.exists() else b""
    if true.replace(b"\r", _RETURN) == shown:
        return true
    if _RETURN + b"\n" in shown:
        raise ProvisionError(
            "your crontab has lines that end with a carriage return, which crontab does not tell",
            "take these out first, and nothing else: crontab -e",
        )
    return shown


def change_crontab(change: Callable[[bytes], bytes], lock: Path) -> bytes:
    """The crontab as it was, once it is as `change` makes it of what it is.

    lock: a file for which all of us wait here. Raises ProvisionError, and Conflict when somebody
    else kept changing it.
    """
    with _locked(lock):
        for _ in range(_TRIES):
            before = read_crontab()
            after = change(before or b"")
            if after == (before or b""):
                return before or b""
            if read_crontab() == before:
                _write(after)
                if (read_crontab() or b"") == after:
                    return before or b""
        raise Conflict("somebody else changes your crontab just now; nothing of it was lost")


def _write(text: bytes) -> None:
    done = _run(["crontab", "-"], text) if text else _run(["crontab", "-r"])
    if done.returncode:
        raise ProvisionError(f"your crontab cannot be written: {_last(done.stderr)}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def bare_environment(crontab: bytes, key: str) -> dict[str, str]:
    """What cron gives to a line of ours: its own few variables, then those set above the line."""
    who = pwd.getpwuid(os.getuid())
    given = {"HOME": who.pw_dir, "LOGNAME": who.pw_name, "USER": who.pw_name}
    env = {**given, "SHELL": SHELL, "PATH": PATH, **settings(crontab, key)}
    return {**env, "LOGNAME": who.pw_name}


def try_bare(
    command: str, env: Mapping[str, str], limit_s: float = TRY_LIMIT_S
) -> subprocess.CompletedProcess[bytes]:
    """Run a command as cron does: its shell, its home, no terminal, nothing of ours.

    A connection that this session shares would hide that cron has no agent: it is not found.
    """
    with tempfile.TemporaryDirectory(prefix="runner-try-") as runtime:
        home = env["HOME"]
        try:
            child = subprocess.Popen(
                [env["SHELL"], "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**env, "XDG_RUNTIME_DIR": runtime},
                cwd=home if os.path.isdir(home) else "/",
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # a NUL in what the crontab sets
            return subprocess.CompletedProcess(command, 127, b"", str(error).encode())
        try:
            out, said = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            text = f"it did not end within {limit_s:g} s"
            return subprocess.CompletedProcess(command, 127, b"", text.encode())
        finally:
            if child.poll() is None:  # what the shell started is in its group, and goes with it
                os.killpg(child.pid, signal.SIGKILL)
                child.communicate()
        return subprocess.CompletedProcess(command, child.returncode, out, said)


def has_daemon() -> bool:
    """Whether something runs here that reads crontabs."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() in _DAEMONS:
                return True
    return False


def _run(argv: list[str], data: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            argv,
            input=data,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
            env={**os.environ, "LC_ALL": "C", **env},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(argv, 1, b"", str(error).encode())


def _last(said: bytes) -> str:
    lines = said.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "nothing was said"


def machine_zone() -> str:
    """The name of this machine's zone, by which cron goes; empty where it has none."""
    named = os.environ.get("TZ", "").lstrip(":")
    if named and not named.startswith("/"):
        return named
    path = os.path.realpath(named or "/etc/localtime")
    _, sign, name = path.partition("/zoneinfo/")
    return name if sign else ""
