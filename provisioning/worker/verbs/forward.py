"""`forward`: one connection to what was asked for, carried over the request's stream (flow.py).

    REQ {"to": "jupyter" | "tensorboard" | "ssh" | "hold" | "stop", "run": ID | null, "window": n}
    ← EVENT {"connected": true, "token": "…"}     token: Jupyter's, for "hold"
    messages of flow.py in DATA frames, both ways; the client ends its side with END  ← REP {}

Without "run" it leads to the worker's own service, or to an sshd that is started for this one
connection; with it to the door of that run (door.py). There is no way to name a port or a host.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any, Dict

import door
import places
import plain
import presence
import records
import services
import sessions
import sockets
import sshd
from paths import RunPaths

from runner import flow, states
from verbs import Call, Refused, whole

TO = ("jupyter", "tensorboard", "ssh", "hold", "stop")
DOOR_LIMIT_S = 150.0
SERVICE_LIMIT_S = 20.0
_POLL_S = 0.1
_LOG_PIECE = 4096


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """See the module's docstring.

    Raises Refused: no-service, unknown-run, wrong-state, elsewhere.
    """
    to, run = request.get("to"), request.get("run")
    window = whole(request, "window", flow.MOST_WINDOW)
    if to not in TO or not flow.LEAST_WINDOW <= window <= flow.MOST_WINDOW:
        raise Refused("bad-request", "forward to %r with a window of %d" % (to, window))
    if run is None and to in ("hold", "stop"):
        raise Refused("bad-request", "forward to %r without a run" % (to,))
    with presence.held(call.workspace):
        try:
            if run is not None:
                connection = _of_run(call, run, to)
            elif to == "ssh":
                connection = _log_in(call, request.get("local"))
            else:
                connection = _service(call, to)
        except (sshd.CannotLogIn, services.CannotServe) as error:
            raise Refused("no-service", str(error)) from error
        # who holds the door of a Lab open may enter it
        token = services.read_token(call.workspace) if to == "hold" else ""
        call.event(connected=True, token=token)
        carried = flow.Flow(connection, call.data, window)
        carried.start()
        for message in call.received():
            carried.feed(message)
        carried.abort(tell=False)
    return {}


def _log_in(call: Call, told: Any) -> socket.socket:
    env = services.environment(call.workspace, told)
    sshd.make_profile(call.workspace.home)
    argv = sshd.command(call.workspace, env, sockets.make(call.workspace))
    ours, theirs = socket.socketpair()
    sessions.begin(theirs, argv, env, sessions.log_path(call.workspace))
    return ours


def _service(call: Call, name: str) -> socket.socket:
    limit = time.monotonic() + SERVICE_LIMIT_S
    while True:
        try:
            return sockets.connect(sockets.find(call.workspace, name))
        except OSError as error:
            # it may just be started again
            if time.monotonic() > limit:
                raise services.CannotServe("%s is not up" % services.TITLES[name]) from error
        time.sleep(_POLL_S)


def _of_run(call: Call, run: Any, to: str) -> socket.socket:
    paths = call.run(run)
    path = sockets.find(call.workspace, door.socket_name(paths.id))
    limit = time.monotonic() + DOOR_LIMIT_S
    while True:
        state = _live_state(call, paths)
        try:
            if to == "jupyter":
                name = door.jupyter_name(paths.id)
                return sockets.connect(sockets.find(call.workspace, name))
            connection = sockets.connect(path)
            connection.sendall(to.encode("ascii") + b"\n")
            return connection
        except OSError:
            if time.monotonic() > limit or state["state"] == states.STOPPING:
                said = _last_line(paths)
                text = "%s does not answer: %s" % (paths.id, said or "it said nothing")
                raise services.CannotServe(text) from None
        time.sleep(_POLL_S)


def _live_state(call: Call, paths: RunPaths) -> Dict[str, Any]:
    state = records.read(paths.state) or {"state": states.QUEUED}
    if state["state"] not in states.LIVE:
        raise Refused("wrong-state", "%s is %s" % (paths.id, state["state"]))
    there = places.elsewhere(call.workspace, state)
    if there is not None:
        raise Refused("elsewhere", "%s is in another container" % paths.id, **there)
    return state


def _last_line(paths: RunPaths) -> str:
    try:
        with open(plain.open_file(paths.log(0)), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_PIECE))
            text = file.read(_LOG_PIECE).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    said = [line.strip() for line in text.split("\n") if line.strip()]
    return said[-1][:500] if said else ""
