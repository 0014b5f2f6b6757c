"""The project's own records: torn ones are passed over, intents have one owner at a time."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import store as store_module
from runner.errors import SpecError
from runner.model import Project
from runner.store import KnownWorker, Store
from tests.helpers.wait import wait_for

ROOT = Path(__file__).parents[2]
OWNER = """
import sys, time
from pathlib import Path
from runner.model import Project
from runner.store import Store
store = Store(Project(Path(sys.argv[1]), "p", "p"))
intent = store.write_intent({"id": "a-1", "words": ["host=local", "x"], "at": 5.0})
print("written", flush=True)
if sys.argv[2] == "waits":
    sys.stdin.read()
    intent.close()
print("closed", flush=True)
"""
WORDS = ["host=local", "x"]
ROW = ["a.py", "f", 0o644, 3, "e" * 64]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(Project(tmp_path, "p", "p"))


def status(run: str, **more: Any) -> dict[str, Any]:
    return {"id": run, "state": "queued", **more}


def test_nothing_is_made_by_looking(store: Store, tmp_path: Path) -> None:
    assert store.records() == []
    assert store.record("a-1") is None
    assert store.open_intents(WORDS) == []
    assert store.pulled("a-1") == {}
    assert store.known_tree("gpu1") is None
    assert list(tmp_path.iterdir()) == []


def test_what_is_put_comes_back(store: Store) -> None:
    store.put("gpu1", status("b-1", submitted_at=2.0), 10.0)
    store.put("gpu2", status("a-1", submitted_at=3.0), 11.0)
    store.put_tree("gpu1", "w-1", "d" * 64, None, [ROW])
    store.put_pulled("a-1", "/r", {"x": [1]}, {"complete": True})
    store.put_pulled("a-1", "/s", {}, {"complete": False})
    store.put_pulled("a-1", "/s", {"y": [2]}, {"complete": True})
    assert [(r.id, r.host, r.seen_at) for r in store.records()] == [
        ("b-1", "gpu1", 10.0),
        ("a-1", "gpu2", 11.0),
    ]
    known = store.known_tree("gpu1")
    assert known is not None
    assert (known.worker, known.digest, known.diff) == ("w-1", "d" * 64, None)
    assert known.rows() == {"a.py": ROW}
    assert store.pulled("a-1")["complete"] is True
    assert store.pulled("a-1")["places"] == {"/r": {"x": [1]}, "/s": {"y": [2]}}


def test_records_of_other_runs_are_not_even_read(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("a-1.1", "a-1.2", "a-12.1", "b-1"):
        store.put("gpu1", status(run), 10.0)
    read: list[str] = []
    real = store_module.read_regular
    monkeypatch.setattr(
        store_module, "read_regular", lambda path: (read.append(path.stem), real(path))[1]
    )
    assert [record.id for record in store.records("a-1.")] == ["a-1.1", "a-1.2"]
    assert sorted(read) == ["a-1.1", "a-1.2"]
    assert store.records("[") == []


def test_records_are_the_owners_alone_and_nobodys_code(store: Store, tmp_path: Path) -> None:
    store.put("gpu1", status("a-1"), 1.0)
    store.write_intent({"id": "a-2", "words": []}).leave_open()
    files = list(tmp_path.rglob("*.json"))
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600, 0o600]
    assert (tmp_path / ".runner" / ".gitignore").read_text() == "*\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"run": 3}',
        '{"run": {"id": "a-1"}}',
        '{"run": {"id": "a-1", "state": "queued"}}',
        '{"run": {"id": "a-1", "state": "queued"}, "host": "h", "seen_at": "noon"}',
        '{"run": {"id": "b-9", "state": "queued"}, "host": "h", "seen_at": 1}',
        '{"run": {"id": "a-1", "state": "queued", "submitted_at": "x"}, "host": "h", "seen_at": 1}',
        "\0" * 4096,
    ],
)
def test_torn_record_is_passed_over_and_can_be_written_again(
    store: Store, tmp_path: Path, text: str
) -> None:
    store.put("gpu1", status("b-1"), 1.0)
    torn = tmp_path / ".runner" / "runs" / "a-1.json"
    torn.write_text(text)
    assert [record.id for record in store.records()] == ["b-1"]
    assert store.record("a-1") is None
    store.put("gpu1", status("a-1"), 2.0)
    assert store.record("a-1") is not None


@pytest.mark.parametrize("head", [b"", b"[]", b"{}", b'{"worker": "w"}', b'{"digest": 3}', b"\xff"])
def test_torn_record_of_a_tree_is_no_record(store: Store, tmp_path: Path, head: bytes) -> None:
    store.put_tree("gpu1", "w-1", "d", None, [ROW])
    (tmp_path / ".runner" / "trees" / "gpu1.tree").write_bytes(head + b"\n")
    assert store.known_tree("gpu1") is None


@pytest.mark.parametrize(
    "text", [b"", b"null", b"{}", b"[3]", b'["abcde"]', b"[[1, 2]]", b"[[[], 1, 2, 3, 4]]"]
)
def test_damaged_rows_of_a_tree_are_none(store: Store, tmp_path: Path, text: bytes) -> None:
    store.put_tree("gpu1", "w-1", "d", "f", [ROW])
    path = tmp_path / ".runner" / "trees" / "gpu1.tree"
    head = path.read_bytes().partition(b"\n")[0]
    path.write_bytes(head + b"\n" + zlib.compress(text))
    known = store.known_tree("gpu1")
    assert known is not None
    assert (known.diff, known.rows()) == ("f", None)
    path.write_bytes(path.read_bytes()[:-3])
    damaged = store.known_tree("gpu1")
    assert damaged is not None
    assert damaged.rows() is None


def test_half_written_file_of_a_killed_process_is_no_record(store: Store, tmp_path: Path) -> None:
    store.put("gpu1", status("a-1"), 1.0)
    (tmp_path / ".runner" / "runs" / ".b-1.99.tmp").write_text('{"run"')
    (tmp_path / ".runner" / "runs" / ".b-1.json").write_text('{"run"')
    assert [record.id for record in store.records()] == ["a-1"]


def test_ended_run_is_not_written_again(store: Store, tmp_path: Path) -> None:
    path = tmp_path / ".runner" / "runs" / "a-1.json"
    store.put("gpu1", status("a-1") | {"state": "ended"}, 1.0)
    before = path.stat().st_ino
    store.put("gpu1", status("a-1") | {"state": "ended"}, 2.0)
    assert path.stat().st_ino == before
    store.put("gpu1", status("a-1", outcome="done") | {"state": "ended"}, 3.0)
    assert path.stat().st_ino != before


def test_threads_may_write_the_same_record_at_once(store: Store) -> None:
    problems: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(100):
                store.put("gpu1", status("a-1"), float(number))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert store.record("a-1") is not None


def test_records_that_cannot_be_written_are_a_users_matter(store: Store, tmp_path: Path) -> None:
    (tmp_path / ".runner").write_text("")
    with pytest.raises(SpecError, match="cannot be made"):
        store.put("gpu1", status("a-1"), 1.0)
    (tmp_path / ".runner").unlink()
    (tmp_path / ".runner" / "runs" / "a-1.json").mkdir(parents=True)
    (tmp_path / ".runner" / "intents" / "a-1.json").mkdir(parents=True)
    with pytest.raises(SpecError, match=r"a-1\.json cannot be written"):
        store.put("gpu1", status("a-1"), 1.0)
    with pytest.raises(SpecError, match=r"a-1\.json cannot be written"):
        store.write_intent({"id": "a-1", "words": []})
    assert [path.name for path in (tmp_path / ".runner" / "runs").iterdir()] == ["a-1.json"]


def test_what_killed_processes_left_half_written_goes(store: Store, tmp_path: Path) -> None:
    top = tmp_path / ".runner"
    store.put("gpu1", status("a-1"), 1.0)
    store.put_pulled("a-1", "/r", {}, {})
    store.write_intent({"id": "a-9", "words": []}).leave_open()
    left = [top / "runs" / ".b.9.8.tmp", top / "pulls" / ".b.9.8.tmp", top / "intents" / ".b.tmp"]
    for path in left:
        path.write_text("{")
    os.utime(left[0], (1.0, 1.0))
    fresh = top / "runs" / ".c.9.8.tmp"
    fresh.write_text("{")
    with open(top / "intents" / ".c.tmp", "w") as written:
        fcntl.flock(written, fcntl.LOCK_EX)
        store.records()
        store.put_pulled("a-1", "/r", {}, {})
        with store.intents_locked():
            pass
    assert sorted(top.rglob(".*.tmp")) == [top / "intents" / ".c.tmp", fresh]


def test_an_intent_that_cannot_be_written_leaves_nothing(store: Store, tmp_path: Path) -> None:
    (tmp_path / ".runner" / "intents" / "a-1.json").mkdir(parents=True)
    with pytest.raises(SpecError, match=r"a-1\.json cannot be written"):
        store.write_intent({"id": "a-1", "words": []})
    assert not (tmp_path / ".runner" / "intents" / ".a-1.tmp").exists()


def test_one_pull_into_a_folder_at_a_time(store: Store, tmp_path: Path) -> None:
    said: list[str] = []
    order: list[str] = []

    def pull(name: str) -> None:
        with store.pull_locked("a-1", "/r", lambda: said.append(name)):
            order.append(name)

    with store.pull_locked("a-1", "/r", lambda: said.append("first")):
        second = threading.Thread(target=pull, args=("second",))
        second.start()
        with store.pull_locked("a-1", "/s", lambda: said.append("elsewhere")):
            time.sleep(0.5)
        order.append("first")
    second.join(10)
    assert order == ["first", "second"]
    assert said == ["second"]
    assert list((tmp_path / ".runner" / "pulls").glob(".a-1.*")) == []


class Other:
    """Another process of the same project."""

    def __init__(self, root: Path, then: str) -> None:
        argv = [sys.executable, "-c", OWNER, str(root), then]
        pipe = subprocess.PIPE
        env = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
        self.child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=env, text=True)
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "written\n"

    def end(self) -> None:
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(10)

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        for stream in (self.child.stdin, self.child.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Other]:
    other = Other(tmp_path, "waits")
    yield other
    other.close()


def test_intent_of_a_living_process_is_not_taken(store: Store, living: Other) -> None:
    assert store.open_intents(WORDS) == []
    living.end()
    assert store.open_intents(WORDS) == []


def test_intent_of_a_dead_process_is_taken_once(store: Store, living: Other) -> None:
    living.close()
    (intent,) = store.open_intents(WORDS)
    assert (intent.id, intent.body["at"]) == ("a-1", 5.0)
    assert store.open_intents(WORDS) == [], "it has an owner again"
    intent.leave_open()
    (intent,) = store.open_intents(WORDS)
    intent.close()
    assert store.open_intents(WORDS) == []


@pytest.mark.parametrize(
    "words", [[], ["x"], ["host=local"], ["host=local", "x", "y"], ["x", "host=local"]]
)
def test_intent_of_other_words_is_not_taken(store: Store, tmp_path: Path, words: list[str]) -> None:
    store.write_intent({"id": "a-1", "words": WORDS}).leave_open()
    assert store.open_intents(words) == []
    (intent,) = store.open_intents(WORDS)
    intent.close()


def test_intents_come_oldest_first(store: Store) -> None:
    for name, at in (("a-1", 3.0), ("a-2", 1.0), ("a-3", 2.0)):
        store.write_intent({"id": name, "words": WORDS, "at": at}).leave_open()
    found = store.open_intents(WORDS)
    assert [intent.id for intent in found] == ["a-2", "a-3", "a-1"]
    for intent in found:
        intent.close()


def test_torn_intent_is_passed_over(store: Store, tmp_path: Path) -> None:
    store.write_intent({"id": "a-1", "words": WORDS}).leave_open()
    (tmp_path / ".runner" / "intents" / "a-0.json").write_text('{"words": ["host=local", "x"')
    (intent,) = store.open_intents(WORDS)
    assert intent.id == "a-1"
    intent.close()


def test_intent_closed_while_it_is_looked_at_is_not_taken(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process prints the id and closes it between our opening the file and locking it."""
    intent = store.write_intent({"id": "a-1", "words": WORDS})
    flock = fcntl.flock

    def late(fd: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB:
            intent.close()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert store.open_intents(WORDS) == []


def test_only_one_looks_at_intents_at_a_time(store: Store) -> None:
    inside: list[int] = []
    most: list[int] = []

    def look() -> None:
        with store.intents_locked():
            inside.append(1)
            most.append(len(inside))
            wait_for(lambda: True, 1, "a turn")
            inside.pop()

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_lock_that_does_not_come_free_is_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.store.LOCK_LIMIT_S", 0.05)
    with (
        store.intents_locked(),
        pytest.raises(SpecError, match="locked by another submit"),
        store.intents_locked(),
    ):
        pass


def test_record_that_is_no_file_or_nested_without_end_is_no_record(
    store: Store, tmp_path: Path
) -> None:
    store.put("gpu1", status("b-1"), 1.0)
    os.mkfifo(tmp_path / ".runner" / "runs" / "a-1.json")
    (tmp_path / ".runner" / "runs" / "c-1.json").write_text("[" * 100_000)
    assert [record.id for record in store.records()] == ["b-1"]


def test_intent_with_a_wrong_time_is_an_intent(store: Store, tmp_path: Path) -> None:
    store.write_intent({"id": "a-1", "words": WORDS, "at": "soon"}).leave_open()
    assert [intent.id for intent in store.open_intents(WORDS)] == ["a-1"]


def test_file_where_the_folder_of_records_should_be(store: Store, tmp_path: Path) -> None:
    (tmp_path / ".runner").mkdir()
    (tmp_path / ".runner" / "runs").write_text("")
    with pytest.raises(SpecError, match="is not a folder"):
        store.records()


def test_which_worker_a_host_answers_as(store: Store) -> None:
    assert store.known_worker("gpu1") is None
    store.put_worker("gpu1", "w-1", 5.0)
    assert store.known_worker("gpu1") == KnownWorker("w-1", 5.0)
    for number in range(2, 9):
        store.put_worker("gpu1", f"w-{number}", 5.0 + number)
    known = store.known_worker("gpu1")
    assert known == KnownWorker("w-8", 13.0, ("w-7", "w-6", "w-5", "w-4", "w-3"))
    assert store.known_worker("gpu2") is None
