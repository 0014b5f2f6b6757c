"""`submit --dry-run`: what a submit would do, with no intent, no connection, and nothing sent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.app.asked import Asked, check_snapshot, code_text, is_after_elsewhere, resolve_request
from runner.app.context import Context
from runner.app.reports import DryRun, LocalPart
from runner.code import tree
from runner.grammar.sweeps import filled
from runner.manifest import Snapshot
from runner.model import Param
from runner.passing import passed_words
from runner.show.units import plural, size
from runner.spec import RunPlan, SubmitRequest, passed_of
from runner.transfer.offer import differing


def dry_run(
    ctx: Context, request: SubmitRequest, *, many: bool = False, alone: bool = False
) -> DryRun:
    """What the same words would send and make, read exactly as `submit` does.

    Raises what submit raises before it speaks to the host.
    """
    asked = resolve_request(ctx, request, many=many, alone=alone)
    for word in request.after:
        known = ctx.store.record(word)
        if known is not None and known.host != asked.host.name:
            raise is_after_elsewhere(known.id, known.host, asked.host)
    limit = ctx.project.code_limit_bytes
    root = ctx.project.root
    cache: Path | None = Path(tree.CACHE)
    if not (root / tree.CACHE).parent.is_dir():
        cache = None  # this makes nothing, not even a folder for it
    snapshot = tree.read_snapshot(root, cache, limit_bytes=limit, explain=True)
    check_snapshot(ctx, request, asked.plan, snapshot)
    return _report(ctx, asked, snapshot)


def _report(ctx: Context, asked: Asked, snapshot: Snapshot) -> DryRun:
    host = asked.host.name
    known = ctx.store.known_tree(host)
    base = known.rows() if known is not None else None
    whole = size(int(snapshot.code.get("bytes", 0)))
    if base is None:
        came = {row[0] for row in snapshot.rows}
        sent = f"{whole}; nothing is known to be on {host}"
    else:
        since = differing(snapshot, base)
        came = {row[0] for row in since.came}
        sent = f"{whole}; {since.files} changed since the last submit to {host}"
    files = [LocalPart(row[0], row[3], row[0] in came) for row in snapshot.rows if row[1] == "f"]
    return DryRun(
        host,
        tuple(files),
        snapshot.left_out,
        dict(snapshot.code),
        tuple(_specs(asked)),
        code_text(snapshot, sent),
        _runs_text(asked),
        snapshot.warnings,
    )


def _specs(asked: Asked) -> list[dict[str, Any]]:
    """The runs it would make, without what is drawn and without values of the environment."""
    plan = asked.plan
    common = {
        "job": plan.job,
        "name": plan.name,
        "tags": list(plan.tags),
        "nproc": plan.nproc,
        "gpus": plan.gpus,
        "image": plan.image,
        "env": sorted(plan.env),
        "secrets": list(plan.secrets),
    }
    if not plan.members:
        words = _words(plan, plan.params)
        return [{**common, "argv": [*plan.argv, *words], "params": dict(plan.params)}]
    return [
        {
            **common,
            "argv": [
                *filled(plan.argv, member.each),
                *_words(plan, {**plan.params, **member.params}),
            ],
            "params": {**plan.params, **member.params},
            "image": member.image or plan.image,
        }
        for member in plan.members
    ]


def _words(plan: RunPlan, params: Mapping[str, Param]) -> list[str]:
    return passed_words(passed_of(plan), params)


def _runs_text(asked: Asked) -> str:
    plan = asked.plan
    what = plan.job or " ".join(plan.argv)
    if plan.members:
        return f"sweep  {plural(plan.count, 'run')} of {what} on {asked.host.name}"
    params = "".join(f" {name}={value}" for name, value in plan.params.items())
    return f"run    {what}{params if plan.job else ''} on {asked.host.name}"
