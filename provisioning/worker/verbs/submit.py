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

import causes
import config
import records
import secrets_store
import seen
import snapshot
import space
import supervisor
import view
import wakeup
from paths import RunPaths

from runner import wire
from verbs import Call, Refused

LEAST_BYTES = 1 << 20
"""Left free on the disk of a host that has no larger reserve: records of runs are written there."""
SMALL_BYTES = 1 << 20
ACCEPTED = ("accepted_at", "gpus", "worker_image")
"""What the worker adds to a spec, or settles in it."""


def answer(call: Call, request: Dict[str, Any]) -> Dict[str, Any]:
    """See the module's docstring. Raises Refused.

    Codes: conflict, no-gpu, no-space, corrupt, bad-request.
    """
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
    asked = settle_gpus(call, spec)
    check_after(call, spec)
    with space.using_contents(call.workspace):
        stored = _take_snapshot(call, digest, sent_manifest, bool(spec.get("sweep")))
        make_run(call, paths, asked, request.get("secrets"))
    wakeup.poke(call.workspace, paths.id)
    # an idle worker may have ended while the code came in
    supervisor.ensure(call.workspace, request.get("local"))
    return dict(reply(call, paths, asked), repeated=False, stored=stored)


def _repeated(
    call: Call, paths: RunPaths, known: Dict[str, Any], spec: Dict[str, Any]
) -> Dict[str, Any]:
    same = {k: v for k, v in known.items() if k not in ACCEPTED + ("gpus_asked",)}
    asked = {k: v for k, v in spec.items() if k not in ACCEPTED}
    if same != asked or known.get("gpus_asked") != spec.get("gpus"):
        raise Refused("conflict", "run %s exists with another spec" % paths.id)
    # the first time it may have been cut just before this
    wakeup.poke(call.workspace, paths.id)
    return dict(reply(call, paths, known), repeated=True, stored=0)


def settle_gpus(call: Call, spec: Dict[str, Any]) -> Dict[str, Any]:
    """The spec with its number of GPUs settled: `auto` is one per rank where there are any."""
    asked = spec.get("gpus", 0)
    known = config.read(call.workspace)
    try:
        want = seen.settle(asked, int(spec.get("nproc", 1)), call.workspace, known)
    except seen.NoGpu as error:
        raise Refused("no-gpu", str(error), wanted=error.wanted, count=error.count) from error
    return dict(spec, gpus=want, gpus_asked=asked)


def check_after(call: Call, spec: Dict[str, Any]) -> None:
    """Refuse a run that is to wait for one that is not here."""
    for other in spec.get("after") or ():
        call.run(other)


def check_room(call: Call, tree: List[snapshot.Row], copied: bool) -> None:
    """Refuse what would fill the disk, before a byte of it comes: it would stop what runs there.

    copied: the run gets its copy of the code now. Below the reserve what is small may still wait
    in the queue, since nothing starts or goes on there. Raises Refused.
    """
    room = space.room(call.workspace)
    want = snapshot.room_for(call.workspace, tree, copied)
    left = room.free - want.bytes
    if room.files is not None and room.files < want.files:
        text = "no inodes left: it has room for %d more files, this takes %d"
        raise Refused("no-space", text % (room.files, want.files))
    reserve = config.read(call.workspace).disk_reserve
    above = room.free >= reserve or want.bytes > SMALL_BYTES
    floor = max(reserve if above else 0, LEAST_BYTES)
    if left < floor:
        text = "%s free; this takes %s, and %s must stay free"
        sizes = tuple(map(causes.size, (room.free, want.bytes, floor)))
        raise Refused("no-space", text % sizes, free=room.free, want=want.bytes, floor=floor)


def _take_snapshot(call: Call, digest: str, rows: Any, swept: bool) -> int:
    """Make sure that the snapshot is here, whole; the number of contents that came.

    swept: for a member of a sweep, whose code is laid out when it starts.
    """
    known = snapshot.read_tree(call.workspace, digest)
    if known is not None:
        check_room(call, known, copied=not swept)
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
        check_room(call, tree, copied=not swept)
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


def make_run(call: Call, paths: RunPaths, spec: Dict[str, Any], secrets: Any) -> None:
    """Let a run exist: its code, its secrets, then, by one rename, itself; `spec` is completed.

    What it made for a run that could not be made it removes. Raises Refused: conflict, bad-request,
    no-space.
    """
    rows = snapshot.read_tree(call.workspace, spec["snapshot"])
    assert rows is not None
    temporary = os.path.join(call.workspace.runs, ".tmp-%s-%d" % (paths.id, os.getpid()))
    # one of another client with the same id has its own use for the copy
    made = [temporary] if os.path.isdir(paths.code) else [temporary, paths.code]
    try:
        # the code of a sweep's members is laid out when each starts: a thousand of them may wait
        if not spec.get("sweep") and not os.path.isdir(paths.code):
            check_room(call, rows, copied=True)
            snapshot.lay_out(call.workspace, rows, paths.code)
        if not os.path.isdir(paths.secrets):
            made.append(paths.secrets)
        store_secrets(paths, spec, secrets)
        _make_folder(call, paths, spec, temporary)
    except BaseException:
        for path in [temporary] if os.path.exists(paths.spec) else made:
            shutil.rmtree(path, ignore_errors=True)
        raise


def _make_folder(call: Call, paths: RunPaths, spec: Dict[str, Any], temporary: str) -> None:
    shutil.rmtree(temporary, ignore_errors=True)
    os.makedirs(os.path.join(temporary, "attempts"))
    # members of a sweep are made several at a time, and start in their order all the same
    accepted = dict(spec, accepted_at=call.asked_at if spec.get("sweep") else time.time())
    accepted["worker_image"] = config.read(call.workspace).image
    records.write(os.path.join(temporary, "spec.json"), accepted)
    records.sync_folder(temporary)
    try:
        os.rename(temporary, paths.folder)
    except OSError as error:
        if not os.path.exists(paths.folder):
            raise
        raise Refused(
            "conflict", "run %s was made by another client just now" % paths.id
        ) from error
    records.sync_folder(call.workspace.runs)
    spec.update(accepted)


def store_secrets(paths: RunPaths, spec: Dict[str, Any], secrets: Any) -> None:
    """Keep the values that came with a request. Raises Refused."""
    given = secrets if isinstance(secrets, dict) else {}
    lacking = [name for name in spec.get("secrets") or () if name not in given]
    if lacking:
        raise Refused("no-secret", "the value of %s did not come" % ", ".join(lacking))
    try:
        secrets_store.write(paths, given)
    except ValueError as error:
        raise Refused("bad-request", str(error)) from error


def reply(call: Call, paths: RunPaths, spec: Dict[str, Any]) -> Dict[str, Any]:
    """What is answered about a run that was accepted."""
    pair = view.read_pair(paths)
    status = view.View(call.workspace).status(pair[0], pair[1], full=False) if pair else None
    return {
        "id": paths.id,
        "gpus": spec.get("gpus", 0),
        "run": status.to_json() if status else None,
    }
