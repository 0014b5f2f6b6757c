"""`info`: what this worker is and what it has."""

from __future__ import annotations

import os
from typing import Any, Dict, List

import at_boot
import config
import gpus
import places
import supervisor
import venvs
import view
from paths import Workspace

from runner import states
from verbs import Call


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """{} → {"config", "up", "gpus", "slots", "live", "queued", "workspace", "bundles", "places",
    "at_boot"}.

    at_boot: what starts a `venv` worker at boot, `cron` or `unit`, None where nothing does.
    places: {"image", "generation", "active", "up", "live"} of each worker of the workspace.
    """
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
        "places": _places(call.workspace, pairs),
        "at_boot": at_boot.told(venvs.folder()),
        "bundles": sorted(n for n in os.listdir(call.workspace.bundles) if not n.startswith(".")),
    }


def _places(workspace: Workspace, pairs: List[view.Pair]) -> List[Dict[str, Any]]:
    found = places.find_all(workspace)
    live = [
        (state.get("place"), spec["id"]) for spec, state in pairs if state["state"] in states.LIVE
    ]
    return [
        {
            "image": place.image,
            "generation": place.generation,
            "active": places.active(found, place.image) == place,
            "up": supervisor.is_up(workspace.at(place.name)),
            "live": [run for name, run in live if name == place.name],
        }
        for place in found
    ]
