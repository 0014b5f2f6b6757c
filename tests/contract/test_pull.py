"""Pulling from a real worker: files whole and verified, nothing lost, cuts gone on from."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner import manifest
from runner.app import context
from runner.app import pull as pull_use
from runner.endpoint import Request, Worker
from runner.errors import HostError, NotFound, SpecError, Unreachable
from runner.manifest import Fetch, RemoteFile
from runner.transfer import fetch, parts, places
from tests.helpers.link import Link, make_link
from tests.helpers.local_worker import LocalWorker
from tests.helpers.small_disk import small_disk
from tests.helpers.wait import wait_for

LINKED = 'runtime = "docker"\nssh = "local"\n'
WRITES = """
import os
c, l = os.environ["RUNNER_CHECKPOINTS"], os.environ["RUNNER_LOGS"]
os.makedirs(c + "/step-1")
open(c + "/step-1/model.pt", "wb").write(bytes(range(256)) * 100)
os.makedirs(c + "/step-2.tmp"); open(c + "/step-2.tmp/model.pt", "w").write("half")
open(c + "/.hidden", "w").write("h"); open(c + "/step-3.part", "w").write("half")
os.symlink("step-1", c + "/latest"); os.symlink("/etc/passwd", c + "/evil")
os.symlink("/etc", l + "/etc")
os.mkfifo(l + "/pipe")
os.makedirs("out"); open("out/result ü.txt", "w").write("made here")
open("tool.sh", "w").write("#!/bin/sh"); os.chmod("tool.sh", 0o755)
open("empty", "w")
print("said")
"""


@pytest.fixture
def link(shared_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Link:
    """The worker once more as host `far`, behind a link; a pull that is cut is not gone on with."""
    shared_worker.file("hosts/far.toml", LINKED)
    monkeypatch.setattr(pull_use, "RETRY_WAITS_S", ())
    return make_link(tmp_path / "link", monkeypatch.setenv)


def done(worker: LocalWorker, code: str) -> str:
    run = worker.python(code)
    assert worker.wait(run).status.outcome == "done", worker.log(run)
    return run


def blank(worker: LocalWorker) -> str:
    """A run that has ended and made nothing."""
    return done(worker, "pass")


def files(top: Path) -> dict[str, bytes]:
    """Every artifact below a results folder."""
    kinds = (path for kind in ("checkpoints", "logs", "work") for path in (top / kind).rglob("*"))
    return {str(p.relative_to(top)): p.read_bytes() for p in kinds if p.is_file()}


def far(worker: LocalWorker, run: str) -> pull_use.PullReport:
    return pull_use.pull(worker.ctx, pull_use.RunRef(run, "far"), None)


def test_what_a_run_made_comes_and_no_more(shared_worker: LocalWorker) -> None:
    run = done(shared_worker, WRITES)
    report = shared_worker.pull(run)
    assert report.path == shared_worker.project / "results" / run
    assert files(report.path) == {
        "checkpoints/step-1/model.pt": bytes(range(256)) * 100,
        "logs/rank-0.log": b"said\n",
        "work/out/result ü.txt": b"made here",
        "work/tool.sh": b"#!/bin/sh",
        "work/empty": b"",
    }
    assert (report.files, report.unchanged, report.kept, report.pending) == (5, 0, (), ())
    assert (report.path / "work" / "tool.sh").stat().st_mode & 0o777 == 0o755
    assert (report.path / "work" / "empty").stat().st_mode & 0o777 == 0o644
    here = {path.name for path in report.path.iterdir()}
    assert here == {"checkpoints", "logs", "work", "spec.json", "state.json"}
    assert shared_worker.status(run).pulled


def test_second_pull_brings_nothing(shared_worker: LocalWorker) -> None:
    run = done(shared_worker, WRITES)
    shared_worker.pull(run)
    again = shared_worker.pull(run)
    assert (again.files, again.bytes, again.unchanged) == (0, 0, 5)


def test_another_folder_is_a_place_of_its_own(shared_worker: LocalWorker, tmp_path: Path) -> None:
    run = done(shared_worker, WRITES)
    shared_worker.pull(run)
    there = shared_worker.pull(run, tmp_path / "a b" / "c")
    assert there.files == 5
    assert shared_worker.pull(run, tmp_path / "a b" / "c").files == 0
    assert shared_worker.pull(run).files == 0


def test_a_project_that_was_moved_knows_its_files(local_worker: LocalWorker) -> None:
    """Else all of them would be taken for a person's, and no log would ever grow again."""
    run = blank(local_worker)
    log = local_worker.workspace / "logs" / run / "rank-0.log"
    log.write_bytes(b"one\n")
    local_worker.pull(run)
    moved = local_worker.project.with_name("moved")
    local_worker.project.rename(moved)
    log.write_bytes(b"one\ntwo\n")
    ctx = context.open_context(local_worker.report, moved)
    report = pull_use.pull(ctx, local_worker.ref(run))
    assert report.kept == ()
    assert (moved / "results" / run / "logs" / "rank-0.log").read_bytes() == b"one\ntwo\n"
    moved.rename(local_worker.project)


def test_values_of_the_environment_do_not_come(shared_worker: LocalWorker) -> None:
    run = shared_worker.submit("true", words=("env.TOKEN=s3cr3t",))
    shared_worker.wait(run)
    top = shared_worker.pull(run).path
    assert "s3cr3t" not in (top / "spec.json").read_text()
    assert "TOKEN" in (top / "spec.json").read_text()


def test_log_that_grew_is_appended_to(shared_worker: LocalWorker) -> None:
    run = blank(shared_worker)
    log = shared_worker.workspace / "logs" / run / "rank-0.log"
    log.write_bytes(b"one\n")
    here = shared_worker.pull(run).path / "logs" / "rank-0.log"
    inode = here.stat().st_ino
    with here.open("rb") as follower:
        assert follower.read() == b"one\n"
        with log.open("ab") as file:
            file.write(b"two\n")
        report = shared_worker.pull(run)
        assert (report.files, report.bytes) == (1, 4)
        assert follower.read() == b"two\n", "who reads the file here sees it grow"
    assert here.stat().st_ino == inode
    assert here.read_bytes() == b"one\ntwo\n"
    assert not (report.path / ".parts").exists()
    assert shared_worker.status(run).pulled


def test_log_written_anew_and_longer_comes_whole(shared_worker: LocalWorker) -> None:
    run = blank(shared_worker)
    log = shared_worker.workspace / "logs" / run / "progress.jsonl"
    log.write_bytes(b"first\n")
    shared_worker.pull(run)
    log.write_bytes(b"another beginning\n")
    report = shared_worker.pull(run)
    assert (report.path / "logs" / "progress.jsonl").read_bytes() == b"another beginning\n"
    assert report.pending == ()
    assert shared_worker.pull(run).files == 0


def test_append_that_is_cut_leaves_what_was_there_and_goes_on(
    shared_worker: LocalWorker, link: Link
) -> None:
    run = blank(shared_worker)
    log = shared_worker.workspace / "logs" / run / "rank-0.log"
    old, new = b"old\n" * 100_000, random.Random(2).randbytes(4_000_000)
    log.write_bytes(old)
    here = far(shared_worker, run).path / "logs" / "rank-0.log"
    inode = here.stat().st_ino
    with log.open("ab") as file:
        file.write(new)
    link.cut_after(1_500_000)
    with pytest.raises(HostError):
        far(shared_worker, run)
    cut = here.read_bytes()
    assert len(old) < len(cut) < len(old + new)
    assert (old + new).startswith(cut)
    report = far(shared_worker, run)
    assert (here.read_bytes(), here.stat().st_ino) == (old + new, inode)
    assert report.bytes == len(old + new) - len(cut)
    assert report.kept == ()


@pytest.mark.parametrize("how", ["goes on", "was written anew", "was edited here", "both"])
def test_log_after_a_pull_that_was_killed_while_it_appended(
    shared_worker: LocalWorker, how: str
) -> None:
    """As kill -9 leaves it: new bytes here of which the book knows nothing."""
    run = blank(shared_worker)
    log = shared_worker.workspace / "logs" / run / "rank-0.log"
    log.write_bytes(b"one\n")
    top = shared_worker.pull(run).path
    here = top / "logs" / "rank-0.log"
    log.write_bytes(b"one\ntwo\nthree\n")
    with places.Places(top) as there:
        record = parts.open_grows(there, "logs/rank-0.log")
        with here.open("ab") as file:
            file.write(b"two\nth")
        found = here.stat()
        record.add(f"{found.st_size} {found.st_mtime_ns}")
        record.close()
    if how in ("was written anew", "both"):
        log.write_bytes(b"another beginning\n")
    if how in ("was edited here", "both"):
        here.write_bytes(here.read_bytes() + b"my note")
    edited = here.read_bytes()
    report = shared_worker.pull(run)
    if "edited" in how or how == "both":
        assert report.kept == ("logs/rank-0.log",)
        assert here.read_bytes() == edited
        assert shared_worker.pull(run).kept == ("logs/rank-0.log",)
        return
    assert report.kept == ()
    assert here.read_bytes() == log.read_bytes()
    assert not (top / ".parts").exists()


KILLED = """
import os, sys
from pathlib import Path
from runner.app import context, pull
from runner.transfer import %(module)s as module
calls, write = [0], module.%(name)s
def dies(*args):
    calls[0] += 1
    if calls[0] == %(call)d:
        os.kill(os.getpid(), 9)
    return write(*args)
module.%(name)s = dies
class Report:
    def __getattr__(self, name): return lambda *_: None
ctx = context.open_context(Report(), Path(%(project)r))
pull.pull(ctx, pull.RunRef(%(run)r, "local"))
"""


def test_a_pull_killed_anywhere_leaves_old_or_new_and_the_next_one_brings_it_all(
    shared_worker: LocalWorker,
) -> None:
    run = blank(shared_worker)
    rng = random.Random(7)
    point = shared_worker.workspace / "checkpoints" / run / "step-1"
    point.mkdir(parents=True)
    places_there = {
        "checkpoints/step-1/manifest.json": point / "manifest.json",
        "checkpoints/step-1/model.pt": point / "model.pt",
        "logs/rank-0.log": shared_worker.workspace / "logs" / run / "rank-0.log",
    }

    def write_anew(step: int) -> dict[str, bytes]:
        made = [rng.randbytes(1000), rng.randbytes(600_000 + step), b"line\n" * 1000 * step]
        for path, data in zip(places_there.values(), made, strict=True):
            path.write_bytes(data)
        return dict(zip(places_there, made, strict=True))

    old = write_anew(1)
    top = shared_worker.pull(run).path
    spots = [("sinks", "write_all", n) for n in (1, 2, 3, 4)]
    spots += [("parts", name, n) for name in ("add_done", "drop", "end_growth") for n in (1, 2)]
    kills = 0
    for step, (module, name, call) in enumerate(spots, 2):
        new = write_anew(step)
        code = KILLED % {
            "module": module,
            "name": name,
            "call": call,
            "project": str(shared_worker.project),
            "run": run,
        }
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
        assert ended.returncode in (0, -9), ended.stderr.decode()
        kills += ended.returncode == -9
        for path, data in files(top).items():
            is_prefix = path.startswith("logs") and new[path].startswith(data)
            assert data in (old[path], new[path]) or is_prefix, path
        report = shared_worker.pull(run)
        assert files(top) == new
        assert (report.kept, report.pending) == ((), ())
        assert not (top / ".parts").exists()
        old = new
    assert kills >= 7
    assert shared_worker.status(run).pulled


def test_files_edited_or_put_here_are_kept_and_named(shared_worker: LocalWorker) -> None:
    run = done(shared_worker, WRITES)
    top = shared_worker.pull(run).path
    (top / "notes.txt").write_text("mine")
    (top / "work" / "empty").write_text("edited")
    (top / "logs" / "rank-0.log").unlink()
    other = shared_worker.workspace / "code" / run / "new"
    other.write_text("theirs")
    (top / "work" / "new").write_text("mine, before any pull")
    report = shared_worker.pull(run)
    assert report.kept == ("work/empty", "work/new")
    assert (top / "notes.txt").read_text() == "mine"
    assert (top / "work" / "empty").read_text() == "edited"
    assert (top / "work" / "new").read_text() == "mine, before any pull"
    assert (top / "logs" / "rank-0.log").read_bytes() == b"said\n", "deleted here, so it comes"
    assert not shared_worker.status(run).pulled


def test_names_that_look_unfinished_are_files_too(shared_worker: LocalWorker) -> None:
    """A job's own `.model.part` beside `model` must not be mistaken for what gathers here."""
    run = blank(shared_worker)
    code = shared_worker.workspace / "code" / run
    (code / ".model.part").write_bytes(b"half a model")
    (code / "model").write_bytes(b"a whole model")
    top = shared_worker.pull(run).path
    assert (top / "work" / "model").read_bytes() == b"a whole model"
    assert (top / "work" / ".model.part").read_bytes() == b"half a model"
    assert shared_worker.pull(run).files == 0


@pytest.mark.parametrize("kind", ["checkpoints", "logs"])
def test_cut_pull_goes_on_where_it_was(shared_worker: LocalWorker, link: Link, kind: str) -> None:
    run = blank(shared_worker)
    data = random.Random(1).randbytes(6_000_000)
    (shared_worker.workspace / kind / run).mkdir(exist_ok=True)
    (shared_worker.workspace / kind / run / "big").write_bytes(data)
    for _ in range(3):
        link.cut_after(1_500_000)
        with pytest.raises(HostError):
            far(shared_worker, run)
        assert not (shared_worker.project / "results" / run / kind / "big").exists()
    report = far(shared_worker, run)
    assert (report.path / kind / "big").read_bytes() == data
    assert report.bytes < 2_500_000
    assert link.received < 1.2 * len(data)
    assert not (report.path / ".parts").exists()


def test_what_came_before_a_cut_is_kept_also_when_the_cut_is_met_while_asking(
    shared_worker: LocalWorker, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = blank(shared_worker)
    data = random.Random(1).randbytes(6_000_000)
    (shared_worker.workspace / "checkpoints" / run / "big").write_bytes(data)
    ends = Request.end

    def end_late(request: Request) -> None:
        """Nobody is scheduled as one would like."""
        wait_for(lambda: link.received >= 1_500_000, 20, "the cut")
        time.sleep(0.3)
        ends(request)

    link.cut_after(1_500_000)
    with monkeypatch.context() as patch:
        patch.setattr(Request, "end", end_late)
        with pytest.raises(HostError):
            far(shared_worker, run)
    report = far(shared_worker, run)
    assert (report.path / "checkpoints/big").read_bytes() == data
    assert report.bytes < 5_000_000


def test_a_pull_goes_through_cut_links_by_itself(
    shared_worker: LocalWorker, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_use, "RETRY_WAITS_S", (0.1,) * 4)
    run = blank(shared_worker)
    data = random.Random(1).randbytes(6_000_000)
    place = shared_worker.workspace / "checkpoints" / run / "big"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(data)
    link.plan(*[{"down": 1_500_000}] * 3)
    report = far(shared_worker, run)
    assert (report.path / "checkpoints" / "big").read_bytes() == data
    assert link.received < 1.2 * len(data)


def test_checkpoint_written_anew_after_a_cut_comes_whole(
    shared_worker: LocalWorker, link: Link
) -> None:
    run = blank(shared_worker)
    place = shared_worker.workspace / "checkpoints" / run / "best.pt"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"a" * 3_000_000)
    link.cut_after(1_500_000)
    with pytest.raises(HostError):
        far(shared_worker, run)
    place.write_bytes(b"b" * 3_000_000)
    report = far(shared_worker, run)
    assert (report.path / "checkpoints" / "best.pt").read_bytes() == b"b" * 3_000_000
    assert report.pending == ()


def test_old_file_stays_when_the_pull_of_a_new_one_is_cut(
    shared_worker: LocalWorker, link: Link
) -> None:
    run = blank(shared_worker)
    place = shared_worker.workspace / "checkpoints" / run / "best.pt"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"old" * 1_000_000)
    top = far(shared_worker, run).path
    place.write_bytes(b"new" * 1_000_000)
    link.cut_after(1_500_000)
    with pytest.raises(HostError):
        far(shared_worker, run)
    assert (top / "checkpoints" / "best.pt").read_bytes() == b"old" * 1_000_000
    far(shared_worker, run)
    assert (top / "checkpoints" / "best.pt").read_bytes() == b"new" * 1_000_000


REWRITES = """
import hashlib, os, random, time
place = os.environ["RUNNER_CHECKPOINTS"] + "/best.pt"
rng = random.Random(1)
seen = open(os.environ["RUNNER_CHECKPOINTS"] + "/.digests", "a")
print("begun", flush=True)
while True:
    data = rng.randbytes(1) * 4_000_000
    seen.write(hashlib.sha256(data).hexdigest() + "\\n"); seen.flush()
    with open(place + ".tmp", "wb") as file:
        file.write(data)
    os.rename(place + ".tmp", place)
    time.sleep(0.03)
"""


def test_checkpoint_rewritten_while_it_is_pulled_is_one_of_its_versions(
    shared_worker: LocalWorker,
) -> None:
    run = shared_worker.python(REWRITES)
    shared_worker.until_logged(run, "begun")
    versions = shared_worker.workspace / "checkpoints" / run / ".digests"
    brought = 0
    for _ in range(8):
        report = shared_worker.pull(run)
        place = report.path / "checkpoints" / "best.pt"
        assert set(report.pending) <= {"checkpoints/best.pt"}
        if place.exists():
            brought += 1
            assert hashlib.sha256(place.read_bytes()).hexdigest() in versions.read_text().split()
    shared_worker.cancel(run, now=True)
    assert brought
    shared_worker.pull(run)
    assert hashlib.sha256(place.read_bytes()).hexdigest() in versions.read_text().split()


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of 1 MB."""
    folder = tmp_path / "tiny"
    with small_disk(folder, "1m"):
        yield folder


def test_no_room_here_leaves_what_was_there(shared_worker: LocalWorker, tiny_folder: Path) -> None:
    run = blank(shared_worker)
    place = shared_worker.workspace / "checkpoints" / run / "a.pt"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"old")
    shared_worker.pull(run, tiny_folder)
    place.write_bytes(b"new" * 1_000_000)
    with pytest.raises(SpecError) as caught:
        shared_worker.pull(run, tiny_folder)
    assert caught.value.status == 2
    assert str(caught.value).startswith(f"{tiny_folder}: no room for 3 MB; 1")
    assert caught.value.advice == ("nothing was fetched, and what was there before is untouched",)
    assert not (tiny_folder / ".parts").exists()
    assert (tiny_folder / "checkpoints" / "a.pt").read_bytes() == b"old"
    place.write_bytes(b"small")
    shared_worker.pull(run, tiny_folder)
    assert (tiny_folder / "checkpoints" / "a.pt").read_bytes() == b"small"


def test_room_that_ends_while_files_come(
    shared_worker: LocalWorker, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = blank(shared_worker)
    place = shared_worker.workspace / "checkpoints" / run / "a.pt"
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"old")
    shared_worker.pull(run, tiny_folder)
    data = random.Random(1).randbytes(2_000_000)
    place.write_bytes(data)
    monkeypatch.setattr(places.Places, "room", 1 << 40)  # as if somebody else took it meanwhile
    with pytest.raises(SpecError) as caught:
        shared_worker.pull(run, tiny_folder)
    assert str(caught.value) == (
        f"{tiny_folder}: No space left on device; what was there before is untouched"
    )
    assert re.fullmatch(
        r"what came, .*B, is kept in \.parts for the next pull", caught.value.advice[0]
    )
    assert (tiny_folder / "checkpoints" / "a.pt").read_bytes() == b"old"
    place.unlink()
    shared_worker.pull(run, tiny_folder)
    assert not (tiny_folder / ".parts").exists(), "it makes room when nobody can go on from it"


def test_no_room_for_the_records_here(shared_worker: LocalWorker, tiny_folder: Path) -> None:
    run = blank(shared_worker)
    (tiny_folder / "full").write_bytes(bytes(1 << 20))
    with pytest.raises(SpecError, match="No space left on device"):
        shared_worker.pull(run, tiny_folder)


def test_folder_that_is_a_link_is_not_followed(shared_worker: LocalWorker, tmp_path: Path) -> None:
    run = done(shared_worker, WRITES)
    top, elsewhere = tmp_path / "to", tmp_path / "elsewhere"
    top.mkdir()
    elsewhere.mkdir()
    (top / "work").symlink_to(elsewhere)
    with pytest.raises(SpecError, match="work is not a folder; move it away"):
        shared_worker.pull(run, top)
    assert list(elsewhere.iterdir()) == []


def test_place_that_cannot_be_a_folder(shared_worker: LocalWorker, tmp_path: Path) -> None:
    run = blank(shared_worker)
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be made"):
        shared_worker.pull(run, tmp_path / "file" / "x")


@pytest.mark.parametrize("how", ["failed", "cancelled", "running"])
def test_any_run_can_be_pulled(shared_worker: LocalWorker, how: str) -> None:
    after = "raise SystemExit(1)" if how == "failed" else "import time; time.sleep(600)"
    run = shared_worker.python(f"print('x', flush=True); {after}")
    shared_worker.until_logged(run, "x")
    if how == "cancelled":
        shared_worker.cancel(run, now=True)
    elif how == "failed":
        shared_worker.wait(run)
    top = shared_worker.pull(run).path
    assert (top / "logs" / "rank-0.log").read_bytes().startswith(b"x\n")
    assert shared_worker.status(run).pulled == (how != "running")
    shared_worker.cancel(run, now=True)


def test_run_that_is_not_there(shared_worker: LocalWorker) -> None:
    blank(shared_worker)
    with pytest.raises(NotFound, match="no run nope here"):
        shared_worker.pull("nope")


def test_links_are_left_out_and_named(shared_worker: LocalWorker) -> None:
    run = done(
        shared_worker, "import os; os.symlink('/etc', os.environ['RUNNER_CHECKPOINTS'] + '/step-9')"
    )
    assert shared_worker.pull(run).left_out == ("checkpoints/step-9",)


@pytest.mark.parametrize("places", [7, {"TOP": 7}, {"TOP": {"logs/rank-0.log": 7}}])
def test_damaged_book_of_pulls_is_no_book(shared_worker: LocalWorker, places: object) -> None:
    run = done(shared_worker, "print('said')")
    text = json.dumps({"places": places}).replace("TOP", f"results/{run}")
    book = shared_worker.project / ".runner" / "pulls" / f"{run}.json"
    book.parent.mkdir(exist_ok=True)
    book.write_text(text)
    assert shared_worker.pull(run).files == 1


def test_what_is_a_hole_there_is_a_hole_here(shared_worker: LocalWorker) -> None:
    run = blank(shared_worker)
    log = shared_worker.workspace / "logs" / run / "rank-0.log"
    size = 40 << 20
    with log.open("r+b") as file:
        file.write(b"first error\n" * 1000)
        file.seek(size - 5000)
        file.write(b"last\n" * 1000)
    report = shared_worker.pull(run)
    here = report.path / "logs" / "rank-0.log"
    assert here.stat().st_size == size
    assert here.stat().st_blocks * 512 < 100_000
    assert same(here, log)
    # what is appended to a copy keeps its holes, and one at the end is one
    with log.open("ab") as file:
        file.write(b"more\n")
        file.truncate(size + 5 + (1 << 20))
    assert shared_worker.pull(run).bytes <= 4096
    assert here.stat().st_blocks * 512 < 100_000
    assert same(here, log)
    with log.open("ab") as file:
        file.write(b"end\n")
    assert shared_worker.pull(run).bytes == 4
    assert same(here, log)


def same(one: Path, other: Path) -> bool:
    return hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest()


def test_a_terabyte_of_nothing_is_here_at_once(shared_worker: LocalWorker) -> None:
    """Neither side reads, sends or sums up what is a hole; sums are compared all the same."""
    run = blank(shared_worker)
    log = shared_worker.workspace / "logs" / run / "huge.log"
    log.write_bytes(b"head")
    os.truncate(log, 1 << 40)
    if log.stat().st_blocks * 512 > 1 << 20:
        pytest.skip("left out: holes: this file system knows none")
    with open(log, "ab") as file:
        file.write(b"end")
    top = shared_worker.pull(run).path
    here = top / "logs" / "huge.log"
    os.truncate(log, 2 << 40)
    with open(log, "ab") as file:
        file.write(b"end")
    assert shared_worker.pull(run).files == 1
    assert here.stat().st_size == (2 << 40) + 3
    assert here.stat().st_blocks * 512 < 1 << 20
    with open(here, "rb") as file:
        assert file.read(5) == b"head\0"
        for at in (1 << 40, 2 << 40):
            file.seek(at)
            assert file.read(4) == (b"end\0" if at == 1 << 40 else b"end")
    log.unlink()
    here.unlink()


def test_holes_do_not_travel(shared_worker: LocalWorker, link: Link) -> None:
    run = blank(shared_worker)
    log = shared_worker.workspace / "logs" / run / "rank-0.log"
    with log.open("wb") as file:
        file.write(b"first error\n")
        file.seek(64 << 20)
        file.write(b"last\n")
    link.forget()
    report = far(shared_worker, run)
    here = report.path / "logs" / "rank-0.log"
    assert same(here, log)
    assert here.stat().st_blocks * 512 < 100_000
    assert link.received < 100_000


def make_point(worker: LocalWorker, run: str, step: int, size: int = 100, **metrics: float) -> Path:
    """A checkpoint with its manifest, as an agent leaves it."""
    folder = worker.workspace / "checkpoints" / run / f"step-{step}"
    folder.mkdir(parents=True)
    data = random.Random(step).randbytes(size)
    (folder / "model.pt").write_bytes(data)
    entry = {"bytes": size, "sha256": hashlib.sha256(data).hexdigest()}
    body = {"step": step, "metrics": metrics, "files": {"model.pt": entry}}
    (folder / "manifest.json").write_text(json.dumps(body))
    return folder


def pull_what(worker: LocalWorker, run: str, what: str, **wish: bool) -> pull_use.PullReport:
    wanted = pull_use.Wish(manifest.parse_what(what) if what else (), **wish)
    return pull_use.pull(worker.ctx, worker.ref(run), None, wanted)


def test_parts_of_a_run_and_what_they_count_for(shared_worker: LocalWorker) -> None:
    run = blank(shared_worker)
    for step, reward in ((1, 7.0), (2, 9.0), (10, 3.0)):
        make_point(shared_worker, run, step, reward=reward)
    events = shared_worker.workspace / "logs" / run / "events.out.tfevents.1.h.1.0"
    events.write_bytes(b"e" * 10)
    points = {"model.pt", "manifest.json"}

    def brought(what: str) -> set[str]:
        top = pull_what(shared_worker, run, what).path
        found = set(files(top))
        shutil.rmtree(top)
        return found

    assert brought("best") == {f"checkpoints/step-2/{name}" for name in points}
    assert brought("last") == {f"checkpoints/step-10/{name}" for name in points}
    assert brought("events") == {f"logs/{events.name}"}
    assert brought("logs,best") == brought("logs") | brought("best")
    assert not shared_worker.status(run).pulled
    assert shared_worker.pull(run).files == 8
    assert shared_worker.status(run).pulled
    assert pull_what(shared_worker, run, "best").files == 0
    assert shared_worker.status(run).pulled, "a part that is asked for later takes nothing away"


def test_ended_run_without_what_is_asked_for(shared_worker: LocalWorker) -> None:
    run = blank(shared_worker)
    with pytest.raises(NotFound, match=f"{run} ended without best") as caught:
        pull_what(shared_worker, run, "best")
    assert "names no metric" in caught.value.advice[0]
    with pytest.raises(NotFound, match=f"{run} ended without checkpoints") as caught:
        pull_what(shared_worker, run, "checkpoints")
    assert len(caught.value.advice) == 1


def test_checkpoints_that_keep_rules_removed_go_here_only_when_asked(
    shared_worker: LocalWorker,
) -> None:
    run = blank(shared_worker)
    spec = shared_worker.run_folder(run) / "spec.json"
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "keep": 2}))
    old = [make_point(shared_worker, run, step) for step in (1, 2, 3)]
    top = shared_worker.pull(run).path
    (top / "checkpoints" / "step-2" / "notes.txt").write_text("mine")
    for folder in old[:2]:
        shutil.rmtree(folder)
    make_point(shared_worker, run, 4)
    report = shared_worker.pull(run)
    assert (report.files, report.mirrored) == (2, 0)
    assert (top / "checkpoints" / "step-1").exists()
    report = pull_what(shared_worker, run, "", mirror=True)
    assert report.mirrored == 4
    assert {path.name for path in (top / "checkpoints").iterdir()} == {"step-2", "step-3", "step-4"}
    assert {path.name for path in (top / "checkpoints" / "step-2").iterdir()} == {"notes.txt"}
    assert shared_worker.status(run).pulled


def test_without_keep_rules_nothing_is_mirrored(shared_worker: LocalWorker) -> None:
    run = blank(shared_worker)
    first = make_point(shared_worker, run, 1)
    make_point(shared_worker, run, 2)
    top = shared_worker.pull(run).path
    shutil.rmtree(first)
    assert pull_what(shared_worker, run, "", mirror=True).mirrored == 0
    assert (top / "checkpoints" / "step-1").exists()


def test_nothing_yet_is_said(shared_worker: LocalWorker) -> None:
    first = shared_worker.python("import time; time.sleep(600)")
    second = shared_worker.submit("true", words=(f"after={first}",))
    report = shared_worker.pull(second)
    assert (report.nothing_yet, report.files) == ("queued", 0)
    shared_worker.cancel(second, first, now=True)


def test_edits_of_the_code_are_written_beside_the_records(shared_worker: LocalWorker) -> None:
    run = blank(shared_worker)
    top = shared_worker.project / "results" / run
    reply = {"spec": "{}", "state": "{}", "diff": base64.b64encode(b"--- a\n+++ b\n").decode()}
    with (
        places.Places(make(top)) as there,
        shared_worker.ctx.connect(shared_worker.ctx.host("local")) as worker,
    ):
        one = pull_use._Pull(
            shared_worker.ctx, worker, shared_worker.ref(run), pull_use.Wish(), there
        )
        one._listing = reply
        one._write_records()
    assert (top / "code.diff").read_bytes() == b"--- a\n+++ b\n"


def make(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_large_files_come_in_pieces_over_several_connections(
    shared_worker: LocalWorker, link: Link, tmp_path: Path
) -> None:
    run = blank(shared_worker)
    folder = shared_worker.workspace / "checkpoints" / run / "step-1"
    folder.mkdir(parents=True)
    data = {"a": 50_000_000, "b": 1000, "c": 20_000_000, "d": 0}
    wanted = []
    for name, size in data.items():
        path = folder / name
        path.write_bytes(random.Random(name).randbytes(size))
        file = RemoteFile("checkpoints", f"step-1/{name}", size, path.stat().st_mtime_ns)
        wanted.append(Fetch(file))
    host = shared_worker.ctx.hosts["local"]
    top = make(tmp_path / "top")
    lanes: list[int] = []
    connected = threading.Event()

    def connect(lane: int) -> Worker:
        lanes.append(lane)
        if lane == 1:
            raise Unreachable("there is no more")
        if lane == 3:
            return Worker(host)
        link.cut_after(3_000_000)  # less than one piece
        worker = Worker(shared_worker.ctx.hosts["far"])
        assert worker.hello
        connected.set()
        return worker

    def on_bytes(_: Fetch, count: int) -> None:
        assert connected.wait(20), "there is something left for the one that breaks"

    with Worker(host) as worker, places.Places(top) as there:
        found = fetch.fetch(worker, run, wanted, there, lanes=4, connect=connect, on_bytes=on_bytes)
    assert sorted(lanes) == [1, 2, 3]
    assert (len(found.done), found.changed, found.gone) == (4, [], [])
    for name in data:
        here = top / "checkpoints" / "step-1" / name
        assert same(here, folder / name), name
    assert link.received >= 3_000_000


def test_pieces_of_a_cut_pull_are_gone_on_from(shared_worker: LocalWorker, tmp_path: Path) -> None:
    run = blank(shared_worker)
    path = shared_worker.workspace / "checkpoints" / run / "model.pt"
    path.parent.mkdir(exist_ok=True)
    size = 60_000_000
    path.write_bytes(random.Random(5).randbytes(size))
    file = RemoteFile("checkpoints", "model.pt", size, path.stat().st_mtime_ns)
    host = shared_worker.ctx.hosts["local"]
    came = [0]

    def stop(_: Fetch, count: int) -> None:
        came[0] += count
        if came[0] > size // 3:
            raise KeyboardInterrupt

    with Worker(host) as worker, places.Places(tmp_path) as there:
        with pytest.raises(KeyboardInterrupt):
            fetch.fetch(
                worker,
                run,
                [Fetch(file)],
                there,
                lanes=3,
                connect=lambda lane: Worker(host),
                on_bytes=stop,
            )
        ranges = parts.read_gathered(there, [file])["checkpoints/model.pt"].ranges
        rest = Fetch(file, ranges)
        assert 0 < rest.missing < size
    with Worker(host) as worker, places.Places(tmp_path) as there:
        found = fetch.fetch(worker, run, [rest], there)
    assert found.bytes == rest.missing <= size - came[0] + 4 * (256 << 10)
    assert same(tmp_path / "checkpoints" / "model.pt", path)


def test_memory_does_not_grow_with_what_is_pulled(shared_worker: LocalWorker) -> None:
    run = blank(shared_worker)
    path = shared_worker.workspace / "checkpoints" / run / "model.pt"
    path.parent.mkdir(exist_ok=True)
    block = random.Random(5).randbytes(4 << 20)
    with path.open("wb") as file:
        for _ in range(50):
            file.write(block)
    code = PEAK % {"project": str(shared_worker.project), "run": run}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert ended.returncode == 0, ended.stderr.decode()
    client, worker = map(int, ended.stdout.split())
    assert client < 100 << 10
    assert worker < 60 << 10


PEAK = """
import resource
from pathlib import Path
from runner.app import context, pull
class Report:
    def __getattr__(self, name): return lambda *_: None
ctx = context.open_context(Report(), Path(%(project)r))
pull.pull(ctx, pull.RunRef(%(run)r, "local"))
# what this process was as it began is not counted: VmHWM, not ru_maxrss
words = Path("/proc/self/status").read_text().split()
print(words[words.index("VmHWM:") + 1], resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_two_runs_do_not_go_into_one_folder(shared_worker: LocalWorker, tmp_path: Path) -> None:
    first, second = blank(shared_worker), blank(shared_worker)
    top = tmp_path / "here"
    shared_worker.pull(first, top)
    before = files(top)
    with pytest.raises(SpecError, match=f"holds what was pulled of {first}"):
        shared_worker.pull(second, top)
    assert files(top) == before
    assert shared_worker.pull(first, top).files == 0


def test_two_pulls_at_once(shared_worker: LocalWorker, tmp_path: Path) -> None:
    run = done(shared_worker, WRITES)
    big = random.Random(3).randbytes(30_000_000)
    (shared_worker.workspace / "checkpoints" / run / "big").write_bytes(big)
    with ThreadPoolExecutor(6) as pool:
        places = [None, None, None, tmp_path / "a", tmp_path / "a", tmp_path / "b"]
        reports = list(pool.map(lambda to: shared_worker.pull(run, to), places))
    assert sorted(report.files for report in reports) == [0, 0, 0, 6, 6, 6]
    for report in reports:
        assert report.kept == report.pending == ()
        assert (report.path / "checkpoints" / "big").read_bytes() == big
        assert shared_worker.pull(run, report.path).files == 0
