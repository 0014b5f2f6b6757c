"""What became of a run's spec by resuming it: spec.json never changes, each resume is a file.

resumes/N.json (written by the verb `resume`, N from 1) holds {"params", "env", "at"}: what is
different from then on. state.json's "resumed" says how many of them the dispatcher has taken up.
"""

from __future__ import annotations

import os
from typing import Any, Dict

import records
from paths import RunPaths


def count(paths: RunPaths) -> int:
    """How often somebody has resumed this run."""
    try:
        names = os.listdir(paths.resumes)
    except OSError:
        return 0
    numbers = [int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit()]
    return max(numbers, default=0)


def path(paths: RunPaths, number: int) -> str:
    """The record of one resume."""
    return os.path.join(paths.resumes, "%d.json" % number)


def is_pending(paths: RunPaths, state: Dict[str, Any]) -> bool:
    """Whether a resume was accepted that the dispatcher has not taken up."""
    return count(paths) > int(state.get("resumed", 0))


def effective(paths: RunPaths, spec: Dict[str, Any], state: Dict[str, Any]) -> Dict[str, Any]:
    """The spec an attempt runs by: as submitted, with what the resumes so far changed."""
    resumed = int(state.get("resumed", 0))
    if not resumed:
        return spec
    params, env = dict(spec.get("params", {})), dict(spec.get("env", {}))
    for number in range(1, resumed + 1):
        body = records.read(path(paths, number)) or {}
        params.update(body.get("params") or {})
        env.update(body.get("env") or {})
    return dict(spec, params=params, env=env)
