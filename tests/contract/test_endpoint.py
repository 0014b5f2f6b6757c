"""One conversation: with the real worker, and with workers that answer wrongly or not at all."""

from __future__ import annotations

import os
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner import content, endpoint, wire
from runner.endpoint import LinkLost, Worker
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
from runner.inboxes import LIMIT_BYTES
from runner.model import Host
from tests.helpers.hostile_worker import Frame, hostile_host
from tests.helpers.local_worker import LocalWorker
from tests.helpers.wait import wait_for

LOCAL = Host("local", runtime="local")
Make = Callable[..., Host]


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(answers: dict[str, list[Frame]] | None = None, **script: Any) -> Host:
        return hostile_host(tmp_path, monkeypatch.setenv, answers, **script)

    return make


def ask(host: Host, verb: str = "info", **options: Any) -> tuple[dict[str, Any], list[Any]]:
    with Worker(host, **options) as worker:
        return worker.call(verb)


def test_worker_program_travels_by_itself_and_only_once(local_worker: LocalWorker) -> None:
    assert not local_worker.workspace.exists()
    digest = content.bundle().digest
    with Worker(LOCAL) as worker:
        assert worker.hello["wire"] == wire.WIRE
        reply, _ = worker.call("info")
    assert reply["workspace"] == str(local_worker.workspace)
    assert reply["bundles"] == [digest]
    place = local_worker.workspace / ".runner" / "bundles" / digest
    before = place.stat().st_mtime_ns
    ask(LOCAL)
    assert place.stat().st_mtime_ns == before
    assert local_worker.workspace.stat().st_mode & 0o777 == 0o700


def test_clocks_are_compared(local_worker: LocalWorker) -> None:
    with Worker(LOCAL) as worker:
        assert abs(worker.clock_skew_s) < 2


def test_several_requests_in_one_conversation(local_worker: LocalWorker) -> None:
    with Worker(LOCAL) as worker:
        first, second = worker.open("info"), worker.open("info")
        assert second.finish()["workspace"] == first.finish()["workspace"]
        with pytest.raises(ProtocolMismatch, match="does not know 'fly'"):
            worker.call("fly")
        assert worker.call("runs", all=True)[1] == []


def test_refused_workspace_is_named(local_worker: LocalWorker) -> None:
    (local_worker.workspace / ".ssh").mkdir(parents=True)
    with pytest.raises(SpecError, match=r"it holds \.ssh"):
        ask(LOCAL)


def test_conversation_outlives_silence_of_both_sides(local_worker: LocalWorker) -> None:
    with Worker(LOCAL, patience_s=1.5) as worker:
        began = time.monotonic()
        wait_for(lambda: time.monotonic() - began > 3, 5, "a while without a request")
        assert worker.call("info")[0]["workspace"]


def test_who_reads_slowly_gets_all_of_it_and_loses_no_link(local_worker: LocalWorker) -> None:
    run = local_worker.python("pass")
    local_worker.wait(run)
    size = 4 * LIMIT_BYTES
    with open(local_worker.workspace / "logs" / run / "rank-0.log", "wb") as file:
        file.truncate(size)
    with Worker(LOCAL, patience_s=1.0) as worker:
        request = worker.open("tail", run=run, rank=0, follow=False)
        wait_for(lambda: worker._inboxes.full, 20, "a reader that waits")
        began = time.monotonic()
        wait_for(lambda: time.monotonic() - began > 3, 5, "nobody to read")
        came = sum(
            len(payload) - wire.TAIL_HEAD.size
            for kind, payload in request.frames()
            if kind == wire.DATA
        )
    assert came == size


def test_streams_read_together_come_each_in_order(local_worker: LocalWorker) -> None:
    runs = [local_worker.python(f"print('{word}' * 9)") for word in ("a", "b")]
    for run in runs:
        local_worker.wait(run)
    with Worker(LOCAL) as worker:
        first = worker.open("tail", run=runs[0], rank=0)
        second = worker.open("tail", beside=first, run=runs[1], rank=0)
        told = {first: b"", second: b""}
        for request, kind, payload in worker.frames_of([first, second]):
            if kind == wire.DATA:
                told[request] += payload[wire.TAIL_HEAD.size :]
    assert told == {first: b"aaaaaaaaa\n", second: b"bbbbbbbbb\n"}
    assert [first.reply["run"]["id"], second.reply["run"]["id"]] == runs


def test_killed_worker_program_is_a_lost_link(local_worker: LocalWorker) -> None:
    with Worker(LOCAL) as worker:
        worker.call("info")
        for pid in children():
            os.kill(pid, 9)
        with pytest.raises(LinkLost, match="the link was lost"):
            worker.call("info")


def test_stopped_worker_program_is_a_lost_link_within_the_patience(
    local_worker: LocalWorker,
) -> None:
    with Worker(LOCAL, patience_s=1.5) as worker:
        worker.call("info")
        for pid in children():
            os.kill(pid, 19)
        began = time.monotonic()
        with pytest.raises(LinkLost, match=r"no answer for 1\.5 s"):
            worker.call("info")
        assert time.monotonic() - began < 5


def test_closing_leaves_no_process(local_worker: LocalWorker) -> None:
    with Worker(LOCAL) as worker:
        worker.call("info")
        assert children()
    assert not children()


def children() -> list[int]:
    """The worker programs that this process started and that live."""
    text = Path("/proc/thread-self/children").read_text()
    for task in Path("/proc/self/task").iterdir():
        text += " " + (task / "children").read_text()
    found = []
    for pid in {int(word) for word in text.split()}:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"exec(bytes.fromhex" in words:
            found.append(pid)
    return found


def test_what_a_login_shell_prints_is_skipped(hostile: Make) -> None:
    host = hostile({"info": [(wire.REP, {"ok": 1})]}, before="Welcome!\nrunner-wire/\n\x1b[1m")
    assert ask(host) == ({"ok": 1}, [])


def test_shell_that_only_prints_is_given_up(hostile: Make) -> None:
    host = hostile(before="x" * (endpoint.MAX_JUNK + 2_000_000))
    with pytest.raises(ProtocolMismatch, match="no worker spoke"):
        ask(host)


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">IBI", wire.MAX_FRAME + 1, wire.EVENT, 0).hex(),
        struct.pack(">IBI", 5, 0, 0).hex(),
        b"HTTP/1.1 400 Bad Request\r\n".hex(),
    ],
    ids=["too large", "no kind", "another protocol"],
)
def test_what_is_no_frame_is_a_mismatch(hostile: Make, raw: str) -> None:
    with pytest.raises(ProtocolMismatch, match="speaks otherwise"):
        ask(hostile(raw=raw))


def test_hello_that_cannot_be_read(hostile: Make) -> None:
    raw = wire.pack_frame(wire.EVENT, 0, b"[1]").hex()
    with Worker(hostile(raw=raw)) as worker, pytest.raises(WorkerError, match="cannot be read"):
        assert worker.hello


def test_refusal_of_the_whole_conversation_that_cannot_be_read(hostile: Make) -> None:
    raw = wire.pack_frame(wire.ERR, 0, b"\xff").hex()
    with pytest.raises(WorkerError, match="cannot be read"):
        ask(hostile(raw=raw))


def test_worker_that_ends_after_its_hello_is_a_lost_link(hostile: Make) -> None:
    with pytest.raises(LinkLost):
        ask(hostile(dies=True))


def test_worker_that_never_speaks_is_unreachable(
    hostile: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "CONNECT_TIMEOUT_S", 0.5)
    began = time.monotonic()
    with pytest.raises(Unreachable, match=r"no answer for 0\.5 s"):
        ask(hostile(mute=True), patience_s=0.5)
    assert time.monotonic() - began < 8


def test_worker_that_is_not_there_needs_provisioning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\necho 'bash: python3: command not found' >&2\nexit 0\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ProvisionError, match="python3: command not found") as caught:
        ask(Host("bad", ssh="local"))
    assert caught.value.advice == ("runner provision host=bad",)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("unknown-run", NotFound),
        ("no-gpu", SpecError),
        ("conflict", Conflict),
        ("wrong-state", WrongState),
        ("corrupt", IntegrityError),
        ("version", ProtocolMismatch),
        ("no-worker", ProvisionError),
        ("os", WorkerError),
        ("a code of the future", WorkerError),
        (None, WorkerError),
    ],
)
def test_refusals_become_errors(hostile: Make, code: str | None, kind: type[RunnerError]) -> None:
    host = hostile({"info": [(wire.ERR, {"code": code, "text": "no, thanks"})]})
    with pytest.raises(kind, match="bad: no, thanks") as caught:
        ask(host)
    assert type(caught.value) is kind


def test_no_space_is_said_in_words(hostile: Make) -> None:
    host = hostile({"info": [(wire.ERR, {"code": "no-space", "text": "[Errno 28]"})]})
    with pytest.raises(WorkerError, match=r"no room on its disk \(\[Errno 28\]\)"):
        ask(host)


@pytest.mark.parametrize(
    "frames",
    [
        [(wire.REP, "ff00")],
        [(wire.ERR, "5b5d")],
        [(wire.DATA, b"not zlib".hex()), (wire.REP, {})],
        [(wire.DATA, zlib.compress(b"{}").hex()), (wire.REP, {})],
        [(wire.DATA, zlib.compress(b"[" * 200_000).hex()), (wire.REP, {})],
        [(wire.DATA, zlib.compress(b"[1,2]")[:-6].hex()), (wire.REP, {})],
    ],
    ids=["reply", "refusal", "not zlib", "no list", "deep", "cut"],
)
def test_answers_that_cannot_be_read(hostile: Make, frames: list[Frame]) -> None:
    with pytest.raises(WorkerError, match="cannot be read"):
        ask(hostile({"info": frames}))


def test_listing_without_end_is_given_up(hostile: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_LISTING", 20 << 20)
    host = hostile({"info": [(wire.DATA, "00" * 1_000_000)]}, endless=True)
    with pytest.raises(WorkerError, match="listing without end"):
        ask(host)


def test_listing_that_swells_is_given_up(hostile: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_LISTING", 1 << 20)
    bomb = zlib.compress(b"[" + b" " * (2 << 20) + b"]")
    with pytest.raises(WorkerError, match="cannot be read"):
        ask(hostile({"info": [(wire.DATA, bomb.hex()), (wire.REP, {})]}))


def test_frames_of_streams_nobody_opened_are_passed_over(hostile: Make) -> None:
    raw = wire.pack_json(wire.EVENT, 0, {"wire": 1}) + wire.pack_json(wire.REP, 99, {"x": 1})
    host = hostile({"info": [(wire.REP, {"ok": 1})]}, raw=raw.hex())
    assert ask(host) == ({"ok": 1}, [])


def test_answer_out_of_turn(hostile: Make) -> None:
    host = hostile({"info": [(wire.DATA, "00"), (wire.REP, {})]})
    with Worker(host) as worker, pytest.raises(WorkerError, match="out of turn"):
        worker.open("info").event()


def test_sending_to_a_worker_that_went_away_is_a_lost_link(hostile: Make) -> None:
    with Worker(hostile(dies=True)) as worker:
        with pytest.raises(LinkLost):
            worker.call("info")
        with pytest.raises(LinkLost):
            worker.call("info")


def test_request_after_the_end_does_not_wait_for_ever(hostile: Make) -> None:
    """The pipe may still take bytes when nobody reads answers any more."""
    refused = wire.pack_json(wire.ERR, 0, {"code": "version", "text": "too old"})
    script = "import os, sys, time; os.write(1, bytes.fromhex(sys.argv[1])); os.close(1); "
    script += "time.sleep(9)"
    host = hostile()
    docker = Path(shutil.which("docker") or "")
    said = (wire.MAGIC + refused).hex()
    docker.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{script}' {said}\n")
    with Worker(host) as worker:
        for _ in range(2):
            with pytest.raises(ProtocolMismatch, match="too old"):
                worker.call("info")


def test_what_docker_says_on_stdout_is_told(tmp_path: Path, hostile: Make) -> None:
    host = hostile()
    said = "OCI runtime exec failed: exec failed: unable to start container process"
    (tmp_path / "bin/docker").write_text(f"#!/bin/sh\necho '{said}'; exit 126\n")
    with pytest.raises(WorkerError) as failed:
        ask(host)
    assert failed.value.message == "bad: the worker program ended with status 126"
    assert failed.value.advice == (f"it said: {said}",)
