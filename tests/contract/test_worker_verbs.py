"""The worker's answers, asked over a real conversation: what it refuses, and in which words."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import sums, wire
from runner.endpoint import Worker
from runner.errors import (
    Conflict,
    IntegrityError,
    NotFound,
    ProtocolMismatch,
    RunnerError,
    SpecError,
    WorkerError,
)
from tests.helpers.local_worker import LocalWorker


@pytest.fixture
def link(shared_worker: LocalWorker) -> Iterator[Worker]:
    with Worker(shared_worker.ctx.hosts["local"]) as worker:
        yield worker


CODE = b"echo hello\n"
ROW = ["main.sh", "f", 0o644, len(CODE), hashlib.sha256(CODE).hexdigest()]


def spec(run: str, rows: list[Any], **more: Any) -> dict[str, Any]:
    body = {"id": run, "argv": ["sh", "main.sh"], "nproc": 1, "gpus": 0, "project": {"id": "p-1"}}
    return {**body, "snapshot": wire.tree_digest(rows), **more}


def pack(*contents: bytes) -> bytes:
    parts = [
        wire.PACK_HEAD.pack(hashlib.sha256(data).digest(), len(data)) + data for data in contents
    ]
    return zlib.compress(b"".join(parts))


def hand_over(
    link: Worker, body: dict[str, Any], rows: Any, data: bytes = b"", first: bool = True
) -> dict[str, Any]:
    """The reply to a submit; `first`: the list of files is sent unasked, but no content."""
    if first:
        request = link.open("submit", spec=body, list="whole", ends=False)
        request.send_rows(rows)
    else:
        request = link.open("submit", behind=[(wire.END, b"")], spec=body, list=None, ends=True)
    for kind, payload in request.frames():
        assert kind == wire.EVENT
        if wire.read_json(payload)["need"] == "list":
            request.send_rows(rows)
        else:
            request.send(data)
            request.end()
    return request.reply


def test_the_same_run_twice_is_answered_with_what_is_there(link: Worker) -> None:
    body = spec("cmd-twice", [ROW])
    first = hand_over(link, body, [ROW], pack(CODE))
    again = hand_over(link, body, [ROW], pack())
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert first["run"]["id"] == again["run"]["id"] == "cmd-twice"
    with pytest.raises(Conflict, match="another spec"):
        hand_over(link, dict(body, argv=["true"]), [ROW])
    with pytest.raises(Conflict, match="another spec"):
        hand_over(link, dict(body, gpus="auto"), [ROW])


def test_a_list_that_was_not_sent_is_asked_for(link: Worker) -> None:
    other = ["other.sh", *ROW[1:]]
    reply = hand_over(link, spec("cmd-asked", [other]), [other], pack(CODE), first=False)
    assert reply["run"]["state"] == "queued"
    # the next one need not send it
    reply = hand_over(link, spec("cmd-known", [other]), None, pack(), first=False)
    assert reply["id"] == "cmd-known"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"id": "../x"}, WorkerError),
        ({"id": ""}, WorkerError),
        ({"id": 5}, WorkerError),
        ({"snapshot": "short"}, WorkerError),
        ({"snapshot": None}, WorkerError),
        ({"gpus": 1}, SpecError),
        ({"snapshot": "0" * 64}, IntegrityError),
    ],
)
def test_a_submit_that_cannot_be_is_refused_and_leaves_nothing(
    link: Worker, shared_worker: LocalWorker, change: dict[str, Any], error: type[RunnerError]
) -> None:
    new = ["never.sh", *ROW[1:]]
    assert link.hello  # it has made its workspace
    before = sorted(os.listdir(shared_worker.workspace / "runs"))
    with pytest.raises(error):
        hand_over(link, {**spec("cmd-never", [new]), **change}, [new], pack(CODE))
    assert sorted(os.listdir(shared_worker.workspace / "runs")) == before


MISSING = ["m.sh", "f", 0o644, 3, hashlib.sha256(b"nev").hexdigest()]


@pytest.mark.parametrize(
    ("rows", "data"),
    [
        ([MISSING], pack()),
        ([MISSING], pack(b"nev")[:-6]),
        ([MISSING], b"no zlib"),
        ([MISSING], zlib.compress(b"x" * 39)),
        ([["../m", *MISSING[1:]]], pack(b"nev")),
        ([["l", "l", 0, 0, "/etc"]], pack()),
    ],
)
def test_code_that_does_not_arrive_whole_is_refused(
    link: Worker, shared_worker: LocalWorker, rows: list[Any], data: bytes
) -> None:
    with pytest.raises(IntegrityError):
        hand_over(link, spec("cmd-broken", rows), rows, data)
    assert not (shared_worker.workspace / "runs/cmd-broken").exists()
    assert not (shared_worker.workspace / "code/cmd-broken").exists()


def test_what_it_does_not_know_is_said(link: Worker) -> None:
    with pytest.raises(ProtocolMismatch, match="does not know 'dance'"):
        link.call("dance")
    for verb in ("tail", "list", "files", "progress"):
        with pytest.raises(NotFound, match="cmd-nowhere"):
            link.call(verb, run="cmd-nowhere", rank=0)
        with pytest.raises(NotFound):
            link.call(verb, run="../../etc", rank=0)
        with pytest.raises(NotFound):
            link.call(verb, run=["x"], rank=0)


@pytest.fixture(scope="module")
def run(shared_worker: LocalWorker) -> str:
    """A run with a log, a checkpoint and files beside its code."""
    code = """
import json, os
top = os.environ["RUNNER_CHECKPOINTS"]
for name in ("step-1", "step-2.tmp", ".bad-step-0"):
    os.mkdir(f"{top}/{name}"); open(f"{top}/{name}/model.pt", "w").write(name)
os.symlink("/etc/passwd", f"{top}/evil"); os.symlink("/etc", f"{top}/step-1/evil")
os.mkfifo(f"{top}/step-1/fifo")
os.makedirs("runs/a"); open("runs/a/out.txt", "w").write("mine")
os.makedirs("__pycache__"); open("__pycache__/x.pyc", "w").write("x")
with open(os.environ["RUNNER_PROGRESS"], "w") as out:
    for step in range(100): print(json.dumps({"step": step, "metrics": {"r": step}}), file=out)
for n in range(100): print("line", n)
"""
    shared_worker.file("code.py", "x = 1\n")
    name = shared_worker.python(code)
    assert shared_worker.wait(name).status.outcome == "done", shared_worker.log(name)
    return name


def test_artifacts_are_listed_and_nothing_else(link: Worker, run: str) -> None:
    reply, rows = link.call("list", run=run)
    names = {f"{kind}/{path}" for kind, path, *_ in rows}
    assert names == {
        "checkpoints/step-1/model.pt",
        "logs/rank-0.log",
        "logs/progress.jsonl",
        "work/runs/a/out.txt",
    }
    assert set(reply["skipped"]) >= {"checkpoints/evil", "checkpoints/step-1/fifo"}
    assert json.loads(reply["spec"])["id"] == run
    assert json.loads(reply["state"])["outcome"] == "done"


def fetch(link: Worker, run: str, *rows: Any, at_once: int = 100) -> list[tuple[Any, ...]]:
    """The parts that come: (index, what, count or bytes); bytes of a file in one."""
    request = link.open("files", run=run)
    for start in range(0, len(rows), at_once):
        text = json.dumps(rows[start : start + at_once])
        request.send(zlib.compress(text.encode()))
    request.end()
    found: list[tuple[Any, ...]] = []
    for _, payload in request.frames():
        at = 0
        while at < len(payload):
            index, what, count = wire.PART_HEAD.unpack_from(payload, at)
            at += wire.PART_HEAD.size
            if what not in (wire.PART_BYTES, wire.PART_SUM):
                found.append((index, what, count))
                continue
            data = payload[at : at + count]
            at += count
            if found and found[-1][:2] == (index, what):
                data = found.pop()[2] + data
            found.append((index, what, data))
    return found


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def test_a_files_bytes_come_from_where_one_is_with_the_digest_of_all(
    link: Worker, run: str, shared_worker: LocalWorker
) -> None:
    log = shared_worker.log(run)
    size, stat = len(log), (shared_worker.workspace / f"logs/{run}/rank-0.log").stat()
    row = ["logs", "rank-0.log", 0, 5, size, size, stat.st_mtime_ns, None]
    whole = [(0, wire.PART_BYTES, log[5:]), (0, wire.PART_SUM, sha256(log))]
    assert fetch(link, run, row) == whole
    # of a log that grew, what was listed is meant
    assert fetch(link, run, ["logs", "rank-0.log", 0, 0, 10, 10, 0, None]) == [
        (0, wire.PART_BYTES, log[:10]),
        (0, wire.PART_SUM, sha256(log[:10])),
    ]
    # the same, its beginning compared; then only its end; then no sum; then nothing but the sum
    row[7] = sha256(log[:5]).hex()
    assert fetch(link, run, row) == whole
    row[7] = sha256(log[1:5]).hex()
    assert fetch(link, run, row) == [(0, wire.PART_LEFT, wire.LEFT_OTHER)]
    rows = [row[:2] + [1] + row[3:], row[:2] + [size, 5, size, size, 0, None]]
    rows.append(row[:2] + [0, size, size, size, 0, None])
    assert fetch(link, run, *rows, at_once=2) == [
        (0, wire.PART_BYTES, log[5:]),
        (0, wire.PART_SUM, sha256(log[1:])),
        (1, wire.PART_BYTES, log[5:]),
        (1, wire.PART_SUM, b""),
        (2, wire.PART_SUM, sha256(log)),
    ]


def test_holes_do_not_travel(link: Worker, run: str, shared_worker: LocalWorker) -> None:
    path = shared_worker.workspace / f"checkpoints/{run}/sparse"
    size = 9 << 20
    with path.open("wb") as file:
        file.write(b"a" * 4096)
        file.seek(5 << 20)
        file.write(b"b" * 4096)
        file.truncate(size)
    stat = path.stat()
    whole = sums.Sum()
    whole.update(path.read_bytes())
    row = ["checkpoints", "sparse", 0, 0, size, size, stat.st_mtime_ns, None]
    came = fetch(link, run, row)
    path.unlink()
    assert came == [
        (0, wire.PART_BYTES, b"a" * 4096),
        (0, wire.PART_HOLE, (5 << 20) - 4096),
        (0, wire.PART_BYTES, b"b" * 4096),
        (0, wire.PART_HOLE, (4 << 20) - 4096),
        (0, wire.PART_SUM, whole.digest()),
    ]


def test_a_file_that_changed_is_left_and_a_link_is_not_followed(link: Worker, run: str) -> None:
    target = os.stat("/etc/passwd")
    size, mtime_ns = target.st_size, target.st_mtime_ns
    for path, *times, why in (
        ("evil", size, mtime_ns, wire.LEFT_GONE),
        ("step-1/evil/passwd", size, mtime_ns, wire.LEFT_GONE),
        ("step-1/fifo", 1, 0, wire.LEFT_GONE),
        ("step-1", 1, 0, wire.LEFT_GONE),
        ("gone", 1, 0, wire.LEFT_GONE),
        ("step-1/model.pt", 6, 12345, wire.LEFT_CHANGED),
        ("step-1/model.pt", 5, 0, wire.LEFT_CHANGED),
    ):
        row = ["checkpoints", path, 0, 0, times[0], *times, None]
        assert fetch(link, run, row) == [(0, wire.PART_LEFT, why)], path


@pytest.mark.parametrize(
    "row",
    [
        ["checkpoints", "../x", 0, 0, 1, 1, 0, None],
        ["checkpoints", "/etc/passwd", 0, 0, 1, 1, 0, None],
        ["secrets", "x", 0, 0, 1, 1, 0, None],
        ["logs", "x", 0, 2, 1, 2, 0, None],
        ["logs", "x", 0, 0, 2, 1, 0, None],
        ["logs", "x", 1, 0, 2, 2, 0, None],
        ["logs", "x", -1, 0, 1, 1, 0, None],
        ["logs", "x", 0, 0, "1", 1, 0, None],
        ["logs", "x", 0, 0, 1, 1, 0, 7],
        ["logs"],
        "logs",
    ],
)
def test_what_is_no_artifact_is_refused(link: Worker, run: str, row: Any) -> None:
    with pytest.raises(WorkerError, match="not an artifact"):
        fetch(link, run, row)


@pytest.mark.parametrize("data", [b"x", zlib.compress(b"{}"), zlib.compress(b"[" + b" " * 2**21)])
def test_rows_that_cannot_be_read_are_refused(link: Worker, run: str, data: bytes) -> None:
    request = link.open("files", run=run)
    request.send(data)
    with pytest.raises(WorkerError, match="rows that"):
        request.finish()


def tail(link: Worker, run: str, **options: Any) -> tuple[bytes, dict[str, Any]]:
    request = link.open("tail", run=run, **{"rank": 0, "follow": False, **options})
    data = b""
    first: dict[str, Any] = {}
    for kind, payload in request.frames():
        if kind == wire.DATA:
            data += payload[wire.TAIL_HEAD.size :]
        else:
            first = first or wire.read_json(payload)
    assert request.reply["run"]["id"] == run
    return data, first


def test_a_log_from_any_byte_and_by_lines(
    link: Worker, run: str, shared_worker: LocalWorker
) -> None:
    log = shared_worker.log(run)
    assert tail(link, run)[0] == log
    assert tail(link, run, follow=True)[0] == log
    assert tail(link, run, **{"from": 7})[0] == log[7:]
    assert tail(link, run, **{"from": len(log) + 5})[0] == b""
    data, first = tail(link, run, lines=3)
    assert data == b"line 97\nline 98\nline 99\n"
    assert first == {"start": len(log) - len(data), "size": len(log), "ranks": 1}
    assert tail(link, run, lines=0)[0] == b""
    assert tail(link, run, lines=1000)[0] == log
    for absent in (1, -1):
        with pytest.raises(SpecError, match="1 rank"):
            tail(link, run, rank=absent)
    for bad in (
        {"rank": "0"},
        {"from": "x"},
        {"from": -1},
        {"lines": 1.5},
    ):
        with pytest.raises(WorkerError, match="no byte" if bad == {"from": -1} else None):
            tail(link, run, **bad)


@pytest.mark.parametrize(
    ("text", "count", "rest"),
    [
        (b"a\nb\nc", 1, b"c"),
        (b"a\nb\nc\n", 1, b"c\n"),
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"\n\n\n", 2, b"\n\n"),
        (b"one", 5, b"one"),
        (b"", 3, b""),
        (b"x" * 70000 + b"\n" + b"y" * 70000, 1, b"y" * 70000),
        (b"x" * 70000 + b"\n" + b"y" * 70000, 2, b"x" * 70000 + b"\n" + b"y" * 70000),
    ],
)
def test_where_the_last_lines_begin(tmp_path: Path, text: bytes, count: int, rest: bytes) -> None:
    from verbs.tail import last_lines

    path = tmp_path / "log"
    path.write_bytes(text)
    assert text[last_lines(str(path), len(text), count) :] == rest


def test_a_curve_is_thinned(link: Worker, run: str) -> None:
    _, rows = link.call("progress", run=run, most=10)
    assert rows[0][:2] == [0, {"r": 0}]
    assert rows[-1][:2] == [99, {"r": 99}]
    assert 10 <= len(rows) <= 12


def test_runs_of_a_project_of_all_and_by_id(link: Worker, run: str) -> None:
    _, rows = link.call("runs", project="p-1", all=True)
    assert run in [row["id"] for row in rows]
    assert link.call("runs", project="another")[1] == []
    _, rows = link.call("runs", ids=[run, "cmd-nowhere"], full=True)
    assert [row["id"] for row in rows] == [run]
    status = wire.RunStatus.from_json(rows[0])
    assert [c["name"] for c in status.checkpoints] == ["step-1"]
    assert [a["attempt"] for a in status.attempts] == [1]
    assert (status.step, status.metrics) == (99, {"r": 99})


def test_what_the_worker_is(link: Worker, shared_worker: LocalWorker) -> None:
    reply, _ = link.call("info")
    assert reply["up"] is True
    assert reply["workspace"] == str(shared_worker.workspace)
    assert reply["config"]["runtime"] == "local"
    assert reply["gpus"] == []
    assert "env" not in reply["config"]
    assert link.hello["wire"] == wire.WIRE


def test_wait_tells_of_ends_and_passes_over_what_is_gone(link: Worker, run: str) -> None:
    events: list[Any] = []
    reply, _ = link.call("wait", ids=[run], on_event=events.append)
    assert reply == {}
    assert [event["run"]["state"] for event in events] == ["ended"]


def test_an_older_run_is_hidden_but_counted(local_worker: LocalWorker) -> None:
    ids = [f"cmd-{number:05}" for number in range(23)]
    for number, run in enumerate(ids):
        folder = local_worker.run_folder(run)
        folder.mkdir(parents=True)
        body = {"id": run, "accepted_at": number, "project": {"id": "p-1"}}
        (folder / "spec.json").write_text(json.dumps(body))
        (folder / "state.json").write_text('{"state": "ended", "outcome": "done"}')
    with Worker(local_worker.ctx.hosts["local"]) as link:
        reply, rows = link.call("runs", project="p-1")
        assert [row["id"] for row in rows] == ids[3:]
        assert reply["hidden"] == 3
        assert len(link.call("runs", project="p-1", all=True)[1]) == 23
