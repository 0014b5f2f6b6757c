"""`notify`: how an operator hears of runs is kept, and tried, and what has not arrived is told.

    {"notify": {"client", "host", "settings"}, "test": bool}
        → {"set": bool, "up": bool, "tried": [{"channel", "ok", "text", "took_s"}],
           "account": {"waiting", "lost", "error", "age_s", "heartbeat"}}

The test goes out from here and now, by the settings as they lie on the worker. up: whether a
dispatcher is there, which sends all others.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict, List

import config
import notices
import notify_store
import supervisor

from runner import messages
from verbs import Call, Refused


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """See the module's docstring. Raises Refused: bad-request."""
    workspace = call.workspace
    try:
        client = notify_store.take(workspace, request.get("notify"))
    except ValueError as error:
        raise Refused("bad-request", str(error)) from error
    up = supervisor.is_up(workspace)
    settings = notify_store.read(workspace, client) if client else None
    if client is None or settings is None:
        return {"set": False, "up": up, "tried": [], "account": None}
    tried = _try(call, settings) if request.get("test") else []
    if tried and all(row["ok"] for row in tried):
        notices.outbox_of(workspace, client).hurry()
    return {
        "set": True,
        "up": up,
        "tried": tried,
        "account": notices.account(workspace, client),
    }


def _try(call: Call, settings: Dict[str, Any]) -> List[Dict[str, Any]]:
    from runner import sending

    known = config.read(call.workspace)
    host = str(settings.get("host"))
    message = messages.test_message(
        messages.message_id("test", os.urandom(8).hex()), host, time.time()
    )
    rows = []
    for channel, way in notices.ways(call.workspace, known, settings).items():
        rows.append(_row(channel, way(message)))
    if settings.get("heartbeat"):
        rows.append(_row("heartbeat", sending.ping(settings, host)))
    return rows


def _row(channel: str, result: Any) -> Dict[str, Any]:
    return {
        "channel": channel,
        "ok": result.ok,
        "text": result.text,
        "took_s": round(result.took_s, 3),
    }
