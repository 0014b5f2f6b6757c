from __future__ import annotations

import hashlib
from pathlib import Path

import contents
import pytest
import snapshot
from paths import Workspace

from runner import wire
from tests.helpers.blobs import digest, file_row, pack, sizes, store


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    made = Workspace(str(tmp_path / "ws"))
    made.make()
    return made


@pytest.mark.parametrize("size", [1, 7, 40, 10**6])
def test_a_pack_may_be_cut_anywhere(workspace: Workspace, size: int) -> None:
    given = (b"", b"one", bytes(range(256)) * 100)
    data = pack(*given)
    writer = contents.BlobWriter(workspace, sizes(*given))
    for start in range(0, len(data), size):
        writer.feed(data[start : start + size])
    writer.close()
    assert writer.stored == 3
    path = Path(workspace.blob(digest(b"one")))
    assert path.read_bytes() == b"one"
    assert path.stat().st_mode & 0o777 == 0o444


def test_a_content_that_is_not_what_it_claims_is_not_kept(workspace: Workspace) -> None:
    writer = contents.BlobWriter(workspace, sizes(b"one"))
    with pytest.raises(snapshot.BadTree, match="damaged"):
        writer.feed(wire.PACK_HEAD.pack(hashlib.sha256(b"one").digest(), 3) + b"oNe")
    assert not list(Path(workspace.blobs).rglob("*"))
    assert snapshot.needed(workspace, [file_row("a", b"one")])


def test_a_pack_that_stops_in_the_middle_leaves_nothing(workspace: Workspace) -> None:
    writer = contents.BlobWriter(workspace, sizes(b"one", b"two" * 100))
    writer.feed(pack(b"one", b"two" * 100)[:-5])
    with pytest.raises(snapshot.BadTree, match="middle"):
        writer.close()
    assert not list(Path(workspace.blobs).rglob("*"))


@pytest.mark.parametrize(
    ("announced", "says"),
    [
        ({}, "not in the list"),
        ({digest(b"one"): 2}, "not in the list, or not of that size"),
        ({digest(b"one"): 4}, "not in the list, or not of that size"),
        (sizes(b"one"), "came twice"),
    ],
)
def test_what_was_not_announced_is_refused_before_it_is_written(
    workspace: Workspace, announced: dict[str, int], says: str
) -> None:
    writer = contents.BlobWriter(workspace, announced)
    with pytest.raises(snapshot.BadTree, match=says):
        writer.feed(pack(b"one", b"one"))
    assert not list(Path(workspace.blobs).rglob("*"))


def test_what_is_there_is_passed_over(workspace: Workspace) -> None:
    store(workspace, b"one")
    path = Path(workspace.blob(digest(b"one")))
    before = path.stat().st_ino
    writer = contents.BlobWriter(workspace, sizes(b"one", b"two"))
    writer.feed(pack(b"one", b"two"))
    writer.close()
    assert writer.stored == 1
    assert path.stat().st_ino == before
    assert Path(workspace.blob(digest(b"two"))).read_bytes() == b"two"


def test_two_at_once_with_the_same_contents_and_pid(workspace: Workspace) -> None:
    given = [b"%d" % number * 1000 for number in range(20)]
    data = pack(*given)
    writers = [contents.BlobWriter(workspace, sizes(*given)) for _ in range(2)]
    for start in range(0, len(data), 777):
        for writer in writers:
            writer.feed(data[start : start + 777])
    for writer in writers:
        writer.close()
    assert snapshot.needed(workspace, [file_row("f", each) for each in given]) == []
    for each in given:
        assert Path(workspace.blob(digest(each))).read_bytes() == each
    assert not list(Path(workspace.blobs).glob(".*"))


def test_many_contents_at_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SYNC_EACH", 3)
    given = [b"%d" % number for number in range(10)]
    store(workspace, *given)
    assert snapshot.needed(workspace, [file_row("f", each) for each in given]) == []
