"""How an operator wants to hear of runs, on the worker: files that only the account reads.

.runner/notify/CLIENT/settings.json holds what `runner.messages` calls settings, and `host`, the
operator's name for this host; an outbox lies beside it. CLIENT is a random name of an operator's
account on one machine. A request brings them:

    "notify": {"client": "c-4f…", "host": "gpu2", "settings": {…}}   kept from here on
              {"client": "c-4f…", "host": "gpu2", "settings": null}  there are none any more
              {"client": "c-4f…"}                                    as they are

Their addresses are secrets: they are in no record of a run, argv or log.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import Any, Dict, List, Optional

import journal
import plain
import records
from paths import Workspace

Table = Dict[str, Any]
CLIENT = re.compile(r"c-[0-9a-f]{8,40}\Z")
MOST_BYTES = 64 * 1024


def folder(workspace: Workspace, client: str) -> str:
    """Where what belongs to one operator lies."""
    return os.path.join(workspace.notify, client)


def clients(workspace: Workspace) -> List[str]:
    """Every operator who wants to hear of something here."""
    try:
        return sorted(name for name in os.listdir(workspace.notify) if CLIENT.match(name))
    except OSError:
        return []


def read(workspace: Workspace, client: str) -> Optional[Table]:
    """The settings of one operator, with `host`; None when there are none."""
    path = os.path.join(folder(workspace, client), "settings.json")
    try:
        return records.read(path)
    except OSError:
        return None


def take(workspace: Workspace, asked: Any) -> Optional[str]:
    """Keep what came with a request; the client whose settings there are now, or None.

    Raises ValueError for what cannot be settings.
    """
    if not isinstance(asked, dict):
        return None
    client = asked.get("client")
    if not isinstance(client, str) or not CLIENT.match(client):
        raise ValueError("notify without a client")
    if "settings" in asked:
        try:
            _keep(workspace, client, asked["settings"], asked.get("host"))
        except OSError as error:
            if not journal.is_full(error):
                raise
            # what was there stays; a run is not refused for it
    there = os.path.exists(os.path.join(folder(workspace, client), "settings.json"))
    return client if there else None


def _keep(workspace: Workspace, client: str, settings: Any, host: Any) -> None:
    place = folder(workspace, client)
    if settings is None:
        shutil.rmtree(place, ignore_errors=True)
        return
    problem = _wrong(settings)
    if problem:
        raise ValueError("settings of notifications: %s" % problem)
    named = host if isinstance(host, str) and host.isprintable() else "worker"
    body = dict(settings, host=named[:80])
    if read(workspace, client) == body:
        return
    data = json.dumps(body, sort_keys=True).encode("ascii")
    if len(data) > MOST_BYTES:
        raise ValueError("settings of notifications: over %d bytes" % MOST_BYTES)
    os.makedirs(workspace.notify, mode=0o700, exist_ok=True)
    os.makedirs(place, mode=0o700, exist_ok=True)
    records.write_new_bytes(os.path.join(place, "settings.json"), data, mode=0o600)


def _wrong(settings: Any) -> Optional[str]:
    """What is wrong with the form of settings; what is in them was checked where they come from."""
    if not isinstance(settings, dict):
        return "no table"
    for name in ("webhook", "command", "heartbeat"):
        if not isinstance(settings.get(name) or {}, dict):
            return "%s is no table" % name
    webhook, heartbeat = settings.get("webhook") or {}, settings.get("heartbeat") or {}
    for table in (webhook, heartbeat):
        if table and not str(table.get("url")).startswith(("http://", "https://")):
            return "an address that is none"
    headers = webhook.get("headers") or {}
    if not isinstance(headers, dict) or not all(isinstance(v, str) for v in headers.values()):
        return "headers that are none"
    argv = (settings.get("command") or {"argv": ["x"]}).get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(w, str) for w in argv):
        return "a command that is none"
    every_s = heartbeat.get("every_s")
    if every_s is not None and not (plain.is_number(every_s) and every_s >= 1):
        return "every is no time"
    return None
