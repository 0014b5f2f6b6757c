"""The services of a worker: programs of supervisord that nobody starts unasked.

    sshd          only in an image run by hand; else `sshd -i` serves each session (sshd.py)
    jupyter       Jupyter Lab; a token stands between it and whoever reaches it
    tensorboard   the workspace's logs

supervisord starts `FOLDER service NAME`, which becomes the real program; so no text of a user's
stands in its ini file. Jupyter and TensorBoard listen on sockets in a folder of the owner's alone
(sockets.py): no port is open, whatever the network of the place.

An image run by hand says in RUNNER_SERVICES what is to run, and in RUNNER_LISTEN the address that
they listen on then, with the ports of byhand.py. Without a key no sshd starts there, without a
token no Jupyter.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
from typing import Any, Dict, List, NoReturn, Optional

import byhand
import config
import plain
import records
import sockets
import supervisor
import venvs
from paths import Workspace

ASKED_FOR = ("jupyter", "tensorboard")
"""Those that a verb starts."""
MODULES = {"jupyter": "jupyterlab", "tensorboard": "tensorboard"}
TITLES = {"jupyter": "Jupyter Lab", "tensorboard": "TensorBoard", "sshd": "sshd"}
CANNOT_START = 4
_PR_SET_PDEATHSIG = 1
_NOT_FOR_SESSIONS = ("SUPERVISOR_", "RUNNER_")
_LOG_PIECE = 8192
_MOST_LOG = 1 << 20


class CannotServe(Exception):
    """A service cannot start; the text says why and what helps."""


def main(workspace: Workspace, name: str = "") -> int:
    """Becomes the service; CANNOT_START and one line on stderr where it cannot."""
    try:
        if name not in byhand.SERVICES:
            raise CannotServe("no such service")
        _open_log(workspace, name)
        become(workspace, name)
    except (CannotServe, OSError) as error:
        print("%s: %s" % (TITLES.get(name, name), error), file=sys.stderr, flush=True)
        return CANNOT_START


def become(workspace: Workspace, name: str) -> NoReturn:
    """This process is the service from here on. Raises CannotServe, OSError."""
    _end_with_parent()
    why = missing(name, job_python(workspace))
    if why is not None:
        raise CannotServe(why)
    argv, env = command(workspace, name)
    os.chdir(workspace.root)
    os.execve(argv[0], argv, env)


def command(workspace: Workspace, name: str) -> Any:
    """(argv, environment) of a service. Raises CannotServe, OSError."""
    env = environment(workspace)
    if name == "sshd":
        import sshd

        return sshd.command_by_hand(
            workspace, env, byhand.listen_address(), byhand.PORTS[name]
        ), env
    python = job_python(workspace)
    if name == "jupyter":
        return jupyter(workspace, env, name, python, workspace.root)
    return _tensorboard(workspace, python), env


def jupyter(workspace: Workspace, env: Dict[str, str], name: str, python: str, folder: str) -> Any:
    """(argv, environment) of a Jupyter Lab that shows a folder, on the socket of that name."""
    runtime = os.path.join(sockets.make(workspace), name)
    os.makedirs(runtime, mode=0o700, exist_ok=True)
    token_file = make_token(workspace)
    env = dict(env, JUPYTER_TOKEN_FILE=token_file, JUPYTER_RUNTIME_DIR=runtime)
    argv = [python, "-m", "jupyterlab", "--no-browser", "--ServerApp.root_dir=" + folder]
    # a password of an old configuration would stand beside the token
    argv += ["--PasswordIdentityProvider.hashed_password=", "--ServerApp.password="]
    argv += ["--ServerApp.allow_password_change=False", "--LabApp.news_url=None"]
    argv += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    if os.getuid() == 0:
        argv.append("--allow-root")
    address = byhand.listen_address()
    if address is None:
        return [*argv, "--ServerApp.sock=" + _fresh(workspace, name)], env
    port = byhand.PORTS["jupyter"]
    told = "Jupyter Lab: http://%s:%d/lab; its token is in %s" % (address, port, token_file)
    print(told, file=sys.stderr, flush=True)
    argv += ["--ServerApp.ip=" + address, "--ServerApp.port=%d" % port]
    return [*argv, "--ServerApp.port_retries=0", "--ServerApp.allow_remote_access=True"], env


def _tensorboard(workspace: Workspace, python: str) -> List[str]:
    logs = os.path.join(workspace.root, "logs")
    program = os.path.join(supervisor.HERE, "tensorboard_main.py")
    if byhand.listen_address() is None:
        return [python, "-I", "-B", program, _fresh(workspace, "tensorboard"), logs]
    # it asks for no key and no token, so it is never opened beyond loopback
    argv = [python, "-m", "tensorboard.main", "--logdir", logs, "--host", "127.0.0.1"]
    return [*argv, "--port", str(byhand.PORTS["tensorboard"])]


def _fresh(workspace: Workspace, name: str) -> str:
    """The path for a service's socket, without what an earlier one left there."""
    path = sockets.find(workspace, name)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    return path


def environment(workspace: Workspace, told: Optional[Dict[str, Any]] = None) -> Dict[str, str]:
    """What a service or session sees: as a job does, but none of our variables and no GPU.

    told: the record of a worker that may never have been started, as its client sends it.
    """
    python = str((told or {}).get("python") or job_python(workspace))
    env = {
        name: value
        for name, value in supervisor.environment(workspace, python).items()
        if not name.startswith(_NOT_FOR_SESSIONS)
    }
    given = told.get("env") if told else config.read(workspace).env
    env.update({str(name): str(value) for name, value in (given or {}).items()})
    if not any("UTF-8" in env.get(n, "").upper() for n in ("LC_ALL", "LC_CTYPE", "LANG")):
        env["LC_ALL"] = "C.UTF-8"
    env["HOME"] = workspace.home
    if not byhand.is_so():
        env.update(CUDA_VISIBLE_DEVICES="", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    return env


def job_python(workspace: Workspace) -> str:
    """The Python that jobs have here."""
    known = venvs.record() or config.read(workspace).facts
    return str(known.get("python") or shutil.which("python3") or sys.executable)


def missing(name: str, python: str) -> Optional[str]:
    """Why a service cannot run here: what is not installed, and what installs it; else None."""
    if name == "sshd":
        import sshd

        return sshd.missing()
    look = "import importlib.util as u, sys; sys.exit(u.find_spec(%r) is None)" % MODULES[name]
    try:
        found = subprocess.run([python, "-I", "-c", look], stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        return "%s cannot be started: %s" % (python, error.strerror)
    if found.returncode == 0:
        return None
    if byhand.is_container():
        return "this image has no %s; provision the host again" % MODULES[name]
    return "%s is not installed for %s; install it: %s -m pip install %s" % (
        *(MODULES[name], python, python),
        MODULES[name],
    )


def token_path(workspace: Workspace) -> str:
    """Where Jupyter's token lies."""
    return os.path.join(workspace.state, "jupyter_token")


def make_token(workspace: Workspace) -> str:
    """The file with Jupyter's token, made once and for the owner alone."""
    path = token_path(workspace)
    if not read_token(workspace):
        temporary = "%s.tmp%d" % (path, os.getpid())
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            file.write(secrets.token_hex(24))
        try:
            os.link(temporary, path)  # never over one that another process just made
        except FileExistsError:
            if not read_token(workspace):
                os.rename(temporary, path)
                return path
        os.unlink(temporary)
    os.chmod(path, 0o600)
    return path


def read_token(workspace: Workspace) -> str:
    """Jupyter's token; nothing where none was made."""
    try:
        with open(plain.open_file(token_path(workspace)), "rb") as file:
            return file.read(256).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""


def _open_log(workspace: Workspace, name: str) -> None:
    """From here on what is said goes to the service's log, which begins anew when it is long."""
    path = log_path(workspace, name)
    out = records.open_log(path)
    if os.fstat(out).st_size > _MOST_LOG:
        os.ftruncate(out, 0)
    for number in (1, 2):
        os.dup2(out, number)


def log_path(workspace: Workspace, name: str) -> str:
    """Where what a service says goes."""
    return os.path.join(workspace.own, name + ".log")


def last_words(workspace: Workspace, name: str) -> str:
    """The last line that a service said."""
    try:
        with open(plain.open_file(log_path(workspace, name)), "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - _LOG_PIECE))
            lines = file.read(_LOG_PIECE).decode("utf-8", "replace").split("\n")
    except FileNotFoundError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:500] if said else ""


def _end_with_parent() -> None:
    """Have TERM come when supervisord is killed: the next one would start a second service."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(CANNOT_START)
