"""`service`: Jupyter Lab or TensorBoard of this worker, up and watched for as long as is asked.

    REQ {"name": "jupyter", "stop": false}
    ← EVENT {"ready": true, "started": true, "token": "…"}     token: Jupyter's
    … until the conversation ends; with "stop" the answer at once is REP {"stopped": true}

One that ended meanwhile is started again, unless somebody stopped it: that is for all who watch.
So is the worker when it was killed: another one comes within seconds.
A `local` worker does not end as idle while somebody watches.
"""

from __future__ import annotations

import time
from typing import Any, Dict

import control
import presence
import services
import supervisor

from verbs import Call, Refused

_LOOK_S = 1.0
_PAUSE_S = 0.2


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """See the module's docstring. Raises Refused: no-service."""
    name = request.get("name")
    if name not in services.ASKED_FOR:
        raise Refused("bad-request", "no service %r" % (name,))
    workspace = call.workspace
    try:
        if request.get("stop"):
            if supervisor.is_supervised(workspace):
                control.stop(workspace, name)
            return {"stopped": True}
        with presence.held(workspace):
            supervisor.ensure(workspace, request.get("local"))
            started = _start(call, request, name)
            token = services.read_token(workspace) if name == "jupyter" else ""
            call.event(ready=True, started=started, token=token)
            while True:
                time.sleep(_LOOK_S)
                call.keep_up()
                _start(call, request, name, unless_stopped=True)
    except services.CannotServe as error:
        raise Refused("no-service", str(error)) from error


def _start(call: Call, request: Dict[str, Any], name: str, unless_stopped: bool = False) -> bool:
    """As `control.start`; waits for another supervisord where there is none just now."""
    deadline = time.monotonic() + supervisor.START_LIMIT_S
    while True:
        try:
            return control.start(call.workspace, name, unless_stopped=unless_stopped)
        except control.Unheard:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)
        call.keep_up()
        supervisor.ensure(call.workspace, request.get("local"))
