"""Makes what a `venv` worker needs on its host: folders, an environment, the record of the worker.

Run by the Python that the environment is to be made from, with a request on stdin (`main`); what it
does it says line by line, and the result is the last line. Broken off anywhere and asked again it
ends well: an environment is whole once it has its mark, all else is small files that are renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

import overlay
import records
import venvs

DONE = "runner-made "
FAILED = "runner-failed "
_VENV_S = 300.0
_PIP_S = 7200.0
"""Some GB over a slow line; the user sees what is fetched and may interrupt."""
_RETRIES = 2
_FOLDER = "folder "
_LOOK_S = 1.0
_NOT_FOR_PIP = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")
_NO_INDEX = (
    "Temporary failure in name resolution",
    "Name or service not known",
    "Failed to establish a new connection",
    "ConnectTimeout",
    "Network is unreachable",
    "No route to host",
    "Connection refused",
    "Read timed out",
    "Cannot connect to proxy",
)


class Failed(Exception):
    """It could not be made: a kind, and what was said."""

    def __init__(self, kind: str, *said: str) -> None:
        super().__init__(kind)
        self.kind = kind
        self.said = said


def main(request: Dict[str, Any]) -> int:
    """{"digest", "system", "lines", "env", "key", "pin", "default", "record", "workspace", "anew"}
    → a line `runner-made {"made": bool, "path", "removed": n}` or `runner-failed {"kind", "said"}`.

    default: runs without an image of their own get this pin, and the worker itself runs in it.
    Without a digest only what nobody uses is removed, unless somebody makes one just now.
    """
    os.umask(0o077)
    try:
        body = _make(request) if request.get("digest") else {"removed": _tidy()}
        print(DONE + json.dumps(body), flush=True)
        return 0
    except Failed as error:
        body = {"kind": error.kind, "said": list(error.said)}
    except OSError as error:
        body = {"kind": "os", "said": [str(error)]}
    print(FAILED + json.dumps(body), flush=True)
    return 1


def state_folder() -> str:
    """The runner's own folder in the account's home."""
    return os.path.join(os.path.expanduser("~"), ".local", "state", "runner")


def made_lines(state: str) -> List[str]:
    """What was made there for the account's workers, as provisioning notes it, a line each."""
    try:
        with open(os.path.join(state, "made"), encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []


def _note(state: str, line: str) -> None:
    if line not in made_lines(state):
        with open(
            os.path.join(state, "made"), "a", encoding="utf-8", errors="surrogateescape"
        ) as file:
            file.write(line + "\n")


def _make_folder(state: str, path: str) -> None:
    """A folder of the owner's alone; what was not there before is noted before it is made."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    noted = os.path.isdir(state)
    for each in reversed(missing):
        if noted:
            _note(state, "folder " + each)
        os.makedirs(each, mode=0o700, exist_ok=True)
    if not noted:
        for each in missing:
            _note(state, "folder " + each)


def _own(state: str, path: str) -> None:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode != 0o700:
        if "folder " + path not in made_lines(state):
            _note(state, "mode %o %s" % (mode, path))
        os.chmod(path, 0o700)


def _make(request: Dict[str, Any]) -> Dict[str, Any]:
    state = state_folder()
    own = os.path.join(state, "workers", request["key"])
    _make_workspace(state, request["workspace"])
    _make_folder(state, os.path.join(state, "leases"))
    _own(state, os.path.join(state, "leases"))
    os.makedirs(os.path.join(own, "pins"), exist_ok=True)
    with venvs.locked(state) as alone:
        if not alone:
            raise Failed("busy")
        there = None if request["anew"] else venvs.whole_of(state, request["digest"])
        new = there is None
        path = there or os.path.join(state, "venvs", request["digest"])
        if there is None:
            if request["anew"] or os.path.lexists(os.path.join(path, venvs.MARK)):
                # the one that is there may be in use
                path += "-" + os.urandom(4).hex()
            _make_environment(path, request)
        _write_record(own, request)
        _point(os.path.join(own, "pins", request["pin"]), path)
        if request["default"] or venvs.find(own, "current") is None:
            _point(os.path.join(own, "current"), path)
        gone = _remove_unused(state)
    return {"made": new, "path": path, "removed": gone}


def _tidy() -> int:
    state = state_folder()
    with venvs.locked(state, 0) as alone:
        return _remove_unused(state) if alone else 0


def _remove_unused(state: str) -> int:
    return sum(venvs.remove(each) for each in venvs.unused(state))


def _make_workspace(state: str, path: str) -> None:
    """Before anything else: where it cannot be, nothing is left. Raises Failed."""
    was_there, before = os.path.isdir(state), made_lines(state)
    try:
        for each in (state, path):
            _make_folder(state, each)
            _own(state, each)
    except OSError as error:
        new = [line[7:] for line in made_lines(state) if line not in before and line[:7] == _FOLDER]
        if was_there:
            text = "".join(line + "\n" for line in before)
            data = text.encode("utf-8", "surrogateescape")
            records.write_new_bytes(os.path.join(state, "made"), data)
        else:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(state, "made"))
        for each in sorted(new, reverse=True):
            with contextlib.suppress(OSError):
                os.rmdir(each)
        text = "%s: %s" % (error.filename or path, error.strerror or error)
        raise Failed("workspace", path, text) from error


def _make_environment(path: str, request: Dict[str, Any]) -> None:
    """In its own place, since programs in it name that; whole only once it has its mark.

    Broken off it leaves nothing; killed, nothing that is not in that folder.
    """
    if os.path.lexists(path):
        venvs.remove(path)
    try:
        os.makedirs(os.path.join(path, "tmp"))
        _fill(path, request)
    except BaseException:
        venvs.remove(path)
        raise


def _fill(path: str, request: Dict[str, Any]) -> None:
    temporary = os.path.join(path, "tmp")
    env = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_PIP}
    env.update({str(name): str(value) for name, value in request["env"].items()})
    env.update(PIP_USER="0", PIP_NO_INPUT="1", PIP_DISABLE_PIP_VERSION_CHECK="1", TMPDIR=temporary)
    _say("making the environment with %s" % sys.executable)
    options = ["--system-site-packages"] if request["system"] else []
    status, said = _run([sys.executable, "-I", "-m", "venv", *options, path], env, _VENV_S)
    if status:
        raise Failed("venv", *([overlay.ended_by(status)] if status < 0 else said[-3:]))
    python = venvs.python_of(path)
    listed = os.path.join(path, "requirements.txt")
    with open(listed, "w", encoding="utf-8") as file:
        file.write("".join(line + "\n" for line in request["lines"]))
    pip = [python, "-I", "-m", "pip", "install", "--no-cache-dir", "--retries", str(_RETRIES)]
    status, said = _run([*pip, "--progress-bar", "off", "-r", listed], env, _PIP_S)
    if status < 0:
        raise Failed("pip", "pip " + overlay.ended_by(status))
    if status:
        raise _pip_failure(said)
    shutil.rmtree(temporary, ignore_errors=True)
    body = {"format": records.FORMAT, "python": "%d.%d.%d" % sys.version_info[:3]}
    records.write(os.path.join(path, venvs.MARK), dict(body, lines=request["lines"]), spare=False)


def _pip_failure(said: List[str]) -> Failed:
    errors = [line for line in said if line.startswith("ERROR: ")] or said[-2:]
    whole = "\n".join(said)
    if "No space left" in whole or "Disk quota exceeded" in whole:
        return Failed("no-space", *errors[-1:])
    crash = overlay.crash(whole)
    errors = [crash] if crash else errors
    reached = not any(sign in whole for sign in _NO_INDEX)
    for line in errors:
        if "No matching distribution found" in line and reached:
            return Failed("no-package", line.rpartition(" for ")[2])
    return Failed("pip" if reached else "no-index", *errors[:1])


def _run(argv: List[str], env: Dict[str, str], limit_s: float) -> "tuple[int, List[str]]":
    """(status, the last of what it said); its words are passed on as they come.

    It ends with its time, and with whoever asked for it. Raises Failed for the first.
    """
    child = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        cwd="/",
        start_new_session=True,
    )
    assert child.stdout is not None
    said: List[str] = []
    deadline = time.monotonic() + limit_s
    rest = b""
    try:
        while True:
            if not select.select([child.stdout], [], [], _LOOK_S)[0]:
                if time.monotonic() > deadline:
                    raise Failed("slow", "%s took more than %d s" % (argv[3], limit_s))
                if _is_left():
                    raise Failed("left")
                continue
            piece = os.read(child.stdout.fileno(), 65536)
            if not piece:
                return child.wait(), said + [rest.decode("utf-8", "replace")] * bool(rest)
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                text = line.decode("utf-8", "replace").rstrip()
                said = [*said[-200:], text]
                _say(text)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        child.stdout.close()


def _is_left() -> bool:
    """Whether nobody reads our words any more."""
    poll = select.poll()
    poll.register(1, select.POLLERR)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _say(text: str) -> None:
    print(text, flush=True)


def _write_record(own: str, request: Dict[str, Any]) -> None:
    path = os.path.join(own, "worker.json")
    known = records.read(path)
    body = dict(request["record"], format=records.FORMAT)
    if known is not None and not request["default"]:
        body["image"] = known.get("image", body["image"])
    if body != known:
        records.write_new_bytes(path, json.dumps(body).encode("ascii"), 0o600)


def _point(link: str, path: str) -> None:
    """Let a link lead there, from one moment to the next."""
    if os.path.islink(link) and os.path.realpath(link) == os.path.realpath(path):
        return
    new: Optional[str] = "%s.tmp%d" % (link, os.getpid())
    os.symlink(os.path.relpath(path, os.path.dirname(link)), str(new))
    os.rename(str(new), link)
