"""What a run finds of the project: the whole of it as it was at its submit, and nothing else."""

from __future__ import annotations

import base64
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from runner import wire
from runner.app import space
from runner.errors import OutcomeUnknown, ProvisionError, WorkerError
from runner.transfer import offer
from tests.contract.test_submit import LINKED, intents, named, spec_of
from tests.contract.test_submit_trips import trip
from tests.helpers.hostile_worker import Frame, hostile_host
from tests.helpers.link import Link, make_link
from tests.helpers.local_worker import LocalWorker


def test_a_running_job_keeps_the_code_of_its_submit(local_worker: LocalWorker) -> None:
    local_worker.file("m.py", "a = 'old'\n")
    code = "import os, time; print('up', flush=True)\nwhile not os.path.exists({gate!r}): "
    gate = str(local_worker.root / "gate")
    first = local_worker.python(code.format(gate=gate) + "time.sleep(0.05)\nimport m; print(m.a)")
    local_worker.until_logged(first, "up")
    local_worker.file("m.py", "a = 'new'\n")
    second = local_worker.python("import m; print(m.a)")
    local_worker.wait(second)
    Path(gate).touch()
    local_worker.wait(first)
    assert local_worker.log(first).split() == [b"up", b"old"]
    assert local_worker.log(second).split() == [b"new"]


def test_what_was_deleted_here_is_not_there(local_worker: LocalWorker) -> None:
    local_worker.file("x.py", "")
    local_worker.file("sub/y.py", "")
    first = local_worker.python("import x, sub.y")
    (local_worker.project / "x.py").unlink()
    (local_worker.project / "sub/y.py").unlink()
    (local_worker.project / "sub").rmdir()
    second = local_worker.python("import x")
    assert local_worker.wait(first).status.outcome == "done"
    assert local_worker.wait(second).status.outcome == "failed"
    assert not (local_worker.workspace / "code" / second / "sub").exists()


def test_what_a_job_wrote_beside_its_code_stays(local_worker: LocalWorker) -> None:
    local_worker.file("m.py", "")
    first = local_worker.python("open('out.bin', 'w').write('mine')")
    local_worker.wait(first)
    local_worker.file("m.py", "changed = 1\n")
    local_worker.wait(local_worker.python("import m"))
    assert (local_worker.workspace / "code" / first / "out.bin").read_text() == "mine"
    pulled = local_worker.pull(local_worker.ref(first).id)
    assert (pulled.path / "work/out.bin").read_text() == "mine"


def test_a_script_can_be_executed(local_worker: LocalWorker) -> None:
    local_worker.file("run.sh", "#!/bin/sh\necho ran\n")
    (local_worker.project / "run.sh").chmod(0o755)
    run = local_worker.submit("./run.sh")
    assert local_worker.wait(run).status.outcome == "done"
    assert local_worker.log(run) == b"ran\n"
    (local_worker.project / "run.sh").chmod(0o644)
    assert local_worker.wait(local_worker.submit("./run.sh")).status.outcome == "failed"


def test_an_edit_of_the_same_size_and_time_is_noticed(local_worker: LocalWorker) -> None:
    local_worker.file("m.py", "a = 1\n")
    path = local_worker.project / "m.py"
    before = path.stat()
    local_worker.submit("true")
    local_worker.file("m.py", "a = 2\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    run = local_worker.python("import m; print(m.a)")
    local_worker.wait(run)
    assert local_worker.log(run) == b"2\n"


@pytest.fixture
def far(
    local_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[LocalWorker, Link]:
    local_worker.submit("true")
    local_worker.file("hosts/far.toml", LINKED)
    return local_worker, make_link(tmp_path / "link", monkeypatch.setenv)


@pytest.mark.parametrize("at", [100_000, 700_000, 1_400_000])
def test_a_cut_while_the_code_travels_makes_no_run(
    far: tuple[LocalWorker, Link], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    worker, link = far
    monkeypatch.setattr("runner.app.submit.RETRY_WAITS_S", ())
    monkeypatch.setattr(offer, "LARGEST_UNASKED", 100_000)
    before = worker.submit("true", words=("host=far",))
    big = worker.project / "big.bin"
    # far more than all the pipes on the way hold: what is cut has not been handed over yet
    big.write_bytes(random.Random(1).randbytes(8_000_000))
    link.plan({"up": at})
    with pytest.raises(Exception, match="link") as caught:
        worker.submit("true", words=("host=far", "name=cut"))
    assert not isinstance(caught.value, OutcomeUnknown), "nothing was handed over yet"
    assert named(worker, "cut") == set()
    assert intents(worker) == []
    assert not list(worker.workspace.glob(".runner/blobs/??/*.tmp*"))
    assert (worker.workspace / "code" / before).is_dir()
    run = worker.submit("true", words=("host=far", "name=cut"))
    assert named(worker, "cut") == {run}
    assert (worker.workspace / "code" / run / "big.bin").read_bytes() == big.read_bytes()


@pytest.fixture
def git(
    local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> tuple[LocalWorker, Callable[..., None]]:
    """A project under git with one commit."""
    monkeypatch.setenv("HOME", str(local_worker.root))

    def act(*words: str) -> None:
        name = ("-c", "user.name=x", "-c", "user.email=x@x")
        argv = ["git", *name, *words]
        subprocess.run(argv, cwd=local_worker.project, check=True, capture_output=True)

    local_worker.file("m.py", "a = 1\n")
    act("init", "-q", "-b", "main")
    act("add", "m.py", "runner.toml")
    act("commit", "-q", "-m", "x")
    return local_worker, act


def diff_of(worker: LocalWorker, run: str) -> bytes:
    """The diff that `list` tells of a run."""
    with worker.ctx.connect(worker.ctx.host("local")) as link:
        reply, _ = link.call("list", run=run)
    return base64.b64decode(reply["diff"] or "")


def test_what_was_edited_runs_and_its_diff_is_kept(
    git: tuple[LocalWorker, Callable[..., None]],
) -> None:
    worker, act = git
    clean = worker.submit("true")
    assert "diff" not in spec_of(worker, clean)["code"]
    assert diff_of(worker, clean) == b""
    worker.file("m.py", "a = 2\n")
    run = worker.python("import m; print(m.a)")
    worker.wait(run)
    assert worker.log(run) == b"2\n"
    assert b"-a = 1\n+a = 2\n" in diff_of(worker, run)
    code = spec_of(worker, run)["code"]
    assert code["diff_bytes"] == len(diff_of(worker, run))
    assert "diff" not in worker.status(run).status.code
    assert " + 1 edited file" in worker.report.notes[-2]
    # the same tree, and nothing is edited any more
    act("commit", "-q", "-a", "-m", "y")
    again = worker.submit("true")
    assert spec_of(worker, again)["snapshot"] == spec_of(worker, run)["snapshot"]
    assert diff_of(worker, again) == b""


def test_a_diff_is_kept_as_long_as_its_run(
    git: tuple[LocalWorker, Callable[..., None]],
) -> None:
    worker, _ = git
    worker.file("m.py", "a = 2\n")
    run = worker.submit("true")
    worker.wait(run)
    before = diff_of(worker, run)
    assert before
    for path in worker.workspace.glob(".runner/blobs/??/*"):
        os.utime(path, (1, 1))
    space.collect(worker.ctx, "local")
    assert diff_of(worker, run) == before
    blob = worker.workspace / ".runner/blobs" / spec_of(worker, run)["code"]["diff"][:2]
    assert list(blob.iterdir())
    space.remove(worker.ctx, [worker.ref(run)], unpulled=True)
    space.collect(worker.ctx, "local")
    assert not blob.is_dir() or not list(blob.iterdir())


def test_a_diff_that_is_damaged_is_none(git: tuple[LocalWorker, Callable[..., None]]) -> None:
    worker, _ = git
    worker.file("m.py", "a = 2\n")
    run = worker.submit("true")
    digest = spec_of(worker, run)["code"]["diff"]
    blob = worker.workspace / ".runner/blobs" / digest[:2] / digest[2:]
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes().replace(b"a = 2", b"a = 3"))
    assert diff_of(worker, run) == b""


def test_a_new_diff_of_the_same_tree_is_one_round_trip(
    git: tuple[LocalWorker, Callable[..., None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, act = git
    worker.submit("true")
    worker.file("hosts/far.toml", LINKED)
    link = make_link(tmp_path / "link", monkeypatch.setenv)
    worker.submit("true", words=("host=far",))
    worker.file("m.py", "a = 3\n")
    act("commit", "-q", "-a", "-m", "z")
    worker.submit("true", words=("host=far",))
    act("reset", "-q", "--soft", "HEAD~1")
    link.forget()
    run = worker.submit("true", words=("host=far",))
    sent, answered = trip(link)
    assert [kind for kind, _ in answered] == ["REP"]
    assert diff_of(worker, run)
    link.forget()
    worker.submit("true", words=("host=far",))
    assert [kind for kind, _ in trip(link)[0]] == ["REQ", "END"]
    assert sent


def test_what_a_cut_left_of_contents_is_collected(local_worker: LocalWorker) -> None:
    local_worker.submit("true")
    left = local_worker.workspace / ".runner/blobs/.tmp-0123456789abcdef"
    left.mkdir()
    (left / ("0" * 64)).write_text("half")
    found = space.collect(local_worker.ctx, "local")
    assert not left.exists()
    assert any("left by what was cut" in why for _, _, why in found.items)


def test_a_worker_that_is_not_up_is_no_unknown_outcome(
    local_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All went out before it answered, but it said itself that it made nothing."""
    answers: dict[str, list[Frame]] = {"submit": [(wire.ERR, {"code": "no-worker", "text": "x"})]}
    hostile_host(tmp_path, monkeypatch.setenv, answers)
    local_worker.file("hosts/far.toml", LINKED)
    with pytest.raises(ProvisionError, match="far: x"):
        local_worker.submit("true", words=("host=far",))
    assert intents(local_worker) == []


def test_an_answer_that_tells_nothing_leaves_the_intent_open(
    local_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, list[Frame]] = {"submit": [(wire.ERR, {"code": "os", "text": "EIO"})]}
    hostile_host(tmp_path, monkeypatch.setenv, answers)
    local_worker.file("hosts/far.toml", LINKED)
    with pytest.raises(WorkerError, match="EIO"):
        local_worker.submit("true", words=("host=far",))
    assert len(intents(local_worker)) == 1


def test_the_copy_of_very_many_files_is_made_when_the_run_starts(local_worker: LocalWorker) -> None:
    local_worker.host(slots=1)
    local_worker.submit("sleep", "300")
    many = local_worker.project / "many"
    many.mkdir()
    for number in range(2001):
        (many / f"f{number}").touch()
    run = local_worker.python("import os; print(len(os.listdir('many')))", words=("priority=1",))
    assert not (local_worker.workspace / "code" / run).exists()
    local_worker.host(slots=2)
    local_worker.submit("true", words=("priority=-1",))
    assert local_worker.wait(run, 60).status.outcome == "done"
    assert local_worker.log(run) == b"2001\n"
