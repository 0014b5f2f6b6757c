"""`info`: what this worker is and what it has."""

from __future__ import annotations

import os
from typing import Any, Dict

import config
import gpus
import supervisor
import view

from runner import states
from verbs import Call


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{} → {"config", "up", "gpus", "slots", "live", "queued", "workspace", "bundles"}."""
    known = config.read(call.workspace)
    pairs = view.read_all(call.workspace)
    cards = gpus.read_cached(call.workspace.gpus)
    if cards is None:
        cards = gpus.chosen(gpus.query() or [], known.gpus)
    return {
        "config": known.facts,
        "up": supervisor.is_up(call.workspace),
        "gpus": cards,
        "slots": known.slots,
        "live": [spec["id"] for spec, state in pairs if state["state"] in states.LIVE],
        "queued": [spec["id"] for spec, state in pairs if state["state"] == states.QUEUED],
        "workspace": call.workspace.root,
        "bundles": sorted(n for n in os.listdir(call.workspace.bundles) if not n.startswith(".")),
    }
