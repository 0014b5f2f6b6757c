"""What a worker that lies can make of a pull or a submit: an error that names it, and no file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from runner import endpoint, wire
from runner.app import pull as pull_use
from runner.app.context import Context
from runner.code.tree import read_snapshot
from runner.endpoint import Worker
from runner.errors import IntegrityError, RunnerError, SpecError, WorkerError
from runner.manifest import Fetch, Growth, RemoteFile, Snapshot
from runner.model import Project
from runner.store import KnownTree
from runner.transfer import fetch, lanes, parts, places, send
from runner.transfer.arrivals import Fetched
from runner.transfer.offer import Contents, make_offer
from tests.helpers.hostile_worker import Frame, hostile_host
from tests.helpers.local_worker import Notes

Pull = Callable[..., Path]
DONE = "deep/project/results/a-1/.parts/done"
RUN = {"id": "a-1", "state": "ended", "outcome": "done"}


def part(index: int, data: bytes, size: int | None = None) -> str:
    count = len(data) if size is None else size
    return (wire.PART_HEAD.pack(index, wire.PART_BYTES, count) + data).hex()


def total(index: int, data: bytes) -> str:
    head = wire.PART_HEAD.pack(index, wire.PART_SUM, 32)
    return (head + hashlib.sha256(data).digest()).hex()


def other(index: int, what: int, count: int = 0) -> str:
    return wire.PART_HEAD.pack(index, what, count).hex()


def row(path: Any, size: Any = 3, kind: Any = "work") -> list[Any]:
    return [kind, path, size, 1, False, 0]


@pytest.fixture
def pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pull:
    """Pulls from a worker that answers so; gives the results folder."""
    project = tmp_path / "deep" / "project"
    project.mkdir(parents=True)

    def act(rows: list[Any], *data: str, run: Any = RUN, **script: Any) -> Path:
        reply = {"spec": "{}", "state": "{}", "run": run}
        answers: dict[str, list[Frame]] = {
            "list": [(wire.DATA, rows), (wire.REP, reply)],
            "files": [*((wire.DATA, each) for each in data), (wire.REP, {})],
        }
        answers.update(script.pop("answers", {}))
        host = hostile_host(tmp_path, monkeypatch.setenv, answers, **script)
        ctx = Context(Project(project, "p", "p"), {"bad": host}, Notes())
        return pull_use.pull(ctx, pull_use.RunRef("a-1", "bad")).path

    return act


def everything(tmp_path: Path) -> set[str]:
    """Files that are not records and not the test's own."""
    return {
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.is_file() and not {"bin", ".runner"} & set(path.relative_to(tmp_path).parts)
    }


def test_good_answers_are_taken(pull: Pull) -> None:
    top = pull([row("a"), row("e", 0)], part(0, b"abc") + total(0, b"abc"), total(1, b""))
    assert (top / "work" / "a").read_bytes() == b"abc"
    assert (top / "work" / "e").read_bytes() == b""


@pytest.mark.parametrize(
    "rows",
    [
        [row("../../../evil")],
        [row("/tmp/runner-evil")],
        [row("a/../../../../evil")],
        [row("x", kind="..")],
        [row("x", kind="../..")],
        [row("x", kind=".parts")],
        [row("a"), row("a")],
        [row("a"), row("a/b")],
        [row("a/b"), row("a")],
        [row("\ud800")],
        [row("a\0b")],
        [row("a", -1)],
        [row("a", "3")],
        [{"path": "a"}],
    ],
    ids=str,
)
def test_names_that_are_no_files_are_refused(pull: Pull, tmp_path: Path, rows: list[Any]) -> None:
    with pytest.raises(WorkerError, match="sent names that are no files: ") as caught:
        pull(rows, part(0, b"abc"), total(0, b"abc"), part(1, b"abc"), total(1, b"abc"))
    assert "bad" in caught.value.message
    assert everything(tmp_path) == set()


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        ([part(0, b"abcd"), total(0, b"abcd")], WorkerError, "4 bytes more, not as listed"),
        ([part(0, b"ab"), total(0, b"ab")], WorkerError, "1 bytes fewer, not as listed"),
        ([part(0, b"abc", 1 << 60)], WorkerError, "work/a: no piece of a file"),
        ([part(0, b"")], WorkerError, "not as listed"),
        ([other(0, wire.PART_HOLE, 1 << 60)], WorkerError, "not as listed"),
        ([other(0, wire.PART_HOLE, 4)], WorkerError, "not as listed"),
        ([other(0, 9)], WorkerError, "no piece of a file"),
        ([other(0, wire.PART_SUM, 0)], WorkerError, "no piece of a file"),
        ([other(0, wire.PART_SUM, 31) + "00" * 31], WorkerError, "no piece of a file"),
        (["00"], WorkerError, "half a piece"),
        ([part(0, b"abc"), total(0, b"xyz")], IntegrityError, "work/a arrived damaged"),
        ([other(0, wire.PART_HOLE, 3), total(0, b"abc")], IntegrityError, "arrived damaged"),
        ([total(0, b"abc")], WorkerError, "3 bytes fewer"),
        ([part(0, b"abc"), part(0, b"abc")], WorkerError, "not as listed"),
        ([part(1, b"abc")], WorkerError, "nobody asked for"),
        ([part(2**32 - 1, b"abc")], WorkerError, "nobody asked for"),
        ([part(0, b"abc")], WorkerError, "work/a: the worker did not send it"),
        ([], WorkerError, "work/a: the worker did not send it"),
    ],
)
def test_lies_about_contents_are_named_and_leave_no_file(
    pull: Pull, tmp_path: Path, data: list[str], kind: type[RunnerError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        pull([row("a")], *data)
    assert everything(tmp_path) == set()


def test_large_file_that_is_another_than_its_sum_leaves_nothing(pull: Pull, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    with pytest.raises(IntegrityError, match="work/a arrived damaged"):
        pull([row("a", len(data))], part(0, data[:-1] + b"x"), total(0, data))
    assert everything(tmp_path) == set()


@pytest.mark.parametrize("why", [wire.LEFT_CHANGED, wire.LEFT_GONE, wire.LEFT_OTHER, 77])
def test_file_that_never_stays_the_same_is_left_for_the_next_pull(pull: Pull, why: int) -> None:
    assert not (pull([row("a")], other(0, wire.PART_LEFT, why)) / "work" / "a").exists()


def test_what_comes_after_a_file_was_whole_is_refused(pull: Pull, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="nobody asked for"):
        pull([row("a")], part(0, b"abc"), total(0, b"abc"), part(0, b"xyz"))
    assert everything(tmp_path) == {"deep/project/results/a-1/work/a", DONE}


def test_name_too_long_for_this_disk_is_named_and_left_out(pull: Pull) -> None:
    top = pull([row("a"), row("x" * 300)], part(0, b"abc") + total(0, b"abc"))
    assert [path.name for path in (top / "work").iterdir()] == ["a"]


def test_folders_deeper_than_a_path_may_be_long(pull: Pull, tmp_path: Path) -> None:
    deep = "/".join(["d" * 200] * 20) + "/a"
    top = pull([row(deep[:4000].rpartition("/")[0] + "/a")], part(0, b"abc") + total(0, b"abc"))
    assert sum(files.count("a") for _, _, files in os.walk(top / "work")) <= 1


def test_folder_that_becomes_a_link_is_not_gone_through(tmp_path: Path) -> None:
    top, elsewhere = tmp_path / "top", tmp_path / "elsewhere"
    (top / "work" / "a").mkdir(parents=True)
    elsewhere.mkdir()
    with places.Places(top) as there:
        os.close(there.open("work/a/before", os.O_WRONLY | os.O_CREAT))
        (top / "work" / "a").rename(top / "moved")
        (top / "work" / "a").symlink_to(elsewhere)
        # what was open before the swap stays what it is
        os.close(there.open("work/a/after", os.O_WRONLY | os.O_CREAT))
    with places.Places(top) as there, pytest.raises(SpecError, match="is not a folder"):
        there.open("work/a/x", os.O_WRONLY | os.O_CREAT, make=True)
    assert list(elsewhere.iterdir()) == []
    assert {path.name for path in (top / "moved").iterdir()} == {"before", "after"}


def test_listing_without_end(pull: Pull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_LISTING", 5 << 20)
    with pytest.raises(WorkerError, match="listing without end"):
        pull([], answers={"list": [(wire.DATA, "00" * 1_000_000)]}, endless=True)
    assert everything(tmp_path) == set()


def test_frame_too_large(pull: Pull, tmp_path: Path) -> None:
    raw = wire.pack_json(wire.EVENT, 0, {"wire": 1}) + b"\xff\xff\xff\xff\x03\0\0\0\0"
    with pytest.raises(WorkerError, match="speaks otherwise"):
        pull([], raw=raw.hex())
    assert everything(tmp_path) == set()


@pytest.mark.parametrize(
    "body", [{"id": "./../../x", "state": "ended"}, {"id": "b-2", "state": "ended"}, {}, 3]
)
def test_status_of_something_else(pull: Pull, tmp_path: Path, body: Any) -> None:
    with pytest.raises(WorkerError):
        pull([], run=body)
    outside = {p.name for p in tmp_path.rglob("*.json") if ".runner" not in p.parts}
    assert outside <= {"script.json", "spec.json", "state.json"}


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., send.Accepted]:
    root = tmp_path / "project"
    root.mkdir()
    (root / "a.py").write_text("x")

    def act(*frames: Frame) -> send.Accepted:
        host = hostile_host(tmp_path, monkeypatch.setenv, {"submit": list(frames)})
        snapshot: Snapshot = read_snapshot(root)
        with Worker(host) as worker:
            spec = {"id": "a-1"}
            contents = Contents.of(root, snapshot, None)
            known = KnownTree("w-bad", snapshot.digest, None, b"")
            offer = make_offer(snapshot, contents, None, known)
            return send.submit(worker, snapshot, contents, offer, spec, secrets={})

    return act


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([(wire.DATA, "00")], "out of turn"),
        ([(wire.EVENT, "ff")], "cannot be read"),
        ([(wire.EVENT, {"need": ["0" * 64]})], "asked for a content that is not in the snapshot"),
        ([(wire.EVENT, {"need": [7]})], "asked for a content that is not in the snapshot"),
        ([(wire.EVENT, {"need": "everything"})], "out of turn"),
        ([(wire.EVENT, {"need": "list"})] * 2, "out of turn"),
        ([(wire.EVENT, {"need": []}), (wire.EVENT, {"need": "list"})], "out of turn"),
        ([(wire.EVENT, {"need": []})] * 2, "out of turn"),
        ([(wire.REP, {})], "answered for another run"),
        ([(wire.REP, {"run": {"id": "b-1"}})], "answered for another run"),
        ([(wire.REP, {"run": "a-1"})], "answered for another run"),
        ([(wire.REP, {"run": {"id": "a-1"}, "gpus": "two"})], "cannot be read"),
    ],
)
def test_wrong_answers_to_a_submit(
    submit: Callable[..., send.Accepted], frames: list[Frame], says: str
) -> None:
    with pytest.raises(WorkerError, match=says):
        submit(*frames)


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([(wire.DATA, "00")], "out of turn"),
        ([(wire.EVENT, {"need": "list"})], "out of turn"),
        ([(wire.EVENT, {"need": []})], "out of turn"),
        ([(wire.EVENT, {"need": ["0" * 64]})], "out of turn"),
        ([(wire.REP, {"run": {"id": "s-1.2"}})], "answered for another run"),
    ],
)
def test_wrong_answers_to_a_run_of_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frames: list[Frame], says: str
) -> None:
    host = hostile_host(tmp_path, monkeypatch.setenv, {"submit": frames})
    with Worker(host) as worker, pytest.raises(WorkerError, match=says):
        list(send.submit_more(worker, [{"id": "s-1.1"}], secrets={}))


@pytest.mark.parametrize(
    ("missing", "round_trip_s", "count"),
    [
        (500 << 20, 0.001, 1),
        (32 << 20, 0.1, 1),
        (33 << 20, 0.1, 4),
        (100 << 20, 0.02, 4),
        (0, 9.0, 1),
    ],
)
def test_more_connections_where_one_would_wait_for_the_way(
    missing: int, round_trip_s: float, count: int
) -> None:
    assert lanes.lanes_for(missing, round_trip_s) == count


def rows(units: Sequence[lanes.Unit]) -> list[tuple[int, int, int, int]]:
    return [(unit.item, unit.summed, unit.start, unit.end) for unit in units]


def test_one_connection_asks_for_each_file_in_as_few_pieces_as_it_has_gaps() -> None:
    size = 100 << 20
    file = RemoteFile("checkpoints", "a", size, 1)
    wanted = [
        Fetch(file),
        Fetch(file, ((0, 50),)),
        Fetch(file, ((0, 50), (70, 90))),
        Fetch(file, ((0, size),)),
        Fetch(RemoteFile("work", "empty", 0, 1)),
        Fetch(RemoteFile("logs", "a", size, 1), growth=Growth(60, 1, 10)),
    ]
    cut = lanes.cut(wanted, 1)
    assert rows(cut.own) == [(5, 10, 60, size)]
    assert [rows(batch) for batch in cut.batches] == [
        [
            *[(0, 0, 0, size), (1, 0, 50, size), (2, 70, 50, 70), (2, size, 90, size)],
            *[(3, 0, size, size), (4, 0, 0, 0)],
        ]
    ]
    assert rows(cut.sums) == [(2, 0, size, size)]
    assert [unit.has_sum for unit in cut.batches[0]] == [True, True, False, False, True, True]


def test_several_connections_share_large_files_piece_by_piece() -> None:
    size = 30 << 20
    small = [Fetch(RemoteFile("work", str(number), 10, 1)) for number in range(1001)]
    cut = lanes.cut([Fetch(RemoteFile("checkpoints", "a", size, 1)), *small], 4)
    pieces = [unit for batch in cut.batches for unit in batch if unit.item == 0]
    assert [unit.start for unit in pieces] == [0, 10 << 20, 20 << 20]
    assert [unit.end for unit in pieces] == [10 << 20, 20 << 20, size]
    assert rows(cut.sums) == [(0, 0, size, size)]
    assert [len(batch) for batch in cut.batches] == [1, 1, 1, 500, 500, 1]


def test_what_gathers_lies_where_no_listed_name_can() -> None:
    names = ["work/a", "work/.a.part", "logs/a", "work/a/b"]
    found = {parts.part_name(name) for name in names}
    assert len(found) == len(names)
    assert {name.rpartition("/")[0] for name in found} == {parts.PARTS}


def test_fetching_nothing_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = hostile_host(tmp_path, monkeypatch.setenv, dies=True)
    with Worker(host) as worker, places.Places(tmp_path) as there:
        assert fetch.fetch(worker, "a-1", [], there) == Fetched()


def test_checkpoint_is_put_into_place_when_all_of_it_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (Fetch(RemoteFile("checkpoints", f"step-1/{name}", 3, 1)) for name in "ab")
    data = [part(0, b"abc") + total(0, b"abc"), other(1, wire.PART_LEFT, wire.LEFT_GONE)]
    answers = {"files": [*((wire.DATA, each) for each in data), (wire.REP, {})]}
    host = hostile_host(tmp_path, monkeypatch.setenv, answers)
    top = tmp_path / "top"
    top.mkdir()
    with Worker(host) as worker, places.Places(top) as there:
        found = fetch.fetch(worker, "a-1", [one, two], there)
        assert (found.done, found.gone, list(found.waiting)) == ([], [two], [one.file.name])
        assert not (top / "checkpoints").exists()
        # what came of it is here, and not asked for again
        ready = parts.read_gathered(there, [one.file])[one.file.name]
        assert ready.sha256 == hashlib.sha256(b"abc").hexdigest()
        known = parts.read_done(there)[one.file.name]
        found = fetch.fetch(worker, "a-1", [], there, ready=[(one, known)])
        assert (top / "checkpoints" / "step-1" / "a").read_bytes() == b"abc"


def test_bytes_are_reported_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = [part(0, b"ab"), part(0, b"c") + total(0, b"abc")]
    answers = {"files": [*((wire.DATA, each) for each in data), (wire.REP, {})]}
    host = hostile_host(tmp_path, monkeypatch.setenv, answers)
    seen: list[int] = []
    wanted = [Fetch(RemoteFile("work", "a", 3, 1, True))]
    with Worker(host) as worker, places.Places(tmp_path) as there:
        found = fetch.fetch(
            worker, "a-1", wanted, there, on_bytes=lambda _, count: seen.append(count)
        )
    assert (seen, len(found.done), found.changed, found.bytes) == ([2, 1], 1, [], 3)
    assert (tmp_path / "work" / "a").stat().st_mode & 0o777 == 0o755
