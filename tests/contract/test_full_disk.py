"""A worker on a disk without room, for bytes or for files: it lives, and can be made room on."""

from __future__ import annotations

import contextlib
import json
import marshal
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import wire
from runner.app import drain, runs, space
from runner.cli import main
from runner.endpoint import Worker
from runner.errors import RunnerError, SpecError, WorkerError
from runner.model import Host
from tests.helpers.local_worker import LocalWorker
from tests.helpers.small_disk import fill, free_bytes, small_disk, use_up_inodes
from tests.helpers.wait import stays, wait_for

Capture = pytest.CaptureFixture[str]
LOCAL = Host("local", runtime="local")
FULL_S = 31.0
PAGE = 4096
CANNOT_WRITE = """
import os, time
while os.statvfs(".").f_favail:
    time.sleep(0.01)
open("another", "w")
"""


@pytest.fixture
def on_16m(local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalWorker]:
    monkeypatch.chdir(local_worker.project)
    with small_disk(local_worker.workspace, "16m"):
        yield local_worker
        local_worker.close()


def gated(worker: LocalWorker, gate: str) -> str:
    return worker.submit("sh", "-c", f"until test -e {worker.root / gate}; do sleep 0.02; done")


def leave_no_room_in_logs(worker: LocalWorker) -> None:
    """The last page of a file has room on a full disk, too."""
    for name in ("dispatcher.log", "supervisord.log", "supervisord.out"):
        path = worker.workspace / ".runner" / name
        with open(path, "ab") as file:
            file.write(b"\n" * (-file.tell() % PAGE))


def fill_all(worker: LocalWorker) -> Path:
    leave_no_room_in_logs(worker)
    return fill(worker.workspace)


def test_a_worker_lives_on_a_full_disk(on_16m: LocalWorker) -> None:
    worker = on_16m
    worker.host(slots=2)
    gone, kept = (worker.submit("echo", "hello") for _ in range(2))
    for run in (gone, kept):
        worker.wait(run)
    first, second = gated(worker, "one"), gated(worker, "two")
    for run in (first, second):
        worker.until(run, "running")
    waiting, unwanted = worker.submit("true"), worker.submit("true")
    filler = fill_all(worker)
    pair = (worker.dispatcher, worker.supervisor)
    assert all(pair)
    # its slot becomes free, and what waits for it cannot be started
    (worker.root / "one").touch()
    worker.until(first, "ended")
    stays(lambda: (worker.dispatcher, worker.supervisor) == pair, FULL_S, "both of them")

    # each of them starts again where there is no room
    worker.kill(worker.dispatcher)
    wait_for(lambda: worker.dispatcher not in (0, pair[0]), 20, "another dispatcher")
    worker.kill(worker.supervisor, worker.dispatcher)
    assert worker.status(kept).status.outcome == "done"
    wait_for(lambda: worker.dispatcher and worker.supervisor, 20, "another pair")
    worker.kill(worker.supervisor, worker.dispatcher)

    assert {row.status.id for row in runs.list_runs(worker.ctx).runs} >= {kept, waiting, second}
    assert worker.tail(kept, follow=False) == b"hello\n"
    assert worker.cancel(unwanted)[0].outcome == "cancelled"
    assert space.usage(worker.ctx).hosts[0].disk_free is not None
    drain.drain(worker.ctx, "local", True)
    drain.drain(worker.ctx, "local", False)
    assert space.collect(worker.ctx, "local").host == "local"
    (removed,) = space.remove(worker.ctx, [worker.ref(gone)], unpulled=True)
    assert (removed.error, removed.gone) == (None, False)
    assert not worker.run_folder(gone).exists()
    assert worker.state(second)["state"] == "running"
    filler.unlink()
    (worker.root / "two").touch()
    for run in (first, second, waiting):
        assert worker.wait(run).status.outcome == "done"
    assert [worker.state(run)["attempt"] for run in (first, second)] == [1, 1]


def test_bytecode_that_a_nearly_full_disk_cut_is_never_kept(on_16m: LocalWorker) -> None:
    with Worker(LOCAL) as link:
        link.call("info")
    bundles = on_16m.workspace / ".runner/bundles"
    (bundle,) = bundles.iterdir()
    whole = on_16m_free(on_16m)
    shutil.rmtree(bundle)
    takes = on_16m_free(on_16m) - whole
    assert takes > 500_000
    for share in (0.2, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97):
        filler = fill(on_16m.workspace, leave=int(takes * share) // PAGE * PAGE)
        for _ in range(2):
            with contextlib.suppress(RunnerError), Worker(LOCAL) as link:
                link.call("info")
                link.call("usage")
        assert [path.name for path in bundles.iterdir() if ".tmp" in path.name] == []
        for path in bundles.rglob("*.pyc"):
            marshal.loads(path.read_bytes()[16:])
        filler.unlink()
        with Worker(LOCAL) as link:
            link.call("info")
            link.call("usage")
        assert list(bundle.rglob("*.pyc"))
        shutil.rmtree(bundle)


def on_16m_free(worker: LocalWorker) -> int:
    return free_bytes(worker.workspace)


def test_the_program_is_compiled_once_and_for_the_python_that_runs_it(
    local_worker: LocalWorker,
) -> None:
    with Worker(LOCAL) as link:
        link.call("info")
    (bundle,) = (local_worker.workspace / ".runner/bundles").iterdir()
    sources = {path.relative_to(bundle).with_suffix("") for path in bundle.rglob("*.py")}
    made = set(bundle.rglob("*.pyc"))
    assert {
        path.relative_to(bundle).parent.parent / path.name.split(".")[0] for path in made
    } == sources
    before = {path: path.stat().st_mtime_ns for path in made}
    local_worker.wait(local_worker.submit("true"))
    assert {path: path.stat().st_mtime_ns for path in bundle.rglob("*.pyc")} == before
    # as another Python finds it
    shutil.rmtree(bundle / "__pycache__")
    with Worker(LOCAL) as link:
        link.call("info")
    assert set(bundle.rglob("*.pyc")) == made


def test_code_that_would_take_the_reserve_is_refused_before_it_comes(on_16m: LocalWorker) -> None:
    on_16m.host(disk_reserve="6m")
    live = gated(on_16m, "gate")
    on_16m.until(live, "running")
    (on_16m.project / "big.bin").write_bytes(random.Random(1).randbytes(5_000_000))
    before = free_bytes(on_16m.workspace)
    with pytest.raises(
        WorkerError, match=r"free; this takes 10[.]. MB, and 6[.0-9]* MB must stay"
    ) as caught:
        on_16m.submit("true")
    assert caught.value.advice == ("see what can go: runner gc host=local --dry-run",)
    assert free_bytes(on_16m.workspace) > before - 100_000
    assert os.listdir(on_16m.workspace / "code") == [live]
    time.sleep(1.5)
    assert on_16m.state(live)["state"] == "running"
    (on_16m.root / "gate").touch()
    assert on_16m.wait(live).status.outcome == "done"


def test_what_was_laid_out_for_a_run_that_was_not_made_goes(local_worker: LocalWorker) -> None:
    spec: dict[str, Any] = {"id": "cmd-lost1", "argv": ["true"], "nproc": 1, "gpus": 0}
    spec |= {"snapshot": wire.tree_digest([]), "secrets": ["A", "B"]}
    with local_worker.ctx.connect(local_worker.ctx.host("local")) as worker:
        request = worker.open("submit", spec=spec, list="whole", secrets={"A": "eA=="})
        request.send_rows([])
        request.event()
        request.end()
        with pytest.raises(SpecError, match="the value of B did not come"):
            request.finish()
    for kind in ("code", "runs", ".runner/secrets"):
        place = local_worker.workspace / kind
        assert not place.exists() or os.listdir(place) == []


def test_the_room_that_is_told_is_not_rounded_to_nothing(on_16m: LocalWorker) -> None:
    on_16m.host(disk_reserve="40m")
    run = on_16m.submit("true")
    wait_for(lambda: (on_16m.status(run).status.waits or {}).get("kind") == "disk", 5, "why")
    waits = on_16m.status(run).status.waits
    assert waits is not None
    assert waits["free_bytes"] // 10**6 in range(5, 16)


def test_without_inodes_room_can_be_made_and_the_cause_is_told(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    worker = local_worker
    monkeypatch.chdir(worker.project)
    with small_disk(worker.workspace, "32m", inodes=900):
        gone, other = worker.submit("true"), worker.submit("true")
        for run in (gone, other):
            worker.wait(run)
        victim = worker.python(CANNOT_WRITE, words=("restarts=0",))
        worker.until(victim, "running")
        fillers = use_up_inodes(worker.workspace)
        worker.until(victim, "ended")
        assert worker.causes(victim) == ["disk-full"]
        use_up_inodes(worker.workspace)
        with pytest.raises(WorkerError, match="no room on its disk .no inodes left: "):
            worker.submit("true")
        use_up_inodes(worker.workspace)
        assert main(["du", "--json"]) == 0
        (host,) = json.loads(capsys.readouterr().out)["hosts"]
        assert host["disk"]["free_inodes"] == 0
        shutil.rmtree(fillers)
        live = gated(worker, "never")
        worker.until(live, "running")
        use_up_inodes(worker.workspace)
        assert worker.cancel(live, now=True)[0].outcome == "cancelled"
        (worker.workspace / ".runner/contents.lock").unlink()
        use_up_inodes(worker.workspace)
        assert not (worker.run_folder(gone) / "resume.lock").exists()
        (removed,) = space.remove(worker.ctx, [worker.ref(gone)], unpulled=True)
        assert removed.error is None
        assert not worker.run_folder(gone).exists()
        use_up_inodes(worker.workspace)
        assert not (worker.run_folder(other) / "resume.lock").exists()
        assert space.collect(worker.ctx, "local").kept == ()
        shutil.rmtree(fillers)
        assert worker.wait(worker.submit("true")).status.outcome == "done"
        worker.close()
