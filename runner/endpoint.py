"""One worker: one framed conversation, requests out, answers and byte streams in.

The worker program travels by itself (stub.py).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from runner import __version__, carriers, content, placement, stub, wire
from runner.carriers.base import CONNECT_TIMEOUT_S, Carrier
from runner.carriers.failures import NoContainer
from runner.errors import (
    Conflict,
    IntegrityError,
    NotFound,
    ProtocolMismatch,
    ProvisionError,
    RunnerError,
    SpecError,
    Unreachable,
    WorkerError,
    WrongState,
)
from runner.fields import said, valid_name
from runner.inboxes import Inboxes
from runner.model import Host

MAX_JUNK = 256 * 1024
"""What a chatty login shell may print before the worker speaks."""
MAX_LISTING = 256 << 20
_READ = 1 << 20
_MOST_TOLD = 200
"""Characters of what a worker says of itself."""
_EVENT_BYTES = 128
"""Counted for each event beside its text, so that empty ones come to an end as well."""
_LEAST_BYTES = 512
"""Within a frame, fewer bytes than these are no sign of life: they could drip for ever."""


class LinkLost(Unreachable):
    """The worker was there, then nothing came any more: what was asked may be done or not."""


class Worker:
    """A conversation with one worker; use it as a context manager.

    Raises HostError when there is no session, ProvisionError when there is no worker, LinkLost when
    the link dies on the way, and what a worker's refusal means (`_REFUSALS`).
    """

    def __init__(
        self,
        host: Host,
        *,
        patience_s: float = wire.CLIENT_PATIENCE_S,
        lane: int = 0,
        many: bool = False,
        image: str | None = None,
        container: str | None = None,
    ) -> None:
        """lane, many: see `carriers.open_carrier`. image, container: see `placement.worker_argv`;
        without them it is the worker of the host's own image, or any other of that workspace where
        there is none.
        """
        self.host = host
        self._patience_s = patience_s
        self._bundle = content.bundle()
        self._image = image
        self._none_of_image: NoContainer | None = None
        """Why the worker first asked for is not there, once another one is tried."""
        self._may_be_any = image is None and container is None and host.runtime == "docker"
        self._open = functools.partial(carriers.open_carrier, host, lane=lane, many=many)
        self._carrier: Carrier = self._open(self._argv(container))
        self._began = self._heard = time.monotonic()
        self._hello: dict[str, Any] | None = None
        self._inboxes = Inboxes()
        self._inboxes.open(0)
        self._next_stream = 1
        self._junk = bytearray()
        self._hello_at = time.time()
        self._spoken = threading.Event()
        self._spoke = False
        self._over: RunnerError | None = None
        self._closing = threading.Event()
        self._write_lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        threading.Thread(target=self._beat, daemon=True).start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the conversation; the run goes on."""
        self._closing.set()
        self._inboxes.close()
        self._carrier.close()
        self._reader.join(2)

    @property
    def hello(self) -> Mapping[str, Any]:
        """What the worker said of itself; waits for it."""
        while self._hello is None:
            told = wire_json(self._take(0, {wire.EVENT})[2], self.host.name)
            self._hello = {
                key: value[:_MOST_TOLD] if isinstance(value, str) else value
                for key, value in told.items()
            }
        return self._hello

    @property
    def clock_skew_s(self) -> float:
        """The worker's clock minus ours, as far as its hello tells."""
        now: Any = self.hello.get("now")
        return float(now) - self._hello_at if wire.is_number(now) else 0.0

    def call(
        self,
        verb: str,
        *,
        on_event: Callable[[Mapping[str, Any]], None] | None = None,
        **arguments: Any,
    ) -> tuple[dict[str, Any], list[Any]]:
        """(reply, rows) of a request whose DATA, if any, is one compressed listing."""
        request = self.open(verb, **arguments)
        data = bytearray()
        event_bytes = 0
        for kind, payload in request.frames():
            if kind == wire.DATA:
                data += payload
                if len(data) > MAX_LISTING:
                    raise WorkerError(f"{self.host.name}: the worker sent a listing without end")
            else:
                event_bytes += len(payload) + _EVENT_BYTES
                if event_bytes > MAX_LISTING:
                    raise WorkerError(f"{self.host.name}: the worker sent events without end")
                if on_event is not None:
                    on_event(wire_json(payload, self.host.name))
        return request.reply, read_rows(bytes(data), self.host.name)

    def open(
        self,
        verb: str,
        *,
        beside: Request | None = None,
        behind: Sequence[tuple[int, bytes]] = (),
        **arguments: Any,
    ) -> Request:
        """Send a request; its answers are read from what this returns.

        beside: they are read together with those of that request, by `frames_of`. behind: frames
        (kind, payload) of the request that go out with it, in one write.
        """
        stream = self._next_stream
        self._next_stream += 1
        self._inboxes.open(stream, beside.stream if beside is not None else None)
        body = dict(arguments, verb=verb)
        if self.host.runtime == "local":
            body["local"] = local_record(self.host)
        self._send(wire.pack_json(wire.REQ, stream, body) + _packed(stream, behind))
        return Request(self, stream)

    def frames_of(self, requests: Sequence[Request]) -> Iterator[tuple[Request, int, bytes]]:
        """DATA and EVENT frames of requests opened beside the first, as they come, until each has
        its reply.
        """
        waiting = {request.stream: request for request in requests}
        while waiting:
            kind, stream, payload = self._take(requests[0].stream)
            request = waiting.get(stream)
            if request is None:
                raise WorkerError(f"{self.host.name}: the worker answered out of turn")
            if kind == wire.REP:
                request.reply = wire_json(payload, self.host.name)
                del waiting[stream]
            elif kind in (wire.DATA, wire.EVENT):
                yield request, kind, payload

    def _send(self, data: bytes) -> None:
        self._wait_spoken()
        with self._write_lock:
            try:
                self._carrier.write(data)
            except OSError as error:
                raise self._end() from error

    def _take(self, stream: int, wanted: set[int] | None = None) -> wire.Frame:
        frame = self._inboxes.take(stream)
        if frame is None:
            raise self._end()
        kind, _, payload = frame
        if kind == wire.ERR:
            raise refusal(wire_json(payload, self.host.name), self.host.name)
        if wanted is not None and kind not in wanted:
            raise WorkerError(f"{self.host.name}: the worker answered out of turn")
        return frame

    def _end(self) -> RunnerError:
        self._reader.join(5)
        return self._over or LinkLost(f"{self.host.name}: the conversation was closed")

    def _wait_spoken(self) -> None:
        """Nothing is written before the worker program runs: the stub could take it for its own."""
        self._spoken.wait()
        if not self._spoke:
            raise self._end()

    def _read(self) -> None:
        reader = wire.FrameReader()
        error: RunnerError | None = None
        try:
            if self._skip_to_magic(reader) or self._try_another(reader):
                dripped = 0
                while data := self._carrier.read(_READ):
                    dripped += len(data)
                    if self._deliver(reader, data) or dripped >= _LEAST_BYTES:
                        self._heard, dripped = time.monotonic(), 0
            error = self._lost()
        except wire.WireError as problem:
            error = ProtocolMismatch(f"{self.host.name}: the worker speaks otherwise: {problem}")
        except OSError as problem:
            error = LinkLost(f"{self.host.name}: {problem}")
        except RunnerError as problem:
            error = problem
        self._over = self._over or error
        self._spoken.set()
        self._inboxes.close()

    def _try_another(self, reader: wire.FrameReader) -> bool:
        """Whether any other worker of the workspace speaks, where there is none of that image."""
        failure = self._carrier.failure()
        if not self._may_be_any or not isinstance(failure, NoContainer):
            return False
        self._none_of_image = failure
        self._carrier.close()
        self._junk.clear()
        self._began = self._heard = time.monotonic()
        self._carrier = self._open(self._argv(placement.ANY))
        if self._closing.is_set():  # it was ended meanwhile, and whoever did that saw the old one
            self._carrier.close()
        return self._skip_to_magic(reader)

    def _skip_to_magic(self, reader: wire.FrameReader) -> bool:
        seen = self._junk
        given = False
        while data := self._carrier.read(_READ):
            seen += data
            need = -1 if given else seen.find(stub.NEED)
            if need >= 0:
                given = True
                del seen[need : need + len(stub.NEED)]
                self._carrier.write(stub.packed(self._bundle.data))
            at = seen.find(wire.MAGIC)
            if at >= 0:
                rest = bytes(seen[at + len(wire.MAGIC) :])
                del seen[at:]
                self._heard = time.monotonic()
                self._hello_at = time.time()
                self._spoke = True
                self._spoken.set()
                self._deliver(reader, rest)
                return True
            if len(seen) > MAX_JUNK:
                raise wire.WireError(f"{MAX_JUNK} bytes came, but no worker spoke")
        return False

    def _deliver(self, reader: wire.FrameReader, data: bytes) -> bool:
        """Hand on the frames that are complete now; whether there was one."""
        whole = False
        for kind, stream, payload in reader.feed(data):
            whole = True
            if kind == wire.ERR and stream == 0:
                raise refusal(wire_json(payload, self.host.name), self.host.name)
            if kind != wire.PING:
                self._inboxes.put((kind, stream, payload))
                self._heard = time.monotonic()  # it may have waited for room
        return whole

    def _beat(self) -> None:
        ping = wire.pack_frame(wire.PING, 0)
        while not self._closing.wait(wire.BEAT_S):
            now = time.monotonic()
            if self._spoke:
                if now - self._heard > self._patience_s and not self._inboxes.full:
                    self._over = LinkLost(f"{self.host.name}: no answer for {self._patience_s:g} s")
                    break
                # a full pipe means that something is being sent: that is a sign of life of ours
                if self._write_lock.acquire(blocking=False):
                    with contextlib.suppress(OSError):
                        self._carrier.write(ping)
                    self._write_lock.release()
            elif now - self._began > CONNECT_TIMEOUT_S + self._patience_s:
                self._over = Unreachable(f"{self.host.name}: no answer for {CONNECT_TIMEOUT_S} s")
                break
        else:
            return
        self._carrier.close()

    def _lost(self) -> RunnerError:
        """What it means that the stream ended."""
        if self._spoke:
            return LinkLost(f"{self.host.name}: the link was lost")
        failure = self._carrier.failure()
        junk = bytes(self._junk).decode("utf-8", "replace").strip()
        if failure is not None:
            # docker tells on stdout what keeps it from starting a program in a container
            if junk and not failure.advice:
                failure.advice = (f"it said: {junk.splitlines()[-1][:500]}",)
            if isinstance(failure, NoContainer):
                failure = self._none_of_image or failure
                if self._image is not None and not failure.stopped:
                    return no_worker_of(self.host, self._image)
            return failure
        said = self._carrier.trouble() or junk
        last = said.splitlines()[-1] if said else "nothing was said"
        return ProvisionError(
            f"{self.host.name}: the worker program did not start: {last}",
            *([] if self.host.runtime == "local" else [f"runner provision host={self.host.name}"]),
        )

    def _argv(self, container: str | None) -> list[str]:
        named = os.environ.get("RUNNER_WORKSPACE")
        if self.host.runtime == "local" and named and not os.path.isabs(named):
            raise SpecError(f"RUNNER_WORKSPACE is {said(named)}; it must begin with /")
        python = sys.executable if self.host.runtime == "local" else "python3"
        argv = [python, "-I", "-S", "-B", "-c", stub.stub_of(self._bundle.digest)]
        return placement.worker_argv(self.host, argv, self._image, container)


def no_worker_of(host: Host, image: str) -> NoContainer:
    """That a host has no worker of an image, and how to make one."""
    of_host = image == host.image
    return NoContainer(
        f"{host.name}: there is no worker {'' if of_host else f'of image {image} '}there yet",
        f"runner provision host={host.name}{'' if of_host else f' image={image}'}",
    )


class Request:
    """A request under way."""

    def __init__(self, worker: Worker, stream: int) -> None:
        self._worker = worker
        self.stream = stream
        self.reply: dict[str, Any] = {}

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """DATA and EVENT frames as they come, until the reply; then `reply` is set."""
        while True:
            kind, _, payload = self._worker._take(self.stream)
            if kind == wire.REP:
                self.reply = wire_json(payload, self._worker.host.name)
                return
            if kind in (wire.DATA, wire.EVENT):
                yield kind, payload

    def event(self) -> dict[str, Any]:
        """The next EVENT, which must come before anything else."""
        payload = self._worker._take(self.stream, {wire.EVENT})[2]
        return wire_json(payload, self._worker.host.name)

    def finish(self) -> dict[str, Any]:
        """The reply, whatever comes before it."""
        for _ in self.frames():
            pass
        return self.reply

    def send(self, data: bytes) -> None:
        """Bytes of this request, in frames of a good size."""
        for start in range(0, len(data), wire.CHUNK):
            piece = data[start : start + wire.CHUNK]
            self._worker._send(wire.pack_frame(wire.DATA, self.stream, piece))

    def end(self) -> None:
        """No more bytes."""
        self._worker._send(wire.pack_frame(wire.END, self.stream))

    def send_frames(self, frames: Sequence[tuple[int, bytes]]) -> None:
        """Frames (kind, payload) in one write."""
        self._worker._send(_packed(self.stream, frames))

    def send_rows(self, rows: list[Any]) -> None:
        """A compressed listing, with its end."""
        text = json.dumps(rows, separators=(",", ":")).encode("ascii")
        self.send_frames([(wire.DATA, zlib.compress(text, 1)), (wire.END, b"")])


def _packed(stream: int, frames: Sequence[tuple[int, bytes]]) -> bytes:
    """Frames of a stream as they travel, DATA in frames of a good size."""
    packed = []
    for kind, payload in frames:
        if kind != wire.DATA:
            packed.append(wire.pack_frame(kind, stream, payload))
            continue
        for start in range(0, len(payload), wire.CHUNK):
            packed.append(wire.pack_frame(kind, stream, payload[start : start + wire.CHUNK]))
    return b"".join(packed)


def local_record(host: Host) -> dict[str, Any]:
    """What a `local` worker is to be, for whoever starts it."""
    return {
        "runtime": "local",
        "python": sys.executable,
        "version": __version__,
        **host.settings(),
        "data": dict(host.data),
    }


def wire_json(payload: bytes, host: str) -> dict[str, Any]:
    """A table the worker sent. Raises WorkerError."""
    try:
        return wire.read_json(payload)
    except wire.WireError as error:
        raise WorkerError(f"{host}: the worker's answer cannot be read: {error}") from error


def read_rows(data: bytes, host: str) -> list[Any]:
    """A compressed listing the worker sent, bounded before it is built. Raises WorkerError."""
    if not data:
        return []
    unzip = zlib.decompressobj()
    try:
        text = unzip.decompress(data, MAX_LISTING)
        rows = json.loads(text) if unzip.eof else None
    except (zlib.error, ValueError, RecursionError) as error:
        raise WorkerError(f"{host}: the worker's listing cannot be read: {error}") from error
    if not isinstance(rows, list):
        raise WorkerError(f"{host}: the worker's listing cannot be read")
    return rows


_REFUSALS: dict[str, type[RunnerError]] = {
    "unknown-run": NotFound,
    "no-checkpoint": NotFound,
    "no-code": NotFound,
    "no-gpu": SpecError,
    "bad-rank": SpecError,
    "no-secret": SpecError,
    "wrong-image": SpecError,
    "conflict": Conflict,
    "wrong-state": WrongState,
    "elsewhere": WrongState,
    "corrupt": IntegrityError,
    "changed": IntegrityError,
    "version": ProtocolMismatch,
    "no-verb": ProtocolMismatch,
    "no-worker": ProvisionError,
    "no-service": ProvisionError,
    "no-environment": ProvisionError,
    "no-boot": ProvisionError,
    "bad-workspace": SpecError,
}


def refusal(body: Mapping[str, Any], host: str) -> RunnerError:
    """A worker's refusal as one of our errors."""
    code = str(body.get("code"))
    text = str(body.get("text") or code)
    if code == "no-space":
        text = f"no room on its disk ({text})"
    kind = _REFUSALS.get(code, WorkerError)
    advice = [f"see what can go: runner gc host={host} --dry-run"] if code == "no-space" else []
    if code == "no-environment":
        image = body.get("image")
        named = f" image={image}" if isinstance(image, str) and valid_name(image) else ""
        advice = [f"runner provision host={host}{named}"]
    error = kind(f"{host}: {text}", *advice)
    error.code = code
    error.told = body
    return error
