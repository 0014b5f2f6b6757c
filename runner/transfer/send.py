"""Hand runs over: of the code only what the worker lacks travels, in one round trip as a rule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner import wire
from runner.endpoint import Request, Worker, wire_json
from runner.errors import WorkerError
from runner.manifest import Snapshot
from runner.transfer.offer import Contents, Offer, Packer, packed_rows

AT_ONCE = 8
"""Submits of a sweep under way at a time."""
LONGEST_ID = 128


@dataclass(frozen=True)
class Accepted:
    """A worker's answer to a submit."""

    run: Mapping[str, Any]
    gpus: int
    sent_bytes: int = 0
    """Of code, as it travelled: lists and contents."""
    worker: str | None = None
    """Its id, which it may have got just now."""


def submit(
    worker: Worker,
    snapshot: Snapshot,
    contents: Contents,
    offer: Offer,
    spec: Mapping[str, Any],
    *,
    secrets: Mapping[str, str],
    notify: Mapping[str, Any] | None = None,
    on_sent: Callable[[int, int], None] = lambda done, whole: None,
    on_handed: Callable[[], None] = lambda: None,
    on_asked: Callable[[], None] = lambda: None,
) -> Accepted:
    """Hand a run over; the steps are those of verbs/submit.py.

    secrets: values in base64. notify: what the worker is told of how the operator hears of runs.
    on_sent: bytes of the contents asked for that were sent so far, and of all of them. on_handed:
    called before what may be the last byte goes out, without which the worker makes no run.
    on_asked: called when it asks for more: it has made none of this request.
    """
    _ = worker.hello  # one that never speaks was handed nothing
    if offer.ends:
        on_handed()
    request = worker.open(
        "submit",
        behind=offer.frames,
        spec=dict(spec),
        secrets=dict(secrets),
        notify=notify,
        diff=bool(contents.beside),
        list=offer.kind,
        base=offer.base,
        ends=offer.ends,
    )
    sent = len(offer.rows) + len(offer.pack)
    packed = set(offer.packed)
    ended, listed, asked = offer.ends, False, False
    for kind, payload in request.frames():
        if kind != wire.EVENT:
            raise _out_of_turn(worker)
        need = wire_json(payload, worker.host.name).get("need")
        if ended:
            on_asked()
        if need == "list" and not listed and not asked and offer.kind != "whole":
            # what was packed is passed over, for want of a list to check it against
            rows = packed_rows([list(row) for row in snapshot.rows])
            close = [] if ended else [(wire.END, b"")]
            request.send_frames([*close, (wire.DATA, rows), (wire.END, b"")])
            sent += len(rows)
            packed.clear()
            ended, listed = False, True
        elif isinstance(need, list) and not asked:
            if not all(isinstance(digest, str) and digest in contents for digest in need):
                name = worker.host.name
                raise WorkerError(
                    f"{name}: the worker asked for a content that is not in the snapshot"
                )
            if offer.ends and not listed:
                packed.clear()
            wanted = [digest for digest in dict.fromkeys(need) if digest not in packed]
            rest = _send_contents(request, contents, wanted, on_sent)
            sent += rest.sent
            on_handed()
            request.send_frames([(wire.DATA, rest.last), (wire.END, b"")])
            ended = asked = True
        else:
            raise _out_of_turn(worker)
    return _accepted(worker, request.reply, spec, sent)


def submit_more(
    worker: Worker,
    specs: Iterable[Mapping[str, Any]],
    *,
    secrets: Mapping[str, str],
    notify: Mapping[str, Any] | None = None,
) -> Iterator[Accepted]:
    """Hand over further runs of a snapshot that the worker just took; answers in their order.

    Several are under way at a time, so that a slow link costs its delay once for all of those.
    """
    under_way: deque[tuple[Request, Mapping[str, Any]]] = deque()
    for spec in specs:
        request = worker.open(
            "submit",
            behind=[(wire.END, b"")],  # of a pack, of which nothing can be needed
            spec=dict(spec),
            secrets=dict(secrets),
            notify=notify,
            diff=False,
            list=None,
            base=None,
            ends=True,
        )
        under_way.append((request, spec))
        if len(under_way) == AT_ONCE:
            yield _answer(worker, *under_way.popleft())
    while under_way:
        yield _answer(worker, *under_way.popleft())


def _answer(worker: Worker, request: Request, spec: Mapping[str, Any]) -> Accepted:
    for _ in request.frames():
        raise _out_of_turn(worker)
    return _accepted(worker, request.reply, spec, 0)


def _out_of_turn(worker: Worker) -> WorkerError:
    return WorkerError(f"{worker.host.name}: the worker answered out of turn")


def _accepted(
    worker: Worker, reply: Mapping[str, Any], spec: Mapping[str, Any], sent_bytes: int
) -> Accepted:
    run = reply.get("run")
    if not isinstance(run, dict) or run.get("id") != spec["id"]:
        raise WorkerError(f"{worker.host.name}: the worker answered for another run")
    gpus = reply.get("gpus") or 0
    if not isinstance(gpus, int):
        raise WorkerError(f"{worker.host.name}: the worker's answer cannot be read: gpus {gpus!r}")
    name = reply.get("worker")
    known = name[:LONGEST_ID] if isinstance(name, str) else None
    return Accepted(run, gpus, sent_bytes, known)


@dataclass(frozen=True)
class _Sent:
    sent: int
    """Bytes, with those of `last`."""
    last: bytes
    """What is still to be sent."""


def _send_contents(
    request: Request,
    contents: Contents,
    wanted: Iterable[str],
    on_sent: Callable[[int, int], None],
) -> _Sent:
    """Send contents, all but the end of their pack."""
    digests = list(wanted)
    whole = sum(map(contents.size, digests))
    done = sent = 0
    packer = Packer()
    waiting = bytearray()
    for digest in digests:
        for count, data in packer.add(contents, digest):
            waiting += data
            done += count
            if len(waiting) >= wire.CHUNK:
                sent += len(waiting)
                request.send(bytes(waiting))
                waiting.clear()
                on_sent(done, whole)
    waiting += packer.finish()
    return _Sent(sent + len(waiting), bytes(waiting))
