"""Asking supervisord: to start a service, how it is, to stop it; over its socket."""

from __future__ import annotations

import http.client
import socket
import time
import xmlrpc.client
from typing import Any, Optional

import byhand
import services
import sockets
from paths import Workspace

START_LIMIT_S = 120.0
_POLL_S = 0.1
_ASK_LIMIT_S = 15.0
_NOT_STARTED = ("FATAL", "EXITED", "UNKNOWN")
_ALREADY_STARTED, _NOT_RUNNING = 60, 70
_SHUTDOWN = 6


class Unheard(services.CannotServe):
    """supervisord does not answer."""


def start(
    workspace: Workspace,
    name: str,
    limit_s: float = START_LIMIT_S,
    *,
    unless_stopped: bool = False,
) -> bool:
    """Have a service up and listening; whether it had to be started.

    unless_stopped: leave one alone that was stopped because somebody asked for it. Raises
    CannotServe for that, and with what it said last when it does not come up.
    """
    path = sockets.find(workspace, name)
    if sockets.is_listening(path):
        return False
    state = ask(workspace, "getProcessInfo", name)["statename"]
    while state == "STOPPING":
        time.sleep(_POLL_S)
        state = ask(workspace, "getProcessInfo", name)["statename"]
    if unless_stopped and was_stopped(workspace, name):
        raise services.CannotServe("%s was stopped" % services.TITLES[name])
    if state not in ("RUNNING", "STARTING", "BACKOFF"):
        why = services.missing(name, services.job_python(workspace))
        if why is not None:
            raise services.CannotServe(why)
        ask(workspace, "startProcess", name, False)
    deadline = time.monotonic() + limit_s
    while not sockets.is_listening(path):
        state = ask(workspace, "getProcessInfo", name)["statename"]
        late = time.monotonic() > deadline
        if late or state in _NOT_STARTED:
            said = services.last_words(workspace, name) or "it said nothing"
            what = "does not listen after %d s" % limit_s if late else "does not start"
            raise services.CannotServe("%s %s: %s" % (services.TITLES[name], what, said))
        time.sleep(_POLL_S)
    return True


def stop(workspace: Workspace, name: str) -> None:
    """Have a service not run. Raises Unheard."""
    ask(workspace, "stopProcess", name, True)


def was_stopped(workspace: Workspace, name: str) -> bool:
    """Whether a service was stopped because somebody asked for that, and not started since."""
    found = ask(workspace, "getProcessInfo", name)
    return found["statename"] == "STOPPED" and bool(found["stop"])


def ask(workspace: Workspace, method: str, *arguments: Any) -> Any:
    """What supervisord answers; that it is so already is no error. Raises Unheard."""
    path = sockets.find(workspace)
    with xmlrpc.client.ServerProxy("http://localhost", transport=_Transport(path)) as proxy:
        try:
            return getattr(proxy.supervisor, method)(*arguments)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode in (_ALREADY_STARTED, _NOT_RUNNING):
                return True
            if fault.faultCode == _SHUTDOWN:
                raise Unheard("the worker is just ending") from fault
            raise Unheard("its supervisord says: %s" % fault.faultString) from fault
        except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
            again = "; provision the host again" if byhand.is_container() else ""
            raise Unheard("its supervisord does not answer (%s)%s" % (error, again)) from error


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_ASK_LIMIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock: Optional[socket.socket] = sockets.connect(self._path, _ASK_LIMIT_S)
        self.sock.settimeout(_ASK_LIMIT_S)


class _Transport(xmlrpc.client.Transport):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> _Connection:
        made = _Connection(self._path)
        self._connection = host, made  # so that it is closed
        return made
