"""Pulling from a real worker: files whole and verified, nothing lost, cuts gone on from."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.app import pull as pull_use
from runner.errors import HostError, NotFound, SpecError
from runner.transfer import fetch
from tests.helpers.link import Link, make_link
from tests.helpers.local_worker import LocalWorker
from tests.helpers.small_disk import small_disk

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
    """The worker once more as host `far`, behind a link."""
    shared_worker.file("hosts/far.toml", LINKED)
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
    assert shared_worker.pull(run).bytes == 4
    with log.open("ab") as file:
        file.write(b"two\n")
    report = shared_worker.pull(run)
    assert (report.files, report.bytes) == (1, 4)
    assert (report.path / "logs" / "rank-0.log").read_bytes() == b"one\ntwo\n"


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


def test_append_cut_before_its_first_part_was_copied(shared_worker: LocalWorker) -> None:
    run = blank(shared_worker)
    log = shared_worker.workspace / "logs" / run / "rank-0.log"
    log.write_bytes(b"one\n")
    top = shared_worker.pull(run).path
    with log.open("ab") as file:
        file.write(b"two\n")
    part = fetch.part_path(top, "logs/rank-0.log")
    part.parent.mkdir()
    part.write_bytes(b"o")
    assert shared_worker.pull(run).bytes == 4
    assert (top / "logs" / "rank-0.log").read_bytes() == b"one\ntwo\n"


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
    assert str(caught.value) == (
        f"{tiny_folder}: No space left on device; what was there before is untouched"
    )
    assert (tiny_folder / "checkpoints" / "a.pt").read_bytes() == b"old"
    place.write_bytes(b"small")
    shared_worker.pull(run, tiny_folder)
    assert (tiny_folder / "checkpoints" / "a.pt").read_bytes() == b"small"


def test_no_room_for_the_records_here(shared_worker: LocalWorker, tiny_folder: Path) -> None:
    run = blank(shared_worker)
    (tiny_folder / "full").write_bytes(bytes(1 << 20))
    with pytest.raises(SpecError, match=r"spec\.json cannot be written: No space left"):
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
    top = shared_worker.project / "results" / run
    text = json.dumps({"places": places}).replace("TOP", str(top))
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
    assert shared_worker.pull(run).bytes == 5 + (1 << 20)
    assert here.stat().st_blocks * 512 < 100_000
    assert same(here, log)
    with log.open("ab") as file:
        file.write(b"end\n")
    assert shared_worker.pull(run).bytes == 4
    assert same(here, log)


def same(one: Path, other: Path) -> bool:
    return hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest()


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
