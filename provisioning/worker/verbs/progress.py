"""`progress`: a run's curve, for plots and comparisons."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

import progress
import records
import scalars
from paths import RunPaths
from plain import is_number

from runner import states
from verbs import Call, Refused, whole

READ_S = 10.0
"""How long event files that nobody has read yet are read for one answer: 80 MB of scalars or so."""


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"run", "most": n, "names"?: […]} → rows [step, metrics, seconds run so far or null]; {}.

    From rank 0's progress lines; of a run that wrote none from its event files.
    """
    paths = call.run(request.get("run"))
    most = max(2, min(100_000, whole(request, "most", 2000)))
    names = request.get("names")
    if names is not None and not isinstance(names, list):
        raise Refused("bad-request", "names is no list")
    spec, state = (records.read(path) or {} for path in (paths.spec, paths.state))
    rows = scalars.curve(
        paths,
        most,
        names,
        metric=spec.get("metric"),
        is_live=state.get("state") in states.LIVE,
        limit_s=READ_S,
    )
    attempts = _attempts(paths)
    call.send_rows([[step, found, progress.ran_at(t, attempts)] for step, found, t in rows])
    return {}


def _attempts(paths: RunPaths) -> List[Tuple[float, Optional[float]]]:
    """When each attempt of a run began and ended."""
    count: Any = (records.read(paths.state) or {}).get("attempt")
    spans = []
    for number in range(1, (int(count) if is_number(count) else 0) + 1):
        folder = paths.attempt(number)
        began: Any = (records.read(os.path.join(folder, "proc.json")) or {}).get("started_at")
        ended: Any = (records.read(os.path.join(folder, "exit.json")) or {}).get("ended_at")
        if is_number(began):
            spans.append((float(began), float(ended) if is_number(ended) else None))
    return spans
