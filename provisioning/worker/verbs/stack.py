"""`stack`: where every rank of a live run just is."""

from __future__ import annotations

from typing import Any, Dict

import places
import stacks
import view

from runner import states
from verbs import Call, Refused


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"run"} → {"ranks": [{"rank", "pid", "text"}], "problem"?: one line with the way out}.

    Also kept with the attempt, as stacks-K.txt.
    """
    paths = call.run(request.get("run"))
    pair = view.read_pair(paths)
    if pair is None or pair[1]["state"] not in states.LIVE:
        state = pair[1]["state"] if pair else "gone"
        raise Refused("wrong-state", "%s is %s: only a running one has stacks" % (paths.id, state))
    spec, state = pair
    other = places.elsewhere(call.workspace, state)
    if other is not None:
        text = "%s runs in the worker of image %s" % (paths.id, other["image"])
        raise Refused("elsewhere", text, **other)
    attempt = int(state["attempt"])
    taken = stacks.take(call.workspace, paths, attempt, int(spec.get("nproc", 1)))
    stacks.write(paths.attempt(attempt), taken)
    return taken
