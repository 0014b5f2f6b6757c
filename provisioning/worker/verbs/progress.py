"""`progress`: a run's curve, for plots."""

from __future__ import annotations

from typing import Any, Dict

import progress

from verbs import Call, whole


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{"run", "most": n} → rows [step, metrics]; {}."""
    paths = call.run(request.get("run"))
    most = max(2, min(100_000, whole(request, "most", 2000)))
    call.send_rows(progress.points(paths.progress(0), most))
    return {}
