"""The language between the two sides: frames, packs, trees and statuses, cut and twisted."""

from __future__ import annotations

import hashlib
import itertools
import random
import struct
from typing import Any

import pytest

from runner import wire

FRAMES = [
    (wire.REQ, 1, b'{"verb":"info"}'),
    (wire.PING, 0, b""),
    (wire.DATA, 7, bytes(range(256)) * 40),
    (wire.END, 7, b""),
    (wire.EVENT, 2**32 - 1, b"{}"),
]


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes in pieces of random sizes, some of one byte."""
    out = []
    while data:
        size = rng.choice([1, 2, 7, 9, 50, 3000])
        out.append(data[:size])
        data = data[size:]
    return out


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_whole_however_the_stream_is_cut(seed: int) -> None:
    data = b"".join(wire.pack_frame(*frame) for frame in FRAMES)
    reader = wire.FrameReader()
    pieces = cut(data, random.Random(seed))
    assert [frame for piece in pieces for frame in reader.feed(piece)] == FRAMES


def test_frame_of_the_largest_size_is_taken_and_one_byte_more_is_not() -> None:
    largest = wire.pack_frame(wire.DATA, 1, bytes(wire.MAX_FRAME))
    assert [len(payload) for _, _, payload in wire.FrameReader().feed(largest)] == [wire.MAX_FRAME]
    with pytest.raises(wire.WireError, match="at most 16777216"):
        wire.pack_frame(wire.DATA, 1, bytes(wire.MAX_FRAME + 1))


def test_frame_that_claims_too_much_is_refused_before_its_bytes_come() -> None:
    head = struct.pack(">IBI", wire.MAX_FRAME + 1, wire.DATA, 1)
    with pytest.raises(wire.WireError, match="not a frame"):
        list(wire.FrameReader().feed(head))


@pytest.mark.parametrize("kind", [0, 8, 255])
def test_frame_of_an_unknown_kind_is_refused(kind: int) -> None:
    with pytest.raises(wire.WireError, match=f"kind {kind}"):
        list(wire.FrameReader().feed(struct.pack(">IBI", 0, kind, 1)))


def test_good_frames_before_a_bad_one_are_delivered() -> None:
    data = wire.pack_frame(wire.END, 3) + struct.pack(">IBI", 0, 99, 1)
    frames = wire.FrameReader().feed(data)
    assert next(frames) == (wire.END, 3, b"")
    with pytest.raises(wire.WireError):
        next(frames)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"3",
        b"null",
        b"{",
        b'{"a":1}x',
        b"\xff",
        b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"a":' * 200_000,
        b'{"a":' + b"9" * 10_000 + b"}",
    ],
    ids=["empty", "list", "number", "null", "cut", "more", "bytes", "deep", "deep-cut", "huge"],
)
def test_what_is_no_table_is_a_wire_error(payload: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.read_json(payload)


def test_json_keeps_the_bytes_of_odd_file_names() -> None:
    name = b"a\xff\xfe\n\xc3\xbc".decode("utf-8", "surrogateescape")
    ((_, _, payload),) = wire.FrameReader().feed(wire.pack_json(wire.EVENT, 1, {"name": name}))
    assert payload.isascii()
    assert wire.read_json(payload) == {"name": name}


def pack(contents: list[bytes]) -> bytes:
    return b"".join(
        wire.PACK_HEAD.pack(hashlib.sha256(data).digest(), len(data)) + data for data in contents
    )


def unpack(pieces: list[bytes]) -> tuple[list[tuple[str, int, bytes]], bool]:
    """(digest, size, content) of each file, and whether the pack may end there."""
    unpacker = wire.Unpacker()
    out: list[tuple[str, int, bytes]] = []
    for head, data in itertools.chain.from_iterable(unpacker.feed(piece) for piece in pieces):
        if head is not None:
            out.append((*head, b""))
        else:
            digest, size, before = out[-1]
            out[-1] = (digest, size, before + data)
    return out, unpacker.idle


@pytest.mark.parametrize("seed", range(20))
def test_pack_is_read_however_it_is_cut(seed: int) -> None:
    rng = random.Random(seed)
    contents = [rng.randbytes(rng.choice([0, 0, 1, 39, 40, 41, 9000])) for _ in range(12)]
    found, idle = unpack(cut(pack(contents), rng))
    assert found == [(hashlib.sha256(c).hexdigest(), len(c), c) for c in contents]
    assert idle


@pytest.mark.parametrize("missing", [1, 5, 40])
def test_pack_that_stops_within_a_file_may_not_end_there(missing: int) -> None:
    whole = pack([b"abc", b"xyz"])
    assert not unpack([whole[:-missing]])[1]
    assert unpack([whole])[1]


def row(path: str, **changes: Any) -> list[Any]:
    values = {"path": path, "kind": "f", "mode": 0o644, "size": 3, "what": "0" * 64} | changes
    return list(values.values())


def test_tree_has_one_name_whatever_the_order_of_its_rows() -> None:
    rows = [row("a"), row("b"), row("dir/c"), row("\udcff")]
    names = {wire.tree_digest(order) for order in itertools.permutations(rows)}
    assert len(names) == 1


def test_every_part_of_a_row_is_in_the_trees_name() -> None:
    rows = [
        [row("a")],
        [row("b")],
        [row("a", mode=0o755)],
        [row("a", size=4)],
        [row("a", what="1" * 64)],
        [row("a", kind="l")],
        [row("a"), row("b")],
        [],
    ]
    assert len({wire.tree_digest(each) for each in rows}) == len(rows)


@pytest.mark.parametrize("path", ["a", "a/b", ".hidden", "a b\n", "..x", "x..", "\udcff", "ü" * 90])
def test_plain_path(path: str) -> None:
    assert wire.plain_path(path)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0b"),
        *("a/" * 3000 + "a", "x" * 1025, "\ud800", "a/\ue000\udfff", None, 3, ["a"]),
    ],
)
def test_not_a_plain_path(path: object) -> None:
    assert not wire.plain_path(path)


def test_status_travels_and_comes_back_the_same() -> None:
    status = wire.RunStatus("a-1", "ended", outcome="failed", tags=["x"], metrics={"r": 1.5})
    assert wire.RunStatus.from_json(status.to_json()) == status


def test_status_of_a_newer_worker_is_read() -> None:
    status = wire.RunStatus.from_json({"id": "a-1", "state": "queued", "mood": "good"})
    assert (status.id, status.state, status.params) == ("a-1", "queued", {})


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"id": "a-1"},
        {"state": "queued"},
        {"id": 3, "state": "queued"},
        {"id": "a-1", "state": "queued", "tags": "x"},
        {"id": "a-1", "state": "queued", "params": []},
        {"id": "a-1", "state": "queued", "submitted_at": "now"},
        {"id": "a-1", "state": "queued", "attempt": True},
        {"id": "a-1", "state": "queued", "cause": "x"},
        {"id": "a-1", "state": "queued", "name": 3},
        *({"id": name, "state": "queued"} for name in ("../x", "./../x", "a/b", "..", "", "a\0")),
    ],
)
def test_status_that_is_none_is_a_wire_error(body: dict[str, Any]) -> None:
    with pytest.raises(wire.WireError):
        wire.RunStatus.from_json(body)


@pytest.mark.parametrize("number", [10**400, float("inf"), float("nan"), 2**63, "7", True])
def test_numbers_beyond_all_bounds_are_unknown(number: Any) -> None:
    run = wire.RunStatus.from_json(
        {
            "id": "a-1",
            "state": "running",
            "metrics": {"reward": 1.5, "huge": 10**400, "word": "x"},
            "checkpoints": [{"name": "c", "step": number, "bytes": number}, 7],
            "attempts": [{"started_at": number}],
            "params": {"steps": 10**400, "start_at": "x", "lr": 1e30},
            "argv": ["python", 7],
            **({} if isinstance(number, (str, bool)) else {"step": number, "nproc": number}),
        }
    )
    assert (run.step, run.nproc, run.argv) == (None, 1, ["python"])
    assert run.metrics == {"reward": 1.5}
    assert run.checkpoints == [{"name": "c", "step": None, "bytes": None}]
    assert run.attempts == [{"started_at": None}]
    assert run.params == {"steps": None, "start_at": "x", "lr": 1e30}


def test_a_word_about_the_log_travels() -> None:
    status = wire.RunStatus(id="a", state="ended", log_problem="gone")
    assert wire.RunStatus.from_json(status.to_json()).log_problem == "gone"
    with pytest.raises(wire.WireError, match="log_problem"):
        wire.RunStatus.from_json({"id": "a", "state": "ended", "log_problem": 3})
