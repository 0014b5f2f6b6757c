"""`resume`: the same run goes on with a next attempt, from its newest checkpoint.

    {"run", "params": {}, "env": {}, "secrets": {NAME: base64}, "token", "notify"}
        → {"run": status, "repeated"}

A resume is a file, resumes/N.json: from its rename on it counts, and the dispatcher takes it up.
The same token again is answered with what is there, so a client whose link broke may repeat itself.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Optional, Tuple

import records
import resumes
import secrets_store
import sources
import supervisor
import view
import wakeup
from paths import RunPaths

from runner import states
from verbs import Call, Refused, submit

TAKEN_UP_WITHIN_S = 5.0
POLL_S = 0.02


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """See the module's docstring. Raises Refused: wrong-state, no-secret, no-code, bad-request."""
    paths = call.run(request.get("run"))
    supervisor.ensure(call.workspace, request.get("local"))
    submit.take_notify(call, request)
    lock = records.try_lock(os.path.join(paths.folder, "resume.lock"))
    if lock is None:
        raise Refused("wrong-state", "%s is being resumed by another command" % paths.id)
    try:
        number, repeated = _accept(call, paths, request)
    finally:
        os.close(lock)
    wakeup.poke(call.workspace, paths.id)
    # an idle worker may have ended meanwhile
    supervisor.ensure(call.workspace, request.get("local"))
    _wait_until_taken_up(call, paths, number)
    return {"run": _status(call, paths), "repeated": repeated}


def _accept(call: Call, paths: RunPaths, request: Dict[str, Any]) -> Tuple[int, bool]:
    """(number of the resume, whether it was there before). The caller holds the run's lock."""
    spec = records.read(paths.spec) or {}
    state = records.read(paths.state) or {"state": states.QUEUED}
    number = resumes.count(paths)
    token = request.get("token")
    if token and number and (records.read(resumes.path(paths, number)) or {}).get("token") == token:
        return number, True
    problem = _in_the_way(paths, state)
    if problem is not None:
        raise Refused("wrong-state", problem)
    current = sources.current_spec(paths, spec)
    params, env = _table(request, "params"), _table(request, "env")
    _check_params(current, state, params)
    unmet = _unmet(call, current)
    if unmet is not None:
        raise Refused("wrong-state", "%s waits for %s" % (paths.id, unmet))
    lost = sources.lost_code(call.workspace, spec)
    if lost is not None:
        raise Refused("no-code", "the code of %s is gone from the worker: %s" % (paths.id, lost))
    submit.store_secrets(paths, current, request.get("secrets"))
    for marker in (paths.cancel, paths.cancel_now):
        # before the resume counts: a cancel from here on is meant for the next attempt
        if os.path.exists(marker):
            os.unlink(marker)
    record = {"params": params, "env": env, "at": time.time(), "token": token}
    try:
        os.makedirs(paths.resumes, exist_ok=True)
        records.write(resumes.path(paths, number + 1), record, spare=False)
    except OSError:
        secrets_store.remove(paths)
        raise
    records.sync_folder(paths.resumes)
    return number + 1, False


def _in_the_way(paths: RunPaths, state: Dict[str, Any]) -> Optional[str]:
    if resumes.is_pending(paths, state):
        return "%s was resumed already; attempt %d is next" % (
            paths.id,
            int(state.get("attempt", 0)) + 1,
        )
    if state["state"] == states.ENDED:
        return None
    if state["state"] == states.QUEUED:
        text = "%s waits in the queue for attempt %d"
        return text % (paths.id, int(state.get("attempt", 0)) + 1)
    return "%s is %s (attempt %d)" % (paths.id, state["state"], int(state.get("attempt", 0)))


def _check_params(current: Dict[str, Any], state: Dict[str, Any], params: Dict[str, Any]) -> None:
    before = current.get("params", {})
    for name in sorted(params):
        if name not in before or name not in current.get("resumable", ()):
            raise Refused("bad-request", "%s is no parameter that resume may change" % name)
    if state.get("outcome") == states.DONE and not wants_more(before, params):
        raise Refused("wrong-state", "%s is done; only more steps resume it" % current["id"])


def wants_more(before: Dict[str, Any], params: Dict[str, Any]) -> bool:
    """Whether changed parameters ask for more steps than there were."""
    steps, known = params.get("steps"), before.get("steps")
    numbers = isinstance(steps, (int, float)) and isinstance(known, (int, float))
    return numbers and steps > known  # type: ignore[operator]


def _unmet(call: Call, current: Dict[str, Any]) -> Optional[str]:
    """A run that this one comes after and that has ended otherwise than done, in words."""
    for run in current.get("after") or ():
        paths = call.workspace.run(run)
        if not os.path.exists(paths.spec):
            return "%s, which is gone; reproduce it without" % run
        state = records.read(paths.state) or {}
        outcome = state.get("outcome")
        if state.get("state") == states.ENDED and outcome != states.DONE:
            return "%s, which is %s; resume that first" % (run, outcome)
    return None


def _table(request: Dict[str, Any], key: str) -> Dict[str, Any]:
    value = request.get(key) or {}
    if not isinstance(value, dict):
        raise Refused("bad-request", "%s is no table" % key)
    return value


def _wait_until_taken_up(call: Call, paths: RunPaths, number: int) -> None:
    """What the client looks at next shall be the new attempt, not the old end."""
    deadline = time.monotonic() + TAKEN_UP_WITHIN_S
    while time.monotonic() < deadline:
        if int((records.read(paths.state) or {}).get("resumed", 0)) >= number:
            return
        call.keep_up()
        time.sleep(POLL_S)


def _status(call: Call, paths: RunPaths) -> Dict[str, Any]:
    pair = view.read_pair(paths)
    assert pair is not None
    return view.View(call.workspace).status(pair[0], pair[1], full=False).to_json()
