"""`at_boot`: a `venv` worker is started at boot, or no more.

{"wanted": bool} → {"at_boot": "cron" | "unit" | null, "was": the same, "note": words or null}
"""

from __future__ import annotations

from typing import Any, Dict

import at_boot
import venvs

from verbs import Call, Refused


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """See the module's docstring. Raises Refused: bad-request, no-boot."""
    own = venvs.folder()
    if own is None:
        raise Refused("bad-request", "only a venv worker is started at boot by us")
    try:
        return at_boot.answer(own, call.workspace.root, bool(request.get("wanted")))
    except at_boot.Cannot as error:
        raise Refused("no-boot", str(error)) from error
