"""`again`: a new run from one that is here, with its snapshot: `fork` or `reproduce`.

    {"source", "look": true}
        → {"run": status in full, "spec": its spec as it stands, values of env left out, "image"}
    {"id", "source", "kind", "params": {}, "env": {}, "secrets": {NAME: base64}, "changes": {},
     "checkpoint": "last" or null, "client", "notify"}
        → {"id", "gpus", "run", "repeated", "checkpoint"}

Order on disk: the checkpoint (hard-linked, verified, then renamed into place), the run's copy of
the code, its folder with spec.json: from this rename on it exists. The same id again is answered
with what is there, so a client may repeat itself.
"""

from __future__ import annotations

import os
import shutil
from typing import Any, Dict, Optional

import config
import records
import sources
import supervisor
import view
import wakeup
from paths import RunPaths, Workspace

from verbs import Call, Refused, submit

KINDS = ("fork", "reproduce")
CHANGES = ("name", "tags", "priority", "grace_s", "time_limit_s", "restarts", "gpus")
"""What of a spec, besides parameters and variables, a fork may set anew."""
NOT_COPIED = (
    "name",
    "accepted_at",
    "gpus_asked",
    "gpus",
    "notify",
    "worker_image",
    "worker_image_id",
    "format",
)
LOCK_WAIT_S = 600.0
"""Forks of one run wait for each other: a checkpoint with a large replay memory takes its time."""


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """See the module's docstring. Raises Refused.

    Codes: unknown-run, no-checkpoint, no-code, no-secret, no-gpu, conflict, bad-request.
    """
    source = call.run(request.get("source"))
    if request.get("look"):
        return _look(call, source)
    if request.get("kind") not in KINDS or not isinstance(request.get("id"), str):
        raise Refused("bad-request", "again without a kind or an id")
    try:
        paths = call.workspace.run(request["id"])
    except ValueError as error:
        raise Refused("bad-request", str(error)) from error
    supervisor.ensure(call.workspace, request.get("local"))
    lock = records.wait_lock(os.path.join(source.folder, "again.lock"), LOCK_WAIT_S)
    if lock is None:
        raise Refused("busy", "another fork has not ended after %d s" % LOCK_WAIT_S)
    try:
        known = records.read(paths.spec)
        repeated = known is not None
        spec = _same(known, request) if known else _make(call, source, paths, request)
    finally:
        os.close(lock)
    wakeup.poke(call.workspace, paths.id)
    # an idle worker may have ended meanwhile
    supervisor.ensure(call.workspace, request.get("local"))
    return dict(
        submit.reply(call, paths, spec), repeated=repeated, checkpoint=spec["origin"]["checkpoint"]
    )


def _look(call: Call, source: RunPaths) -> Dict[str, Any]:
    pair = view.read_pair(source)
    assert pair is not None
    spec = sources.current_spec(source, pair[0])
    return {
        "run": view.View(call.workspace).status(pair[0], pair[1], full=True).to_json(),
        "spec": dict(spec, env=sorted(spec.get("env", {}))),
        "image": image_of(spec),
    }


def image_of(spec: Dict[str, Any]) -> Optional[str]:
    """The image a run was started in, as far as its record tells."""
    return spec.get("worker_image") or spec.get("image")


def _same(known: Dict[str, Any], request: Dict[str, Any]) -> Dict[str, Any]:
    """The run that an earlier request with this id made. Raises Refused when it is another's."""
    origin = known.get("origin") or {}
    wanted = (request["kind"], request["source"])
    params = known.get("params", {})
    same = all(params.get(key) == value for key, value in (request.get("params") or {}).items())
    if (origin.get("kind"), origin.get("run")) != wanted or not same:
        raise Refused("conflict", "run %s exists with another spec" % known["id"])
    return known


def _make(call: Call, source: RunPaths, paths: RunPaths, request: Dict[str, Any]) -> Dict[str, Any]:
    original = sources.current_spec(source, records.read(source.spec) or {})
    lost = sources.lost_code(call.workspace, original)
    if lost is not None:
        raise Refused("no-code", "the code of %s is gone from the worker: %s" % (source.id, lost))
    _check_image(call.workspace, source, original, request["kind"])
    spec = submit.settle_gpus(call, new_spec(original, request))
    client = submit.take_notify(call, request)
    spec.update({"notify": client} if client else {})
    # what a request that was cut left behind, under the lock that its maker held
    for left in (paths.checkpoints, paths.secrets):
        shutil.rmtree(left, ignore_errors=True)
    try:
        if request.get("checkpoint") == "last":
            spec["origin"]["checkpoint"] = _take_checkpoint(source, paths)
        submit.make_run(call, paths, spec, request.get("secrets"))
    except BaseException:
        if not os.path.exists(paths.spec):
            for left in (paths.checkpoints, paths.secrets):
                shutil.rmtree(left, ignore_errors=True)
        raise
    return spec


def new_spec(original: Dict[str, Any], request: Dict[str, Any]) -> Dict[str, Any]:
    """The spec of the new run, its number of GPUs as it was asked for and not yet settled.

    Raises Refused for a parameter that the source does not have.
    """
    kind, changes = request["kind"], request.get("changes") or {}
    params, env = request.get("params") or {}, request.get("env") or {}
    secrets = sorted({*original.get("secrets", []), *(request.get("secrets") or {})})
    env = dict(original.get("env", {}), **env)
    for name in sorted(params):
        if name not in original.get("params", {}):
            raise Refused("bad-request", "%s has no parameter %s" % (original["id"], name))
    spec = {key: value for key, value in original.items() if key not in NOT_COPIED}
    spec["gpus"] = original.get("gpus_asked", original.get("gpus", 0))
    spec.update({key: changes[key] for key in CHANGES if key in changes})
    spec.update(
        format=records.FORMAT,
        id=request["id"],
        client=request.get("client"),
        params=dict(original.get("params", {}), **params),
        given=sorted({*original.get("given", []), *params}),
        env={name: value for name, value in env.items() if name not in secrets},
        secrets=secrets,
        sweep=None,
        after=[],
        origin={"kind": kind, "run": original["id"], "checkpoint": None},
    )
    return spec


def _check_image(
    workspace: Workspace, source: RunPaths, original: Dict[str, Any], kind: str
) -> None:
    known = config.read(workspace)
    there = known.image
    wanted = image_of(original) if kind == "reproduce" else original.get("image")
    if wanted is not None and there is not None and wanted != there:
        text = "%s ran in image %s; the worker has %s now"
        raise Refused("wrong-image", text % (source.id, wanted, there), image=wanted)
    made_of = original.get("worker_image_id")
    if kind == "reproduce" and made_of and known.image_id not in (None, made_of):
        text = "%s ran in an image %s made of %s; the worker's is made of %s now"
        raise Refused("wrong-state", text % (source.id, there, made_of[:19], known.image_id[:19]))


def _take_checkpoint(source: RunPaths, paths: RunPaths) -> str:
    folder, own = os.path.split(paths.checkpoints)
    temporary = os.path.join(folder, ".tmp-%s-%d" % (own, os.getpid()))
    shutil.rmtree(temporary, ignore_errors=True)
    os.makedirs(temporary)
    try:
        name = sources.take_newest(source.checkpoints, temporary)
        if name is None:
            raise Refused("no-checkpoint", "%s has no good checkpoint" % source.id)
        os.rename(temporary, paths.checkpoints)
        records.sync_folder(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return name
