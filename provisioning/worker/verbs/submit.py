"""`submit`: takes a snapshot and a spec; the run exists from the rename of its folder on.

    client                                          worker
    REQ {"spec", "secrets", "notify", "diff",
         "list", "base", "ends"}
    list, END               unless "list" is null
    pack, END               END only if "ends"  →
                                                  ← REP {"id", "run", "worker", "repeated", …}

That is one round trip, when the client guessed right. It says what it believes the worker to have:
"list" null: this snapshot; "changes": the one named "base", the list is then `[[paths that went],
[rows that came or changed]]`; "whole": nothing. The pack has what it believes to be missing, and
"ends" when that was all; else the rest waits for the worker's word. What was guessed wrongly costs
time, never a run with other code:

                                                  ← EVENT {"need": "list"}     if it lacks either
    [END if not "ends"], the whole list, END  →
                                                  ← EVENT {"need": [digest, …]}   what is missing,
                                                    also none: after "need": "list" and where the
                                                    pack did not end; or what turned out to be
                                                    damaged there, if nothing was asked so far
    [the rest of the] pack, END               →
                                                  ← REP

No run is made before the END of a pack, and a list that was asked for has one behind it. In it
stand contents of the snapshot's files and, where the request says "diff", that of `spec.code.diff`,
each once; what is there already is passed over, what is neither is refused before it is written.

Order on disk: contents, tree, the run's copy of the code, then its folder with spec.json; see
snapshot.py for what is durable when. The same id with the same spec is answered with what is there,
so a client may repeat itself.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import zlib
from typing import Any, Dict, Iterable, List, Optional, Set

import causes
import config
import contents
import notify_store
import records
import secrets_store
import seen
import snapshot
import space
import supervisor
import venvs
import view
import wakeup
from paths import RunPaths

from runner import wire
from verbs import Call, Refused

LEAST_BYTES = 1 << 20
"""Left free on the disk of a host that has no larger reserve: records of runs are written there."""
SMALL_BYTES = 1 << 20
LAID_OUT_AT_ONCE = 2000
"""Rows of a snapshot whose copy is made before the answer; that of a larger one when it starts."""
ACCEPTED = ("accepted_at", "gpus", "notify", "worker_image", "worker_image_id")
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
    listed = call.received_rows() if request.get("list") else None
    supervisor.ensure(call.workspace, request.get("local"))
    client = take_notify(call, request)
    known = records.read(paths.spec)
    if known is not None:
        return _repeated(call, paths, known, spec)
    asked = {**settle_gpus(call, spec), **({"notify": client} if client else {})}
    check_environment(spec)
    check_after(call, spec)
    with space.using_contents(call.workspace):
        coming = _Coming(call, spec, request)
        rows = coming.take(listed)
        try:
            try:
                make_run(call, paths, asked, request.get("secrets"), rows)
            except snapshot.BadContents as error:
                coming.take_anew(rows, error)
                make_run(call, paths, asked, request.get("secrets"), rows)
        except snapshot.BadContents as error:
            raise Refused("corrupt", str(error)) from error
        except Refused as error:
            # the same client may have made it meanwhile, over a link that it has lost
            known = records.read(paths.spec)
            if error.body["code"] != "conflict" or known is None:
                raise
            return _repeated(call, paths, known, spec)
    wakeup.poke(call.workspace, paths.id)
    if not supervisor.is_up(call.workspace):
        # an idle worker may have ended while the code came in; the run is made, whatever comes now
        with contextlib.suppress(supervisor.CannotStart, OSError):
            supervisor.ensure(call.workspace, request.get("local"))
    return dict(reply(call, paths, asked), repeated=False, stored=coming.stored)


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


def check_environment(spec: Dict[str, Any]) -> None:
    """Refuse a run for an image of which this `venv` worker has no environment."""
    image = venvs.image_for(spec)
    try:
        venvs.python_for(dict(spec, image=image))
    except venvs.Missing as error:
        raise Refused("no-environment", str(error), image=image) from error


def check_after(call: Call, spec: Dict[str, Any]) -> None:
    """Refuse a run that is to wait for one that is not here."""
    for other in spec.get("after") or ():
        call.run(other)


def check_room(
    call: Call, tree: List[snapshot.Row], copied: bool, missing: Iterable[str] = ()
) -> None:
    """Refuse what would fill the disk, before a byte of it comes: it would stop what runs there.

    copied: the run gets its copy of the code now. missing: contents that are to come. Below the
    reserve what is small may still wait in the queue, since nothing starts or goes on there.
    Raises Refused.
    """
    room = space.room(call.workspace)
    want = snapshot.room_for(tree, missing, copied)
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


def code_waits(spec: Dict[str, Any], rows: List[snapshot.Row]) -> bool:
    """Whether a run gets its copy of the code when it starts: a thousand of a sweep may wait, and
    a submit is not to wait for tens of thousands of files."""
    return bool(spec.get("sweep")) or len(rows) > LAID_OUT_AT_ONCE


_whole: Set[str] = set()
"""Snapshots whose list this process has read."""


class _Coming:
    """What a client sends of a snapshot, up to all of it being here."""

    def __init__(self, call: Call, spec: Dict[str, Any], request: Dict[str, Any]) -> None:
        self._call = call
        self._workspace = call.workspace
        self._spec = spec
        self._digest = str(spec["snapshot"])
        self._kind = request.get("list")
        self._base = request.get("base")
        self._ends = bool(request.get("ends"))
        found = spec.get("code")
        code = found if isinstance(found, dict) else {}
        diff = code.get("diff") if request.get("diff") else None
        self._beside: Dict[str, int] = {}
        if diff is not None:
            size = code.get("diff_bytes")
            if not snapshot.is_digest(diff) or not isinstance(size, int):
                raise Refused("bad-request", "a diff that is no content")
            self._beside[diff] = size
        self.stored = 0
        self._has_asked = False

    def take(self, listed: Any) -> Optional[List[snapshot.Row]]:
        """The rows of the snapshot, which is then here, whole; None where nobody reads them.

        listed: the list that came, if one did. Raises Refused.
        """
        try:
            return self._take(listed)
        except snapshot.BadTree as error:
            raise Refused("corrupt", str(error)) from error

    def _take(self, listed: Any) -> Optional[List[snapshot.Row]]:
        swept = bool(self._spec.get("sweep"))
        if swept and self._digest in _whole and not listed and self._is_here():
            check_room(self._call, [], copied=False)
            for _ in self._call.received():
                pass
            return None
        tree = snapshot.read_tree(self._workspace, self._digest, checked=True)
        known = tree is not None
        if tree is None:
            tree = self._made_of(listed)
        asked = tree is None
        if tree is None:
            tree = self._ask_for_list()
        _whole.add(self._digest)
        missing = snapshot.needed(self._workspace, tree)
        check_room(self._call, tree, not code_waits(self._spec, tree), missing)
        sizes = dict(self._beside)
        sizes.update((row[4], row[3]) for row in tree if row[1] == "f")
        if not asked and self._ends:
            self._receive(sizes)
        missing = self._missing(missing)
        if missing or asked or not self._ends:
            self._ask(missing, sizes)
            missing = self._missing(missing)
        if missing:
            raise snapshot.BadTree("%d contents did not come" % len(missing))
        if not known:
            snapshot.write_tree(self._workspace, self._digest, tree)
        return tree

    def _is_here(self) -> bool:
        return snapshot.has_tree(self._workspace, self._digest) and not self._missing([])

    def take_anew(self, rows: Optional[List[snapshot.Row]], error: snapshot.BadContents) -> None:
        """Ask for contents that were found to be damaged. Raises `error` when that was done."""
        if rows is None or self._has_asked:
            raise error
        missing = snapshot.needed(self._workspace, rows)
        self._ask(missing, {row[4]: row[3] for row in rows if row[1] == "f"})
        if self._missing(missing):
            raise error

    def _ask(self, missing: List[str], sizes: Dict[str, int]) -> None:
        self._has_asked = True
        self._call.event(need=missing)
        self._receive(sizes)

    def _missing(self, before: List[str]) -> List[str]:
        """What of these is still not here, and of what comes beside."""
        wanted = [*before, *(each for each in self._beside if each not in before)]
        return [each for each in wanted if not os.path.exists(self._workspace.blob(each))]

    def _made_of(self, listed: Any) -> Optional[List[snapshot.Row]]:
        """The rows that a list makes; None where it changes what is not here as the client has it.

        Raises BadTree for a whole one that is wrong.
        """
        if self._kind == "whole":
            return self._checked(listed)
        base = self._base if snapshot.is_digest(self._base) else ""
        rows = snapshot.read_tree(self._workspace, base) if self._kind and base else None
        if rows is None:
            return None
        try:
            return self._checked(snapshot.changed(rows, listed))
        except snapshot.BadTree:
            return None

    def _ask_for_list(self) -> List[snapshot.Row]:
        if self._ends:
            self._pass_over()
        self._call.event(need="list")
        if not self._ends:
            self._pass_over()
        return self._checked(self._call.received_rows())

    def _pass_over(self) -> None:
        """A pack of which nobody knows what may be in it."""
        for _ in self._call.received():
            pass

    def _checked(self, rows: Any) -> List[snapshot.Row]:
        tree = snapshot.check_rows(rows)
        if wire.tree_digest(tree) != self._digest:
            raise snapshot.BadTree("the list is not the one its digest names")
        return tree

    def _receive(self, sizes: Dict[str, int]) -> None:
        """One pack: streams of zlib behind each other."""
        writer = contents.BlobWriter(self._workspace, sizes)
        unzip = zlib.decompressobj()
        try:
            for payload in self._call.received():
                while True:
                    data = unzip.decompress(payload, snapshot.BLOCK)
                    writer.feed(data)
                    payload = unzip.unconsumed_tail
                    if unzip.eof:
                        payload = unzip.unused_data
                        unzip = zlib.decompressobj()
                    elif not payload and len(data) < snapshot.BLOCK:
                        break
        except zlib.error as error:
            writer.abort()
            raise Refused("corrupt", "the pack cannot be read: %s" % error) from error
        except BaseException:
            writer.abort()
            raise
        writer.close()
        self.stored += writer.stored


def make_run(
    call: Call,
    paths: RunPaths,
    spec: Dict[str, Any],
    secrets: Any,
    rows: Optional[List[snapshot.Row]] = None,
) -> None:
    """Let a run exist: its code, its secrets, then, by one rename, itself; `spec` is completed.

    rows: of its snapshot, where they were read and the disk was found to have room for the run.
    What it made for a run that could not be made it removes. Raises Refused: conflict, bad-request,
    no-space.
    """
    temporary = os.path.join(call.workspace.runs, ".tmp-%s-%d" % (paths.id, os.getpid()))
    # one of another client with the same id has its own use for the copy
    made = [temporary] if os.path.isdir(paths.code) else [temporary, paths.code]
    try:
        if not spec.get("sweep") and not os.path.isdir(paths.code):
            if rows is None:
                rows = snapshot.read_tree(call.workspace, spec["snapshot"])
                assert rows is not None
                check_room(call, rows, not code_waits(spec, rows))
            if not code_waits(spec, rows):
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
    known = config.read(call.workspace)
    accepted["worker_image"] = venvs.image_for(spec) or known.image
    accepted["worker_image_id"] = known.image_id
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


def take_notify(call: Call, request: Dict[str, Any]) -> Optional[str]:
    """Keep how the operator wants to hear of runs; the client to tell of this one, or None.

    Raises Refused.
    """
    try:
        return notify_store.take(call.workspace, request.get("notify"))
    except ValueError as error:
        raise Refused("bad-request", str(error)) from error


def reply(call: Call, paths: RunPaths, spec: Dict[str, Any]) -> Dict[str, Any]:
    """What is answered about a run that was accepted."""
    pair = view.read_pair(paths)
    status = view.View(call.workspace).status(pair[0], pair[1], full=False) if pair else None
    return {
        "id": paths.id,
        "worker": config.read(call.workspace).worker,
        "gpus": spec.get("gpus", 0),
        "run": status.to_json() if status else None,
    }
