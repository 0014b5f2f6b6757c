"""What a worker that lies can make of a pull or a submit: an error that names it, and no file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner import endpoint, wire
from runner.app import pull as pull_use
from runner.app.context import Context
from runner.code.tree import read_snapshot
from runner.endpoint import Worker
from runner.errors import IntegrityError, RunnerError, WorkerError
from runner.manifest import Fetch, RemoteFile, Snapshot
from runner.model import Project
from runner.transfer import fetch, send
from tests.helpers.hostile_worker import Frame, hostile_host
from tests.helpers.local_worker import Notes

Pull = Callable[..., Path]
RUN = {"id": "a-1", "state": "ended", "outcome": "done"}


def part(index: int, data: bytes, size: int | None = None) -> str:
    head = wire.PART_HEAD.pack(index, len(data) if size is None else size)
    return (head + data).hex()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def row(path: Any, size: Any = 3, kind: Any = "work") -> list[Any]:
    return [kind, path, size, 1, False]


@pytest.fixture
def pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pull:
    """Pulls from a worker that answers so; gives the results folder."""
    project = tmp_path / "deep" / "project"
    project.mkdir(parents=True)

    def act(rows: list[Any], *data: str, sums: Any = None, **script: Any) -> Path:
        answers: dict[str, list[Frame]] = {
            "list": [(wire.DATA, rows), (wire.REP, {"spec": "{}", "state": "{}"})],
            "files": [*((wire.DATA, each) for each in data), (wire.REP, {"sums": sums})],
            "runs": [(wire.DATA, [RUN]), (wire.REP, {})],
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
    top = pull([row("a"), row("e", 0)], part(0, b"abc"), sums=[digest(b"abc"), digest(b"")])
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
        pull(rows, part(0, b"abc"), part(1, b"abc"), sums=[digest(b"abc")] * 2)
    assert "bad" in caught.value.message
    assert everything(tmp_path) == set()


@pytest.mark.parametrize(
    ("data", "sums", "kind", "says"),
    [
        ([part(0, b"abcd")], [digest(b"abcd")], WorkerError, "4 bytes, not as listed"),
        ([part(0, b"ab")], [digest(b"ab")], WorkerError, "2 bytes, not as listed"),
        ([part(0, b"", 1 << 60)], [digest(b"abc")], WorkerError, "not as listed"),
        ([part(0, b"abc")], [digest(b"xyz")], IntegrityError, "work/a arrived damaged"),
        ([part(0, b"abc")], ["x"], IntegrityError, "arrived damaged"),
        ([part(0, b"abc")], [7], IntegrityError, "arrived damaged"),
        ([], [digest(b"abc")], IntegrityError, "arrived damaged"),
        ([part(0, b"ab", 3)], [digest(b"abc")], IntegrityError, "arrived damaged"),
        ([part(0, b"abc") + part(0, b"abc")], [digest(b"abc")], WorkerError, "nobody asked for"),
        ([part(1, b"abc")], [digest(b"abc")], WorkerError, "nobody asked for"),
        ([part(2**32 - 1, b"abc")], [digest(b"abc")], WorkerError, "nobody asked for"),
        ([part(0, b"abc")], None, WorkerError, "did not say the files' digests"),
        ([part(0, b"abc")], [], WorkerError, "did not say the files' digests"),
        ([part(0, b"abc")], {"0": "x"}, WorkerError, "did not say the files' digests"),
    ],
)
def test_lies_about_contents_are_named_and_leave_no_file(
    pull: Pull,
    tmp_path: Path,
    data: list[str],
    sums: Any,
    kind: type[RunnerError],
    says: str,
) -> None:
    with pytest.raises(kind, match=says):
        pull([row("a")], *data, sums=sums)
    assert {name for name in everything(tmp_path) if ".parts" not in name} == set()


def test_file_that_never_stays_the_same_is_left_for_the_next_pull(pull: Pull) -> None:
    assert not (pull([row("a")], sums=[None]) / "work" / "a").exists()


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
        pull([], sums=[], answers={"runs": [(wire.DATA, [body]), (wire.REP, {})]})
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
            return send.submit(worker, root, snapshot, spec, secrets={}, holds_snapshot=True)

    return act


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([(wire.DATA, "00")], "out of turn"),
        ([(wire.EVENT, "ff")], "cannot be read"),
        ([(wire.EVENT, {"need": ["0" * 64]})], "asked for a content that is not in the snapshot"),
        ([(wire.EVENT, {"need": [7]})], "asked for a content that is not in the snapshot"),
        ([(wire.EVENT, {"need": "everything"})], "out of turn"),
        ([(wire.EVENT, {"need": "manifest"})] * 2, "out of turn"),
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
        ([(wire.EVENT, {"need": "manifest"})], "out of turn"),
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


def test_what_gathers_lies_where_no_listed_name_can(tmp_path: Path) -> None:
    names = ["work/a", "work/.a.part", "logs/a", "work/a/b"]
    places = {fetch.part_path(tmp_path, name) for name in names}
    assert len(places) == len(names)
    assert {place.parent for place in places} == {tmp_path / fetch.PARTS}


def test_fetching_nothing_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Worker(hostile_host(tmp_path, monkeypatch.setenv, dies=True)) as worker:
        assert fetch.fetch(worker, "a-1", [], tmp_path) == ([], [])


def test_bytes_are_reported_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = hostile_host(
        tmp_path,
        monkeypatch.setenv,
        {"files": [(wire.DATA, part(0, b"abc")), (wire.REP, {"sums": [digest(b"abc")]})]},
    )
    seen: list[int] = []
    wanted = [Fetch(RemoteFile("work", "a", 3, 1, True))]
    with Worker(host) as worker:
        done, changed = fetch.fetch(
            worker, "a-1", wanted, tmp_path, on_bytes=lambda _, count: seen.append(count)
        )
    assert (sum(seen), len(done), changed) == (3, 1, [])
