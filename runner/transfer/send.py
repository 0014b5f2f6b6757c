"""Hand runs over: of the code only what the worker lacks travels."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner import wire
from runner.code import tree
from runner.endpoint import Request, Worker, wire_json
from runner.errors import WorkerError
from runner.manifest import Snapshot

AT_ONCE = 8
"""Submits of a sweep under way at a time."""


@dataclass(frozen=True)
class Accepted:
    """A worker's answer to a submit."""

    run: Mapping[str, Any]
    repeated: bool
    gpus: int
    sent_files: int
    sent_bytes: int


def submit(
    worker: Worker,
    root: Path,
    snapshot: Snapshot,
    spec: Mapping[str, Any],
    *,
    secrets: Mapping[str, str],
    holds_snapshot: bool,
    on_sent: Callable[[int, int], None] = lambda done, whole: None,
    on_handed: Callable[[], None] = lambda: None,
) -> Accepted:
    """Hand a run over: only contents the worker lacks travel. See verbs/submit.py for the steps.

    secrets: values in base64. holds_snapshot: the worker is believed to have it, so that its list
    need not travel; if it does not, it asks. on_sent: bytes of contents sent so far, and to send.
    on_handed: called before the last byte goes out, without which the worker makes no run.
    """
    rows = [list(row) for row in snapshot.rows]
    request = worker.open(
        "submit", spec=dict(spec), manifest=not holds_snapshot, secrets=dict(secrets)
    )
    if not holds_snapshot:
        request.send_rows(rows)
    answers = request.frames()
    sent = sent_bytes = 0
    listed, given = not holds_snapshot, False
    for kind, payload in answers:
        if kind != wire.EVENT:
            raise WorkerError(f"{worker.host.name}: the worker answered out of turn")
        need = wire_json(payload, worker.host.name).get("need")
        if need == "manifest" and not listed:
            listed = True
            request.send_rows(rows)
        elif isinstance(need, list) and not given:
            given = True
            sent, sent_bytes = len(need), _send_contents(request, root, snapshot, need, on_sent)
            on_handed()
            request.end()
        else:
            raise WorkerError(f"{worker.host.name}: the worker answered out of turn")
    return _accepted(worker, request.reply, spec, sent, sent_bytes)


def submit_more(
    worker: Worker, specs: Iterable[Mapping[str, Any]], *, secrets: Mapping[str, str]
) -> Iterator[Accepted]:
    """Hand over further runs of a snapshot that the worker just took; answers in their order.

    Several are under way at a time, so that a slow link costs its delay once for all of those.
    """
    under_way: deque[tuple[Request, Mapping[str, Any]]] = deque()
    for spec in specs:
        request = worker.open("submit", spec=dict(spec), manifest=False, secrets=dict(secrets))
        request.end()  # of contents, none of which can be needed
        under_way.append((request, spec))
        if len(under_way) == AT_ONCE:
            yield _answer(worker, *under_way.popleft())
    while under_way:
        yield _answer(worker, *under_way.popleft())


def _answer(worker: Worker, request: Request, spec: Mapping[str, Any]) -> Accepted:
    for kind, payload in request.frames():
        if kind != wire.EVENT or wire_json(payload, worker.host.name).get("need") != []:
            raise WorkerError(f"{worker.host.name}: the worker answered out of turn")
    return _accepted(worker, request.reply, spec, 0, 0)


def _accepted(
    worker: Worker, reply: Mapping[str, Any], spec: Mapping[str, Any], sent: int, sent_bytes: int
) -> Accepted:
    run = reply.get("run")
    if not isinstance(run, dict) or run.get("id") != spec["id"]:
        raise WorkerError(f"{worker.host.name}: the worker answered for another run")
    gpus = reply.get("gpus") or 0
    if not isinstance(gpus, int):
        raise WorkerError(f"{worker.host.name}: the worker's answer cannot be read: gpus {gpus!r}")
    return Accepted(run, bool(reply.get("repeated")), gpus, sent, sent_bytes)


def _send_contents(
    request: Any,
    root: Path,
    snapshot: Snapshot,
    need: Iterable[Any],
    on_sent: Callable[[int, int], None],
) -> int:
    paths = snapshot.paths
    sizes = {row[4]: row[3] for row in snapshot.rows if row[1] == "f"}
    wanted = [str(digest) for digest in need]
    whole = sum(sizes.get(digest, 0) for digest in wanted)
    done = 0
    zipper = zlib.compressobj(1)
    for digest in wanted:
        if digest not in paths:
            raise WorkerError("the worker asked for a content that is not in the snapshot")
        head = wire.PACK_HEAD.pack(bytes.fromhex(digest), sizes[digest])
        request.send(zipper.compress(head))
        for piece in tree.read_content(root, paths[digest], sizes[digest], digest):
            request.send(zipper.compress(piece))
            done += len(piece)
            on_sent(done, whole)
    request.send(zipper.flush())
    return done
