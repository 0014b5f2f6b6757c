"""The conversation between operator and worker, and the records both read (stdlib, Python 3.9).

One command is one conversation over the worker program's stdin and stdout. The worker speaks
first: the magic line, then frames. What a chatty shell prints before that line is skipped.

    runner-wire/1 LF
    frame = u32 payload length (at most 16 MiB), u8 kind, u32 stream, payload

    kind      payload   means
    1 REQ     JSON      {"verb": …, …arguments}; opens the stream it stands on
    2 REP     JSON      the answer; the last frame of its stream
    3 DATA    bytes     belongs to the verb of its stream
    4 END     empty     no more DATA from this side on this stream
    5 PING    empty     stream 0; both sides send one each second
    6 ERR     JSON      {"code": …, "text": …}; the last frame of its stream
    7 EVENT   JSON      belongs to the verb of its stream; on stream 0: the hello

The first frame of the worker is its hello, an EVENT on stream 0; the client does not wait for it
before it sends its first request:

    {"wire": 1, "version": "0.1.0", "worker": "w-3f…", "runtime": "docker", "image": "torch-2.6",
     "now": 1764600000.0, "python": "3.11.2"}

The client takes the link for dead after `CLIENT_PATIENCE_S` without a frame (connecting has its
own limit), the worker after `WORKER_PATIENCE_S`.

Error codes (`ERR`): conflict, corrupt, changed, bad-path, bad-rank, bad-request, bad-workspace,
no-space, no-gpu, no-worker, no-service, unknown-run, wrong-state, wrong-image, no-checkpoint,
no-code, no-secret, no-verb, os (with errno), version, busy, bug.

A **pack** carries file contents in DATA frames, as one byte stream cut anywhere:
32 bytes sha256, u64 size, then the bytes, again and again. It travels as streams of zlib, one
behind the other: what does not shrink stands in one of its own.

A **tree** is the list of what a snapshot holds: `[path, kind, mode, size, sha256-or-target]`,
sorted by path, kind `f` (file), `d` (an empty folder) or `l` (link; the last item is its target).
Paths are relative, with `/`, UTF-8 with surrogateescape. Its digest is `tree_digest`.

Readers ignore keys they do not know, so a newer worker may say more. Version 1.
"""

from __future__ import annotations

import collections
import json
import struct
from typing import (
    Any,
    Deque,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

WIRE = 1
MAGIC = b"runner-wire/1\n"
MAX_FRAME = 16 << 20
CHUNK = 256 * 1024
BEAT_S = 1.0
CLIENT_PATIENCE_S = 3.5
WORKER_PATIENCE_S = 15.0

REQ, REP, DATA, END, PING, ERR, EVENT = range(1, 8)
_HEAD = struct.Struct(">IBI")
PACK_HEAD = struct.Struct(">32sQ")
TAIL_HEAD = struct.Struct(">Q")
"""Before the bytes of each DATA frame of a tail: their offset in the log."""
PART_HEAD = struct.Struct(">IBQ")
"""Of each part of a `files` stream, whose frames hold whole parts: an index in what was asked, one
of PART_…, a count."""
PART_BYTES, PART_HOLE, PART_SUM, PART_LEFT = range(4)
"""`count` bytes that follow; `count` zeros that do not; then the sha256 asked for (32 bytes), or no
sum, since (count) the file changed, is gone, or begins otherwise than it did."""
LEFT_CHANGED, LEFT_GONE, LEFT_OTHER = range(3)


class WireError(Exception):
    """What came is not a frame of this protocol."""


Frame = Tuple[int, int, bytes]
Buffer = Union[bytes, memoryview]


def pack_frame(kind: int, stream: int, *payload: Buffer) -> bytes:
    """One frame, of all pieces of its payload. Raises WireError when that is too large."""
    size = sum(map(len, payload))
    if size > MAX_FRAME:
        raise WireError("frame of %d bytes; at most %d" % (size, MAX_FRAME))
    return b"".join((_HEAD.pack(size, kind, stream), *payload))


def pack_json(kind: int, stream: int, body: Dict[str, Any]) -> bytes:
    """One frame with a JSON payload; text keeps the bytes of odd file names (surrogates)."""
    text = json.dumps(body, separators=(",", ":"), ensure_ascii=True)
    return pack_frame(kind, stream, text.encode("ascii"))


def read_json(payload: bytes) -> Dict[str, Any]:
    """The JSON object in a frame. Raises WireError, also for nesting too deep for json."""
    try:
        body = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise WireError("not JSON: %s" % error) from error
    if not isinstance(body, dict):
        raise WireError("not a JSON object")
    return body


class FrameReader:
    """Turns a byte stream into frames. Bounded: a frame that claims too much is an error."""

    def __init__(self) -> None:
        self._pieces: Deque[memoryview] = collections.deque()
        self._have = 0
        self._need = _HEAD.size
        self._head: Optional[Tuple[int, int]] = None
        """Kind and stream of the frame whose payload is under way."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Frames completed by `data`. Raises WireError."""
        if data:
            self._pieces.append(memoryview(data))
            self._have += len(data)
        while self._have >= self._need:
            block = self._take(self._need)
            if self._head is None:
                size, kind, stream = _HEAD.unpack(block)
                if size > MAX_FRAME or not REQ <= kind <= EVENT:
                    raise WireError("not a frame (kind %d, %d bytes)" % (kind, size))
                self._head, self._need = (kind, stream), size
            else:
                kind, stream = self._head
                self._head, self._need = None, _HEAD.size
                yield kind, stream, block

    def _take(self, count: int) -> bytes:
        """The next bytes, copied once; so many are there."""
        self._have -= count
        taken: List[memoryview] = []
        while count:
            piece = self._pieces[0]
            if len(piece) > count:
                self._pieces[0] = piece[count:]
                piece = piece[:count]
            else:
                self._pieces.popleft()
            count -= len(piece)
            taken.append(piece)
        return b"".join(taken)


class Unpacker:
    """Reads a pack piece by piece: yields (sha256 hex, size) when a file begins, then its bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0
        self._open = False

    def feed(self, data: bytes) -> Iterator[Tuple[Optional[Tuple[str, int]], bytes]]:
        """Pairs: (head, b"") opens a file, (None, bytes) continues it; a file ends at its size."""
        self._buffer += data
        while True:
            if not self._open:
                if len(self._buffer) < PACK_HEAD.size:
                    return
                digest, size = PACK_HEAD.unpack_from(self._buffer)
                del self._buffer[: PACK_HEAD.size]
                self._left, self._open = size, size > 0
                yield (digest.hex(), size), b""
                continue
            if not self._buffer:
                return
            piece = bytes(self._buffer[: self._left])
            del self._buffer[: len(piece)]
            self._left -= len(piece)
            self._open = self._left > 0
            yield None, piece

    @property
    def idle(self) -> bool:
        """Whether the pack may end here."""
        return not self._open and not self._buffer


TreeRow = Sequence[Any]


def tree_digest(rows: Iterable[TreeRow]) -> str:
    """The name of a snapshot: sha256 over its rows, whatever their order."""
    import hashlib  # what asks for no tree starts sooner without

    digest = hashlib.sha256(b"runner-tree/1\n")
    for path, kind, mode, size, what in sorted(rows, key=lambda row: str(row[0])):
        line = "%s\0%s\0%o\0%d\0%s\n" % (path, kind, mode, size, what)
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def plain_path(path: object) -> bool:
    """Whether a path that the other side named is relative and made of plain components."""
    return (
        isinstance(path, str)
        and 0 < len(path) <= 4096
        and "\0" not in path
        and all(part not in ("", ".", "..") and len(part) <= 1024 for part in path.split("/"))
        and _is_encodable(path)
    )


def _is_encodable(text: str) -> bool:
    """Whether a file can have this name: JSON may hold surrogates that no byte stands for."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


class RunStatus(NamedTuple):
    """One run as its worker sees it; times in seconds since the epoch, by the worker's clock.

    No table or list in it is ever changed. A tuple, since what makes classes of data costs a worker
    program a fifth of its start.
    """

    id: str
    """What users type."""
    state: str
    """queued, starting, running, stopping or ended."""
    outcome: Optional[str] = None
    """Once it has ended: done, failed, cancelled or skipped."""
    cause: Optional[Dict[str, Any]] = None
    """{"kind": …, "text": …} and the kind's own fields."""
    job: Optional[str] = None
    """None for a command."""
    project: Dict[str, str] = {}
    """{"id", "name"}"""
    name: Optional[str] = None
    tags: List[str] = []
    sweep: Optional[str] = None
    """The id of the sweep it is one of."""
    position: Optional[int] = None
    """Place in its line of the queue, from 1."""
    reason: Optional[str] = None
    """What a queued run waits for, or why an attempt is repeated."""
    waits: Optional[Dict[str, Any]] = None
    """The same for programs; its "kind" is order, gpus, slot, after, drained, disk or pause."""
    submitted_at: Optional[float] = None
    started_at: Optional[float] = None
    """When its newest attempt began."""
    ended_at: Optional[float] = None
    attempt: int = 0
    """The newest one; 0 before the first."""
    restarts_left: int = 0
    """How many faults of its own are still forgiven."""
    priority: int = 0
    after: List[str] = []
    """Runs that must end done before this one starts."""
    time_limit_s: Optional[float] = None
    ran_s: Optional[float] = None
    """Running time of its attempts so far, which the limit counts."""
    stuck: Optional[Dict[str, Any]] = None
    """{"since_at", "action"} while nothing moves for longer than it said it may."""
    origin: Optional[Dict[str, Any]] = None
    """{"kind": fork or reproduce, "run", "checkpoint"} of a run that was made from another."""
    secrets: List[str] = []
    """Names alone."""
    nproc: int = 1
    """Ranks."""
    gpus: List[Dict[str, Any]] = []
    """[{"uuid": …, "index": …, "name": …}]"""
    image: Optional[str] = None
    """That it asked for, else the one that its worker had."""
    params: Dict[str, Any] = {}
    """All of them, by name."""
    given: List[str] = []
    """Names of the parameters that were typed or drawn; the others are the job's defaults."""
    argv: List[str] = []
    snapshot: Optional[str] = None
    """The digest of its code."""
    code: Dict[str, Any] = {}
    """Where the snapshot came from: {"commit", "branch", "edited", "files", "bytes"}."""
    metric: Optional[str] = None
    """The one its job chose to be shown."""
    step: Optional[int] = None
    """The last one that was told."""
    metrics: Dict[str, float] = {}
    """The newest value of each."""
    progress_at: Optional[float] = None
    exit: Optional[Dict[str, Any]] = None
    """{"code", "signal", "rank"} of the last attempt's end."""
    log_bytes: int = 0
    """Of rank 0."""
    log_cut_bytes: int = 0
    """Of these, what its log_limit gave back to the disk."""
    log_problem: Optional[str] = None
    """What the job or somebody else did to its log files, in the worker's words."""
    checkpoints: List[Dict[str, Any]] = []
    """[{"name", "step", "bytes", "verified"}]"""
    bad_checkpoints: List[str] = []
    """Names of those that did not verify and were set aside; only in full."""
    attempts: List[Dict[str, Any]] = []
    """Only in full: [{"attempt", "started_at", "ended_at", "cause"}]."""

    def to_json(self) -> Dict[str, Any]:
        """The record as it travels."""
        return self._asdict()

    @classmethod
    def from_json(cls, body: Dict[str, Any]) -> "RunStatus":
        """The record that came; keys of a newer worker are ignored. Raises WireError."""
        known = set(cls._fields)
        values = {key: value for key, value in body.items() if key in known}
        if not isinstance(values.get("id"), str) or not isinstance(values.get("state"), str):
            raise WireError("a run without id or state")
        if not plain_path(values["id"]) or "/" in values["id"]:
            raise WireError("a run whose id is no name")
        for name, value in values.items():
            _check_type(name, value)
        try:
            known_values = {key: _cleaned(key, value) for key, value in values.items()}
        except RecursionError as error:
            raise WireError("a run nested too deep") from error
        return cls(**{key: value for key, value in known_values.items() if value is not None})


_LISTS = frozenset(
    {"tags", "gpus", "argv", "given", "checkpoints", "attempts", "after", "secrets"}
    | {"bad_checkpoints"}
)
_TABLES = frozenset({"project", "params", "code", "metrics"})
_NUMBERS = frozenset(
    {"submitted_at", "started_at", "ended_at", "progress_at", "step", "position", "attempt"}
    | {"restarts_left", "nproc", "log_bytes", "priority", "time_limit_s", "ran_s"}
    | {"log_cut_bytes"}
)


MAX_NUMBER = 2**63
"""No count, size or time is larger; what claims to be is taken for unknown."""


def is_number(value: Any) -> bool:
    """Whether this is a count, size or time one can compute with."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < MAX_NUMBER  # nan is not, nor inf


def is_metric(value: Any) -> bool:
    """Whether this is the value of a metric: any float, but no whole number beyond all bounds."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _is_small(value)


def _is_small(value: Any) -> bool:
    return isinstance(value, float) or abs(value) < MAX_NUMBER


def _cleaned(name: str, value: Any) -> Any:
    """A field without the numbers and items that nobody could show; None where nothing is left."""
    if name in _NUMBERS:
        return value if is_number(value) else None
    if name in ("tags", "argv", "given", "after", "secrets", "bad_checkpoints"):
        return [item for item in value if isinstance(item, str)]
    if name == "metrics":
        return {key: item for key, item in value.items() if is_metric(item)}
    if name in ("gpus", "checkpoints", "attempts"):
        return [_bounded(item) for item in value if isinstance(item, dict)]
    return _bounded(value, is_job=name == "params")


def _bounded(value: Any, key: str = "", is_job: bool = False) -> Any:
    """The same with None for what is no number where one is meant, or is beyond all bounds.

    is_job: the names are the job's, none of them means a number of ours.
    """
    if isinstance(value, dict):
        return {name: _bounded(item, name, is_job) for name, item in value.items()}
    if isinstance(value, list):
        return [_bounded(item, is_job=is_job) for item in value]
    if not is_job and (key in ("step", "bytes") or key.endswith("_at")):
        return value if is_number(value) else None
    return value if not isinstance(value, (int, float)) or _is_small(value) else None


def _check_type(name: str, value: Any) -> None:
    if name in _LISTS:
        good = isinstance(value, list)
    elif name in _TABLES:
        good = isinstance(value, dict)
    elif name in _NUMBERS:
        good = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    elif name in ("cause", "exit", "waits", "stuck", "origin"):
        good = value is None or isinstance(value, dict)
    else:
        good = value is None or isinstance(value, str)
    if not good:
        raise WireError("%s of a run is %r" % (name, type(value).__name__))
