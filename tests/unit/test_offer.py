"""What is sent unasked follows from what the worker was known to hold."""

from __future__ import annotations

import hashlib
import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from runner import wire
from runner.manifest import Snapshot
from runner.store import KnownTree
from runner.transfer import offer
from runner.transfer.offer import Contents, Packer, make_offer

BASE = {"a.py": b"a = 1\n", "b.py": b"b = 1\n", "c.py": b"c = 1\n", "d.py": b"d = 1\n"}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def rows_of(files: dict[str, bytes]) -> list[list[Any]]:
    return [[path, "f", 0o644, len(data), digest(data)] for path, data in sorted(files.items())]


def snapshot_of(root: Path, files: dict[str, bytes], diff: bytes | None = None) -> Snapshot:
    for path, data in files.items():
        (root / path).write_bytes(data)
    rows = rows_of(files)
    return Snapshot(tuple(map(tuple, rows)), wire.tree_digest(rows), {}, diff=diff)


def known(files: dict[str, bytes], diff: str | None = None) -> KnownTree:
    rows = rows_of(files)
    packed = zlib.compress(json.dumps(rows).encode())
    return KnownTree("w-1", wire.tree_digest(rows), diff, packed)


def offered(
    root: Path, files: dict[str, bytes], base: KnownTree | None, diff: bytes | None = None
) -> offer.Offer:
    name = digest(diff) if diff else None
    snapshot = snapshot_of(root, files, diff)
    return make_offer(snapshot, Contents.of(root, snapshot, name), name, base)


def contents_in(pack: bytes) -> dict[str, bytes]:
    unpacker, found, name = wire.Unpacker(), {}, ""
    while pack:
        unzip = zlib.decompressobj()
        for head, piece in unpacker.feed(unzip.decompress(pack)):
            if head is not None:
                name = head[0]
                found[name] = b""
            found[name] += piece
        pack = unzip.unused_data
    assert unpacker.idle
    return found


def test_nothing_is_known_of_the_worker(tmp_path: Path) -> None:
    made = offered(tmp_path, BASE, None)
    assert (made.kind, made.base, made.ends, made.changed) == ("whole", None, True, None)
    assert json.loads(zlib.decompress(made.rows)) == rows_of(BASE)
    assert contents_in(made.pack) == {digest(data): data for data in BASE.values()}
    kinds = [kind for kind, _ in made.frames]
    assert kinds == [wire.DATA, wire.END, wire.DATA, wire.END]


def test_it_has_the_snapshot(tmp_path: Path) -> None:
    made = offered(tmp_path, BASE, known(BASE))
    assert (made.kind, made.changed, made.pack) == (None, 0, b"")
    assert made.frames == [(wire.END, b"")]


def test_it_has_another_one(tmp_path: Path) -> None:
    now = {**BASE, "b.py": b"b = 2\n", "e.py": b"a = 1\n"}
    del now["d.py"]
    made = offered(tmp_path, now, known(BASE))
    assert (made.kind, made.base, made.changed) == ("changes", known(BASE).digest, 3)
    gone, came = json.loads(zlib.decompress(made.rows))
    assert gone == ["d.py"]
    assert [row[0] for row in came] == ["b.py", "e.py"]
    assert list(contents_in(made.pack).values()) == [b"b = 2\n"], "e.py has what a.py has"


def test_changes_of_all_are_a_whole_list(tmp_path: Path) -> None:
    now = {path: data + b"\n" for path, data in BASE.items()}
    made = offered(tmp_path, now, known(BASE))
    assert (made.kind, made.base, made.changed) == ("whole", None, 4)


def test_a_damaged_record_is_as_none(tmp_path: Path) -> None:
    broken = KnownTree("w-1", "0" * 64, None, b"no zlib")
    made = offered(tmp_path, BASE, broken)
    assert (made.kind, made.base, made.changed) == ("whole", None, None)


@pytest.mark.parametrize("there", [True, False])
def test_a_diff_is_one_more_content(tmp_path: Path, there: bool) -> None:
    diff = b"--- a/a.py\n"
    made = offered(tmp_path, BASE, known(BASE, digest(diff) if there else None), diff)
    assert contents_in(made.pack) == ({} if there else {digest(diff): diff})
    assert made.ends


def test_what_is_large_waits_to_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer, "LARGEST_UNASKED", 1000)
    made = offered(tmp_path, {**BASE, "large": b"x" * 1001}, None)
    assert not made.ends
    assert len(contents_in(made.pack)) == 4
    assert made.frames[-1][0] == wire.DATA


def test_no_more_is_sent_unasked_than_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer, "UNASKED_BYTES", 100_000)
    rng = random.Random(1)
    files = {f"n{number}": rng.randbytes(50_000) for number in range(10)}
    made = offered(tmp_path, files, None)
    assert 100_000 <= len(made.pack) < 260_000
    assert not made.ends
    assert made.packed == contents_in(made.pack).keys()


def test_what_does_not_shrink_is_stored(tmp_path: Path) -> None:
    noise, text = random.Random(1).randbytes(offer.PROBE_BYTES * 2), b"x" * 100_000
    files = {"noise": noise, "text": text, "more": noise[1:], "small": b"s"}
    contents = Contents.of(tmp_path, snapshot_of(tmp_path, files), None)
    packer, pack = Packer(), b""
    for data in files.values():
        pack += b"".join(part for _, part in packer.add(contents, digest(data)))
    pack += packer.finish()
    assert contents_in(pack) == {digest(data): data for data in files.values()}
    assert noise[:1000] in pack
    assert text[:1000] not in pack
