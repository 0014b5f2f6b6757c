"""Starting supervisord: below a keeper in a container, or in a session of its own for `local`.

Whoever starts one holds start.lock. The dispatcher that got its lock writes down which supervisord
it belongs to; one that cannot get it ends its own, so that of two only one stays.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional

import journal
import places
import processes
import records
from paths import Workspace

from runner import states

if TYPE_CHECKING:
    import subprocess

START_LIMIT_S = 15.0
RESTART_LIMIT_S = 5.0
RESTART_PAUSE_S = 0.5
_PASSED = ("HOME", "USER", "LOGNAME", "LANG", "TZ", "PATH")
_OURS = ("WORKSPACE", "PLACE", "LEASES", "WORKER_CONFIG", "VENV", "BOOT_ID", "IDLE_END_S")
HERE = os.path.dirname(os.path.abspath(__file__))


class CannotStart(Exception):
    """The worker did not come up; the text says where to look."""


class InsideRun(Exception):
    """A run must not start a worker beside the one it runs in."""


def is_up(workspace: Workspace) -> bool:
    """Whether a dispatcher has this workspace."""
    return records.is_locked(workspace.dispatcher_lock)


def ensure(workspace: Workspace, local: Optional[Dict[str, Any]]) -> None:
    """Make sure that a worker is up; start one when its runtime allows that from here.

    local: the record for a `local` worker, or None where only its container can start it. One that
    lives takes up what differs in it. Raises CannotStart, InsideRun.
    """
    if is_up(workspace):
        if local is not None and not os.environ.get("RUNNER_WORKER_CONFIG"):
            _write_config(workspace, local)
        return
    if os.environ.get("RUNNER_RUN") and not os.environ.get("RUNNER_WORKSPACE"):
        raise InsideRun()
    lock = records.wait_lock(workspace.start_lock, START_LIMIT_S)
    if lock is None:
        raise CannotStart("another start has not ended after %d s" % START_LIMIT_S)
    try:
        if local is None or os.environ.get("RUNNER_WORKER_CONFIG"):
            if not _comes_up(workspace, START_LIMIT_S, lambda: True):
                raise CannotStart("its container runs, but no dispatcher does")
            return
        _write_config(workspace, local)
        # one that lives restarts its dispatcher by itself, or is just ending
        if _comes_up(workspace, RESTART_LIMIT_S, lambda: is_supervised(workspace)):
            return
        if is_supervised(workspace):
            raise CannotStart("its dispatcher does not stay up; see %s" % workspace.log)
        child = start_detached(workspace, str(local["python"]))
        if not _comes_up(workspace, START_LIMIT_S, lambda: child.poll() is None):
            raise CannotStart("it did not come up; see %s" % _out(workspace))
    finally:
        os.close(lock)


@contextlib.contextmanager
def without_room() -> Iterator[None]:
    """Go on when a start fails for want of room on the disk: who looks, stops or removes runs can
    do without a worker, and may be just the one who makes room."""
    try:
        yield
    except OSError as error:
        if not journal.is_full(error):
            raise


def is_supervised(workspace: Workspace) -> bool:
    """Whether a supervisord of this workspace lives."""
    known = [records.read(workspace.supervisor)]
    owner = records.read(workspace.dispatcher)
    if owner:
        known.append(owner.get("supervisor"))
    return any(processes.is_alive(who) for who in known)


def start_detached(workspace: Workspace, python: str) -> "subprocess.Popen[bytes]":
    """supervisord in a session of its own, its output in a file, its environment from a short list.

    The caller holds start.lock.
    """
    child = _start(workspace, python, environment(workspace, python))
    # without room for it the dispatcher's own record tells of the two
    body = dict(processes.identity(child.pid), format=records.FORMAT)
    records.write_in_place(workspace.supervisor, body)
    return child


def keep(workspace: Workspace, python: str) -> int:
    """supervisord for as long as a container lives: its first program below tini.

    When supervisord is killed another one is started and runs go on. When it ends, or TERM comes,
    launchers that no dispatcher could stop any more are stopped here, before the container is.
    """
    held = places.keep(workspace)
    if held is None:
        journal.say("another container of this worker lives")
        return 1
    keeper = _Keeper(workspace, python)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, keeper.on_stop)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    keeper.run()
    return 0


class _Keeper:
    def __init__(self, workspace: Workspace, python: str) -> None:
        self._workspace = workspace
        self._python = python
        self._child: "Optional[subprocess.Popen[bytes]]" = None
        self._stopping = False
        self._wake, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)

    def on_stop(self, *_: Any) -> None:
        self._stopping = True
        if self._child is not None and self._child.returncode is None:
            self._child.terminate()

    def run(self) -> None:
        env = environment(self._workspace, self._python)
        while not self._stopping:
            self._child = _start(self._workspace, self._python, env, alone=False)
            if self._stopping:
                self._child.terminate()
            if self._wait_for(self._child) == 0:
                break
            time.sleep(RESTART_PAUSE_S)
        while True:
            pids = live_launchers(self._workspace)
            if not pids:
                return
            for pid in pids:
                os.kill(pid, signal.SIGTERM)
            time.sleep(RESTART_PAUSE_S)

    def _wait_for(self, child: "subprocess.Popen[bytes]") -> int:
        while child.poll() is None:
            select.select([self._wake], [], [], RESTART_PAUSE_S if self._stopping else None)
            try:
                os.read(self._wake, 4096)
            except BlockingIOError:
                pass
            if self._stopping:
                # supervisord sends TERM once; a program it has just forked may never get it
                who = records.read(self._workspace.dispatcher)
                if who and processes.is_alive(who):
                    os.kill(int(who["pid"]), signal.SIGTERM)
        return child.returncode


def live_launchers(workspace: Workspace) -> List[int]:
    """Launchers of this pid namespace that live and have not yet written their attempt's end."""
    pids = []
    for name in os.listdir(workspace.runs):
        if name.startswith("."):
            continue
        paths = workspace.run(name)
        state = records.read(paths.state)
        if not state or state.get("state") not in states.LIVE:
            continue
        folder = paths.attempt(int(state["attempt"]))
        born = records.read(os.path.join(folder, "proc.json"))
        ended = os.path.exists(os.path.join(folder, "exit.json"))
        if born and not ended and processes.is_alive(born["launcher"]):
            pids.append(int(born["launcher"]["pid"]))
    return pids


def _start(
    workspace: Workspace, python: str, env: Dict[str, str], alone: bool = True
) -> "subprocess.Popen[bytes]":
    # a request that starts no worker is answered sooner without
    import subprocess

    import sockets

    program, conf = (os.path.join(HERE, "supervisord" + end) for end in (".py", ".conf"))
    try:
        env = dict(env, RUNNER_SUPERVISOR_SOCKET=sockets.own(workspace))
    except sockets.NoFolder as error:
        raise CannotStart("no folder for its socket: %s" % error) from error
    out = records.open_log(_out(workspace))
    try:
        return subprocess.Popen(
            [python, "-I", "-B", program, "-n", "-c", conf],
            stdin=subprocess.DEVNULL,
            # in a container its words are the container's log
            stdout=out if alone else None,
            stderr=out if alone else None,
            cwd="/",
            env=env,
            start_new_session=alone,
        )
    finally:
        os.close(out)


def _out(workspace: Workspace) -> str:
    return os.path.join(workspace.own, "supervisord.out")


def environment(workspace: Workspace, python: str) -> Dict[str, str]:
    """What supervisord and its programs see: a short list, or all that a container's image says."""
    import byhand

    given = os.environ
    env = {name: given[name] for name in _PASSED if name in given}
    env.update({name: value for name, value in given.items() if name.startswith("LC_")})
    for name in _OURS:
        if "RUNNER_" + name in given:
            env["RUNNER_" + name] = given["RUNNER_" + name]
    if byhand.is_container():
        # in a container the image's variables are the job's too
        env = dict(given, **env)
    first = os.path.dirname(python)
    rest = env.get("PATH", os.defpath).split(os.pathsep)
    if "RUNNER_VENV" in env:
        # not the environment that whoever starts this one runs in: it may be an older one
        made = os.path.dirname(os.path.dirname(first)) + os.sep
        rest = [each for each in rest if not each.startswith(made)]
    env["PATH"] = os.pathsep.join([first, *rest])
    env.update(
        RUNNER_WORKSPACE=workspace.root,
        RUNNER_STATE=workspace.own,
        RUNNER_PYTHON=python if "RUNNER_VENV" in env else sys.executable or python,
        RUNNER_BUNDLE=HERE,
        **byhand.autostart(given),
    )
    return env


def _write_config(workspace: Workspace, local: Dict[str, Any]) -> None:
    before = records.read(workspace.config)
    worker = (before or {}).get("worker") or "w-" + os.urandom(6).hex()
    body = dict(local, format=records.FORMAT, worker=worker)
    if body == before:
        return
    if not records.write_in_place(workspace.config, body):
        if before is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), workspace.config)
        return  # what it was serves, too
    os.chmod(workspace.config, 0o600)
    if before is not None and before.get("gpus") != body.get("gpus"):
        # what was seen of the cards is of those it was to have before
        with contextlib.suppress(FileNotFoundError):
            os.unlink(workspace.gpus)


def _comes_up(workspace: Workspace, limit_s: float, hope: Any) -> bool:
    """Whether a dispatcher is up, waited for while there is hope."""
    deadline = time.monotonic() + limit_s
    while not is_up(workspace):
        if time.monotonic() > deadline or not hope():
            return is_up(workspace)
        time.sleep(0.02)
    return True
