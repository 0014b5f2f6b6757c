"""`submit`: takes a snapshot and a spec; the run exists from the rename of its folder on.

    client                                      worker
    REQ {"id", "spec", "manifest": bool}
    [rows of the tree, END]  if manifest  →
                                              ← EVENT {"need": "manifest"}   if it lacks the tree
    rows, END                             →
                                              ← EVENT {"need": [digest, …]}
    pack, END                             →
                                              ← REP {"id", "repeated", "state", …}

Order on disk: contents, tree, the run's copy of the code, then its folder with spec.json. The same
id with the same spec is answered with what is there, so a client may repeat itself.
"""

from __future__ import annotations

import os
import shutil
import time
import zlib
from typing import Any, Dict, List

import config
import gpus
import paths as paths_module
import queueing
import records
import snapshot
import supervisor
import view
import wakeup
from paths import RunPaths

from runner import wire
from verbs import Call, Refused

ACCEPTED = ("accepted_at", "gpus")
"""What the worker adds to a spec, or settles in it."""


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """See the module's docstring. Raises Refused: conflict, no-gpu, corrupt, bad-request."""
    spec = request.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("id"), str):
        raise Refused("bad-request", "submit without a spec")
    digest = spec.get("snapshot")
    if not isinstance(digest, str) or len(digest) != 64:
        raise Refused("bad-request", "submit without a snapshot")
    try:
        paths = call.workspace.run(spec["id"])
    except ValueError as error:
        raise Refused("bad-request", str(error)) from error
    sent_manifest = call.received_rows() if request.get("manifest") else None
    supervisor.ensure(call.workspace, request.get("local"))
    known = records.read(paths.spec)
    if known is not None:
        return _repeated(call, paths, known, spec)
    asked = _with_gpus(call, spec)
    stored = _take_snapshot(call, digest, sent_manifest)
    _make_run(call, paths, asked)
    wakeup.poke(call.workspace, paths.id)
    # an idle worker may have ended while the code came in
    supervisor.ensure(call.workspace, request.get("local"))
    return dict(_reply(call, paths, asked), repeated=False, stored=stored)


def _repeated(
    call: Call, paths: RunPaths, known: Dict[str, Any], spec: Dict[str, Any]
) -> Dict[str, Any]:
    same = {k: v for k, v in known.items() if k not in ACCEPTED + ("gpus_asked",)}
    asked = {k: v for k, v in spec.items() if k not in ACCEPTED}
    if same != asked or known.get("gpus_asked") != spec.get("gpus"):
        raise Refused("conflict", "run %s exists with another spec" % paths.id)
    # the first time it may have been cut just before this
    wakeup.poke(call.workspace, paths.id)
    return dict(_reply(call, paths, known), repeated=True, stored=0)


def _with_gpus(call: Call, spec: Dict[str, Any]) -> Dict[str, Any]:
    """The spec with its number of GPUs settled: `auto` is one per rank where there are any."""
    known = config.read(call.workspace)
    asked = spec.get("gpus", 0)
    nproc = int(spec.get("nproc", 1))
    count = 0
    if asked != 0:
        cards = gpus.read_cached(call.workspace.gpus)
        if not cards:
            cards = gpus.chosen(gpus.query() or [], known.gpus)
        count = len(cards)
    want = (nproc if count else 0) if asked == "auto" else int(asked)
    if want > count:
        text = "asked for %s, there %s" % (
            queueing.count(want),
            "are none" if count == 0 else "is 1" if count == 1 else "are %d" % count,
        )
        raise Refused("no-gpu", text, wanted=want, count=count)
    return dict(spec, gpus=want, gpus_asked=asked)


def _take_snapshot(call: Call, digest: str, rows: Any) -> int:
    """Make sure that the snapshot is here, whole; the number of contents that came."""
    if snapshot.read_tree(call.workspace, digest) is not None:
        call.event(need=[])
        for _ in call.received():
            pass
        return 0
    if rows is None:
        call.event(need="manifest")
        rows = call.received_rows()
    try:
        tree: List[snapshot.Row] = snapshot.check_rows(rows)
        if wire.tree_digest(tree) != digest:
            raise snapshot.BadTree("the list is not the one its digest names")
        call.event(need=snapshot.needed(call.workspace, tree))
        stored = _receive(call)
        missing = snapshot.needed(call.workspace, tree)
        if missing:
            raise snapshot.BadTree("%d contents did not come" % len(missing))
    except snapshot.BadTree as error:
        raise Refused("corrupt", str(error)) from error
    snapshot.write_tree(call.workspace, digest, tree)
    return stored


def _receive(call: Call) -> int:
    writer = snapshot.BlobWriter(call.workspace)
    unzip = zlib.decompressobj()
    try:
        for payload in call.received():
            while payload:
                writer.feed(unzip.decompress(payload, wire.CHUNK * 4))
                payload = unzip.unconsumed_tail
        writer.feed(unzip.flush())
    except zlib.error as error:
        writer.abort()
        raise Refused("corrupt", "the pack cannot be read: %s" % error) from error
    except BaseException:
        writer.abort()
        raise
    writer.close()
    return writer.stored


def _make_run(call: Call, paths: RunPaths, spec: Dict[str, Any]) -> None:
    rows = snapshot.read_tree(call.workspace, spec["snapshot"])
    assert rows is not None
    if not os.path.isdir(paths.code):
        snapshot.lay_out(call.workspace, rows, paths.code)
    temporary = os.path.join(call.workspace.runs, ".tmp-%s-%d" % (paths.id, os.getpid()))
    shutil.rmtree(temporary, ignore_errors=True)
    os.makedirs(os.path.join(temporary, "attempts"))
    accepted = dict(spec, accepted_at=time.time())
    records.write(os.path.join(temporary, "spec.json"), accepted)
    records.sync_folder(temporary)
    try:
        os.rename(temporary, paths.folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise Refused(
            "conflict", "run %s was made by another client just now" % paths.id
        ) from error
    records.sync_folder(call.workspace.runs)
    spec.update(accepted)


def _reply(call: Call, paths: RunPaths, spec: Dict[str, Any]) -> Dict[str, Any]:
    pairs = view.read_all(call.workspace)
    maker = view.View(call.workspace, paths_module.find_leases(dict(os.environ)), pairs)
    pair = view.read_pair(paths)
    status = maker.status(pair[0], pair[1], full=False) if pair else None
    return {
        "id": paths.id,
        "gpus": spec.get("gpus", 0),
        "run": status.to_json() if status else None,
    }
