"""What a submit is about, as it is written down before a byte is sent (pure).

    {"id", "words", "at", "host", "spec", "members"?}

`spec` is what the worker is told of a run. Of a sweep it is what its runs have alike, its `id` and
`sweep` are the sweep's, and `members` are the differences, in order: {"params", "argv"?, "image"?}.
Everything drawn (ids, seeds) is settled in it; values of secrets are not in it.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from runner import __version__
from runner.grammar.sweeps import filled
from runner.ids import draw_id
from runner.manifest import Snapshot
from runner.model import Host, Project
from runner.spec import RunPlan, SubmitRequest, passed_of

SEED_BITS = 31
_OURS = "@runner"
"""As a run's first word: the worker's own program."""


def make_intent(
    project: Project,
    host: Host,
    plan: RunPlan,
    snapshot: Snapshot,
    draw: random.Random,
    *,
    given: Mapping[str, object],
    after: Sequence[str],
) -> dict[str, Any]:
    """What is written down before a byte is sent; drawn values (ids, seeds) are settled here.

    `members` are the differences between the runs of a sweep and `spec`; a run has none.
    """
    spec = make_spec(project, host, plan, snapshot, draw)
    spec["after"] = list(after)
    members: list[dict[str, Any]] = []
    drawn: set[str] = set()
    for member in plan.members:
        params = {**plan.params, **member.params}
        settled = {name: draw.getrandbits(SEED_BITS) for name in _drawn(params)}
        drawn |= settled.keys()
        change: dict[str, Any] = {"params": {**member.params, **settled}}
        if member.each:
            change["argv"] = list(filled(plan.argv, member.each))
        if member.image is not None:
            change["image"] = member.image
        members.append(change)
    if members:
        spec["sweep"] = spec["id"]
    else:
        drawn.update(_drawn(plan.params))
        spec["params"].update({name: draw.getrandbits(SEED_BITS) for name in sorted(drawn)})
    spec["given"] = sorted({*given, *drawn})
    body = {"id": spec["id"], "host": host.name, "spec": spec}
    return {**body, "members": members} if members else body


def specs_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The spec of each run that an intent is about."""
    common = body["spec"]
    return [
        {
            **common,
            **change,
            "id": f"{common['id']}.{number}",
            "params": {**common["params"], **change["params"]},
        }
        for number, change in enumerate(body.get("members") or (), 1)
    ] or [common]


def make_spec(
    project: Project, host: Host, plan: RunPlan, snapshot: Snapshot, draw: random.Random
) -> dict[str, Any]:
    """What the worker is told of a run, with its id; values to be drawn are not yet."""
    spec: dict[str, Any] = {
        "format": 1,
        "id": draw_id(plan.job or door_kind(plan.argv), draw),
        "project": {"id": project.id, "name": project.name},
        "job": plan.job,
        "name": plan.name,
        "tags": list(plan.tags),
        "sweep": None,
        "origin": None,
        "argv": list(plan.argv),
        "params": dict(plan.params),
        "nproc": plan.nproc,
        "gpus": plan.gpus,
        "launcher": plan.launcher,
        "grace_s": plan.grace_s,
        "metric": plan.metric,
        "priority": plan.priority,
        "after": [],
        "time_limit_s": plan.time_limit_s,
        "restarts": plan.restarts,
        "stuck_after_s": plan.stuck_after_s,
        "on_stuck": plan.on_stuck,
        "log_limit_bytes": plan.log_limit_bytes,
        "keep": plan.keep,
        "keep_best": plan.keep_best,
        "resumable": list(plan.resumable),
        "pass": passed_of(plan),
        "setup": {"requirements": list(plan.requirements)} if plan.requirements else None,
        "secrets": list(plan.secrets),
        "env": {k: v for k, v in {**host.env, **plan.env}.items() if k not in plan.secrets},
        "snapshot": snapshot.digest,
        "code": dict(snapshot.code),
        "image": plan.image,
        "client": __version__,
    }
    diff = diff_digest(snapshot)
    if diff is not None:
        spec["code"].update(diff=diff, diff_bytes=len(snapshot.diff or b""))
    if host.runtime == "local":
        spec["python"] = sys.executable
    return spec


def door_argv(kind: str) -> tuple[str, ...]:
    """The argv of a run that is a door: the worker's own program (`shell`, `lab`)."""
    return (_OURS, "door", kind)


def door_kind(argv: Sequence[str]) -> str | None:
    """Which door a run's argv is; None for all others."""
    return argv[2] if len(argv) == 3 and tuple(argv) == door_argv(argv[2]) else None


def diff_digest(snapshot: Snapshot) -> str | None:
    """The content that a snapshot's diff is; None where nothing was edited, or it is not kept."""
    return hashlib.sha256(snapshot.diff).hexdigest() if snapshot.diff else None


def _drawn(params: Mapping[str, Any]) -> list[str]:
    """Parameters whose value is drawn at submit and written in the record."""
    return ["seed"] if params.get("seed") == -1 else []


def intent_words(request: SubmitRequest) -> list[str]:
    """What makes two submits the same: the words as typed; values of env. only by their digest.

    Words of secrets name a variable or a file and are kept: that is where it is read again.
    """
    words = []
    for word in request.words:
        key, sign, value = word.partition("=")
        if key.startswith("env."):
            digest = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()
            word = f"{key}{sign}sha256:{digest}"
        words.append(word)
    return [f"host={request.host}", *words, *(["--", *request.command] if request.command else [])]


def is_readable(body: Mapping[str, Any]) -> bool:
    """Whether an intent that was left open can be taken up."""
    spec, members = body.get("spec"), body.get("members", [])
    return (
        isinstance(spec, dict)
        and spec.get("id") == body.get("id")
        and {"snapshot", "params"} <= spec.keys()
        and isinstance(members, list)
        and all(isinstance(change, dict) and "params" in change for change in members)
    )
