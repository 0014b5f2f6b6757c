"""Room on hosts: what takes it, what is deleted and, above all, what never is."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from paths import Workspace
from verbs import remove as remove_verb

from runner import wire
from runner.app import space
from runner.app.reports import Garbage
from runner.cli import main
from runner.endpoint import Worker
from runner.errors import Conflict, WrongState
from tests.helpers.local_worker import LocalWorker

Capture = pytest.CaptureFixture[str]
OLD_S = 10 * 24 * 3600.0
JOB = """
import os, pathlib
top = pathlib.Path(os.environ["RUNNER_CHECKPOINTS"])
(top / ".x").mkdir(); (top / ".x/model.pt").write_bytes(os.urandom(300_000))
(top / ".x").rename(top / "step-1")
(top / ".y").mkdir(); os.link(top / "step-1/model.pt", top / ".y/model.pt")
(top / ".y").rename(top / "step-2")
pathlib.Path("made.txt").write_text("by the job")
print("hello")
"""


@pytest.fixture(autouse=True)
def in_project(local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(local_worker.project)


def finished(worker: LocalWorker, code: str = JOB, *words: str) -> str:
    run = worker.python(code, words=words)
    assert worker.wait(run).status.outcome == "done"
    return run


def parts(worker: LocalWorker, run: str) -> set[str]:
    """The kinds of folder that the run has in the workspace."""
    kinds = ("code", "checkpoints", "logs", "runs")
    return {kind for kind in kinds if (worker.workspace / kind / run).exists()}


def everything(worker: LocalWorker) -> dict[str, str]:
    """Every file of the workspace's runs, with its digest."""
    found = {}
    for kind in ("code", "checkpoints", "logs"):
        for path in (worker.workspace / kind).rglob("*"):
            if path.is_file():
                name = str(path.relative_to(worker.workspace))
                found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def age(*paths: Path) -> None:
    """Make files look as if they were written long ago."""
    for path in paths:
        at = path.stat().st_mtime - OLD_S
        os.utime(path, (at, at))


def contents(worker: LocalWorker) -> list[Path]:
    """Blobs and lists of snapshots."""
    state = worker.workspace / ".runner"
    return [*state.glob("blobs/*/*"), *state.glob("trees/*")]


def dead_pid() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def collect(worker: LocalWorker, dry: bool = False) -> Garbage:
    """The collection; what it would remove is what it removes."""
    expected = space.collect(worker.ctx, "local", dry=True)
    if dry:
        return expected
    done = space.collect(worker.ctx, "local")
    assert done.items == expected.items
    assert done.bytes == expected.bytes
    return done


# -- du


def test_du_counts_each_file_once_and_says_what_was_pulled(
    local_worker: LocalWorker, capsys: Capture
) -> None:
    local_worker.file("data.bin", "x" * 200_000)
    run, other = finished(local_worker), finished(local_worker)
    local_worker.pull(run)
    assert main(["du", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["format"] == 1
    rows = {row["id"]: row for row in body["runs"]}
    assert rows.keys() == {run, other}
    assert (rows[run]["pulled"], rows[other]["pulled"]) == (True, False)
    # the second checkpoint is the first one's file once more
    assert 300_000 <= rows[run]["checkpoints_bytes"] < 400_000
    assert 200_000 <= rows[run]["code_bytes"] < 300_000
    sizes = [rows[run][f"{kind}_bytes"] for kind in ("code", "checkpoints", "logs", "records")]
    assert rows[run]["total_bytes"] == sum(sizes)
    (host,) = body["hosts"]
    assert 200_000 <= host["shared"]["contents_bytes"] < 300_000
    assert host["shared"]["bundles_bytes"] > 10_000
    assert 0 < host["disk"]["free_bytes"] < host["disk"]["total_bytes"]
    assert main(["du", "host=local"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["RUN", "HOST", "CODE", "CHECKPOINTS", "LOGS", "TOTAL", "NOTE"]
    assert any(line.startswith(run) and line.endswith("  pulled") for line in table)
    assert any(line.startswith(other) and line.endswith("not pulled") for line in table)


def test_du_sums_other_projects_and_lists_them_with_all(
    local_worker: LocalWorker, capsys: Capture
) -> None:
    theirs = finished(local_worker)
    local_worker.file("runner.toml", 'name = "q"\nid = "q-1"\n')
    mine = finished(local_worker, "print()")
    assert main(["du", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in body["runs"]] == [mine]
    others = body["hosts"][0]["others"]
    assert others["runs"] == 1 and others["bytes"] > 300_000
    assert main(["du", "--all", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert {row["id"] for row in body["runs"]} == {mine, theirs}
    assert body["hosts"][0]["others"] == {"runs": 0, "bytes": 0}


def test_du_names_a_silent_host_and_ends_with_3(local_worker: LocalWorker, capsys: Capture) -> None:
    run = finished(local_worker)
    local_worker.file("hosts/gone.toml", 'ssh = "runner-no-such-host.invalid"\n')
    assert main(["du"]) == 3
    shown = capsys.readouterr()
    assert run in shown.out
    assert shown.err.startswith("gone: ")


# -- rm


def test_rm_deletes_a_pulled_run_here_and_there_and_leaves_results(
    local_worker: LocalWorker, capsys: Capture
) -> None:
    run, other = finished(local_worker), finished(local_worker)
    local_worker.pull(run)
    before = everything(local_worker)
    record = local_worker.project / f".runner/runs/{run}.json"
    assert record.exists()
    assert main(["rm", run, "--dry-run", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    assert everything(local_worker) == before and record.exists()
    assert told["bytes"] > 300_000
    assert main(["rm", run]) == 0
    assert capsys.readouterr().out.startswith(f"{run}  local  ")
    assert parts(local_worker, run) == set()
    assert parts(local_worker, other) == {"code", "checkpoints", "logs", "runs"}
    assert not list(local_worker.workspace.glob("*/.del-*"))
    assert not record.exists()
    assert (local_worker.project / f"results/{run}/work/made.txt").exists()
    # typed again, or where its record is all that is left, there is nothing to do
    assert main(["rm", run]) == 6
    finished(local_worker, "print()")  # the dispatcher is as well as before


def test_rm_of_a_run_that_is_gone_there_forgets_it_here(
    local_worker: LocalWorker, capsys: Capture
) -> None:
    run = finished(local_worker)
    record = local_worker.project / f".runner/runs/{run}.json"
    kept = record.read_bytes()
    assert main(["rm", run, "--unpulled"]) == 0
    record.write_bytes(kept)
    assert main(["rm", run]) == 0
    assert "was gone already" in capsys.readouterr().out
    assert not record.exists()


def test_rm_refuses_what_was_not_fully_pulled_and_names_its_bytes(
    local_worker: LocalWorker, capsys: Capture
) -> None:
    run, pulled = finished(local_worker), finished(local_worker)
    local_worker.pull(pulled)
    before = everything(local_worker)
    assert main(["rm", run, pulled]) == 7
    said = capsys.readouterr().err
    assert said.startswith(f"{run} is not fully pulled; nothing was deleted")
    assert f"  {run}  3" in said and "kB on local" in said
    assert f"runner rm {run} {pulled} --unpulled" in said
    assert everything(local_worker) == before
    assert main(["rm", run, pulled, "--unpulled"]) == 0
    assert parts(local_worker, run) == parts(local_worker, pulled) == set()


def test_rm_asks_whoever_is_there(local_worker: LocalWorker) -> None:
    run = finished(local_worker)
    asked: list[str] = []

    def answer(text: str) -> space.Ask:
        def ask(question: str) -> str:
            asked.append(question)
            return text

        return ask

    refs = [local_worker.ref(run)]
    with pytest.raises(Conflict):
        space.remove(local_worker.ctx, refs, ask=answer("y"))
    assert parts(local_worker, run) == {"code", "checkpoints", "logs", "runs"}
    (report,) = space.remove(local_worker.ctx, refs, ask=answer("Yes"))
    assert report.bytes > 300_000
    assert parts(local_worker, run) == set()
    assert "not fully pulled" in asked[0]


def test_rm_refuses_live_and_queued_runs_and_what_another_waits_for(
    local_worker: LocalWorker, capsys: Capture
) -> None:
    local_worker.host(slots=1)
    first = finished(local_worker)
    live = local_worker.python("import time; time.sleep(600)")
    local_worker.until(live, "running")
    queued = local_worker.python("print()")
    assert main(["rm", live, first, "--unpulled"]) == 7
    said = capsys.readouterr().err
    assert said == (
        f"local: {live} is running\n  cancel first, or let it end:\n    runner cancel {live}\n"
    )
    assert main(["rm", queued, "--unpulled", "--dry-run"]) == 7
    for run in (first, live, queued):
        assert "runs" in parts(local_worker, run)
    # a run that waits for one that is gone would be skipped
    waiting = local_worker.run_folder(queued) / "spec.json"
    body = json.loads(waiting.read_bytes())
    waiting.write_text(json.dumps({**body, "after": [first]}))
    with pytest.raises(WrongState, match=f"{queued} waits for the end of {first}"):
        space.remove(local_worker.ctx, [local_worker.ref(first)], unpulled=True)
    local_worker.cancel(live, queued, now=True)


def test_a_run_that_went_on_after_its_pull_is_not_taken_for_pulled(
    local_worker: LocalWorker,
) -> None:
    run = finished(local_worker)
    local_worker.pull(run)
    assert local_worker.status(run).pulled
    # what another attempt would write there
    path = local_worker.run_folder(run) / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "attempt": 2}))
    assert not local_worker.status(run).pulled
    with pytest.raises(Conflict):
        space.remove(local_worker.ctx, [local_worker.ref(run)])
    collect(local_worker)
    assert (local_worker.workspace / "code" / run / "made.txt").exists()
    local_worker.pull(run)
    assert local_worker.status(run).pulled


@pytest.mark.parametrize("far", range(3))
def test_a_removal_that_was_cut_is_ended_by_gc(local_worker: LocalWorker, far: int) -> None:
    run, other = finished(local_worker), finished(local_worker)
    workspace = Workspace(str(local_worker.workspace))
    paths = workspace.run(run)
    aside = Path(remove_verb.set_aside(workspace, paths))
    left = aside.with_name(f".del-{run}-{dead_pid()}")
    aside.rename(left)
    for folder in remove_verb.folders(paths)[: far + 1]:
        if os.path.exists(folder):
            subprocess.run(["rm", "-rf", folder], check=True)
    assert {row.status.id for row in _listed(local_worker)} == {other}
    collect(local_worker)
    assert parts(local_worker, run) == set()
    assert not left.exists()
    assert "checkpoints" in parts(local_worker, other)


@pytest.mark.parametrize("far", range(3))
def test_a_removal_that_was_cut_is_ended_by_the_next(
    local_worker: LocalWorker, far: int, capsys: Capture
) -> None:
    run, other = finished(local_worker), finished(local_worker)
    paths = Workspace(str(local_worker.workspace)).run(run)
    aside = Path(remove_verb.set_aside(Workspace(str(local_worker.workspace)), paths))
    left = aside.with_name(f".del-{run}-{dead_pid()}")
    aside.rename(left)
    for folder in remove_verb.folders(paths)[: far + 1]:
        subprocess.run(["rm", "-rf", folder], check=True)
    assert main(["rm", run]) == 0
    assert "deleted" in capsys.readouterr().out
    assert parts(local_worker, run) == set()
    assert not left.exists()
    assert "checkpoints" in parts(local_worker, other)


def _listed(worker: LocalWorker) -> Any:
    from runner.app import runs

    return runs.list_runs(worker.ctx).runs


def test_nobody_resumes_a_run_while_it_is_deleted(local_worker: LocalWorker) -> None:
    run = finished(local_worker)
    paths = Workspace(str(local_worker.workspace)).run(run)
    with remove_verb.claimed(paths) as problem:
        assert problem is None
        for name in ("lock", "resume.lock", "again.lock"):
            asked = subprocess.run(["flock", "-n", local_worker.run_folder(run) / name, "true"])
            assert asked.returncode == 1
    with open(local_worker.run_folder(run) / "resume.lock") as file:
        subprocess.run(["flock", str(file.fileno())], pass_fds=[file.fileno()], check=True)
        with pytest.raises(WrongState, match="in use just now"):
            space.remove(local_worker.ctx, [local_worker.ref(run)], unpulled=True)
    assert parts(local_worker, run) == {"code", "checkpoints", "logs", "runs"}


# -- gc


def test_gc_frees_code_but_nothing_unpulled_and_runs_go_on_from_it(
    local_worker: LocalWorker,
) -> None:
    local_worker.file("lib/big.bin", "x" * 400_000)
    local_worker.file("lib/touched.py", "a = 1\n")
    code = JOB + 'os.chmod("lib/touched.py", 0o644); open("lib/touched.py", "a").write("b = 2")'
    run, pulled = finished(local_worker, code), finished(local_worker, code)
    local_worker.pull(pulled)
    before = everything(local_worker)
    done = collect(local_worker)
    assert {what for what, _, _ in done.items} == {f"code/{run}", f"code/{pulled}"}
    assert all(count >= 400_000 for _, count, _ in done.items)
    after = everything(local_worker)
    assert {name for name in after if name.startswith("code/")} == {
        f"code/{run}/made.txt",
        f"code/{run}/lib/touched.py",
    }
    assert {n: d for n, d in before.items() if not n.startswith("code/")} == {
        n: d for n, d in after.items() if not n.startswith("code/")
    }
    assert all(before[name] == digest for name, digest in after.items())
    # what was not pulled can be pulled still
    local_worker.pull(run)
    assert (local_worker.project / f"results/{run}/work/made.txt").read_text() == "by the job"
    assert collect(local_worker).items != ()
    assert collect(local_worker).items == ()
    # the contents are there: the same snapshot is laid out again
    again = local_worker.python("print(open('lib/touched.py').read())")
    assert local_worker.wait(again).status.outcome == "done"
    assert b"a = 1" in local_worker.log(again)


def test_a_run_resumed_after_gc_has_its_code_again(local_worker: LocalWorker) -> None:
    local_worker.file("main.py", "import sys; sys.exit(0 if open('lib.txt').read() else 1)")
    local_worker.file("lib.txt", "code")
    run = local_worker.submit("python", "main.py", words=("grace=1s",))
    local_worker.wait(run)
    local_worker.pull(run)
    collect(local_worker)
    folder = local_worker.workspace / "code" / run
    assert list(folder.iterdir()) == []
    import snapshot

    workspace = Workspace(str(local_worker.workspace))
    spec = json.loads((local_worker.run_folder(run) / "spec.json").read_bytes())
    rows = snapshot.read_tree(workspace, spec["snapshot"])
    assert rows is not None
    snapshot.restore(workspace, rows, str(folder))  # as the launcher does
    assert (folder / "lib.txt").read_text() == "code"


def test_gc_leaves_the_code_of_runs_that_live(local_worker: LocalWorker) -> None:
    local_worker.file("lib.txt", "code")
    run = local_worker.python("import time; time.sleep(600)")
    local_worker.until(run, "running")
    before = everything(local_worker)
    assert collect(local_worker).items == ()
    assert everything(local_worker) == before
    local_worker.cancel(run, now=True)


def test_gc_removes_old_contents_that_no_run_names(local_worker: LocalWorker) -> None:
    local_worker.file("a.txt", "only in the first")
    first = finished(local_worker)
    local_worker.file("a.txt", "only in the second")
    second = finished(local_worker)
    space.remove(local_worker.ctx, [local_worker.ref(first)], unpulled=True)
    known = set(contents(local_worker))
    assert not [what for what, _, _ in collect(local_worker).items if "content" in what]
    assert set(contents(local_worker)) == known  # all of it is young
    age(*known)
    done = collect(local_worker)
    whats = [what for what, _, _ in done.items]
    assert "1 list of a snapshot" in whats and "1 content" in whats
    assert len(known - set(contents(local_worker))) == 2
    again = local_worker.python("print(open('a.txt').read())")
    assert local_worker.wait(again).status.outcome == "done"
    assert parts(local_worker, second) == {"code", "checkpoints", "logs", "runs"}


def test_gc_touches_no_contents_where_a_spec_cannot_be_read(local_worker: LocalWorker) -> None:
    run = finished(local_worker)
    (local_worker.run_folder(run) / "spec.json").write_text("{torn")
    age(*contents(local_worker))
    known = set(contents(local_worker))
    done = collect(local_worker)
    assert set(contents(local_worker)) == known
    assert any("cannot be read" in text for text in done.kept)


def row_of(path: str, text: bytes) -> list[Any]:
    return [path, "f", 0o644, len(text), hashlib.sha256(text).hexdigest()]


@pytest.mark.parametrize("listed", [True, False])
def test_a_submit_under_way_never_loses_a_content(local_worker: LocalWorker, listed: bool) -> None:
    """Its contents are old and no run names them: only the submit itself needs them."""
    old, new = b"print('old')\n", b"print('new')\n"
    rows = [row_of("main.py", old)] + ([row_of("new.py", new)] if listed else [])
    first = {"id": "first", "argv": ["python", "main.py"], "project": {"id": "p-1"}}
    first["snapshot"] = wire.tree_digest(rows[:1])
    with Worker(local_worker.ctx.hosts["local"]) as link:
        request = link.open("submit", spec=first, list="whole", ends=False)
        request.send_rows(rows[:1])
        _answer(request, old)
    local_worker.wait("first")
    space.remove(local_worker.ctx, [local_worker.ref("first")], unpulled=True)
    age(*contents(local_worker))
    known = set(contents(local_worker))
    second = {**first, "id": "second", "snapshot": wire.tree_digest(rows)}
    with Worker(local_worker.ctx.hosts["local"]) as link:
        request = link.open("submit", spec=second, list="whole", ends=False)
        request.send_rows(rows)
        kind, payload = next(request.frames())
        assert kind == wire.EVENT
        assert wire.read_json(payload)["need"] == ([rows[1][4]] if listed else [])
        done = space.collect(local_worker.ctx, "local")
        assert set(contents(local_worker)) >= known
        assert any("just now" in text for text in done.kept)
        _answer(request, *([new] if listed else []))
    assert local_worker.wait("second").status.outcome == "done"
    assert b"old" in local_worker.log("second")
    # and once it is made its own spec keeps them
    age(*contents(local_worker))
    left = {path for path in known if path.suffix != ".json"}
    collect(local_worker)
    assert left <= set(contents(local_worker))


def _answer(request: Any, *texts: bytes) -> None:
    heads = [wire.PACK_HEAD.pack(hashlib.sha256(t).digest(), len(t)) + t for t in texts]
    request.send(zlib.compress(b"".join(heads)))
    request.end()
    request.finish()


def test_submits_and_collections_at_the_same_time_lose_nothing(local_worker: LocalWorker) -> None:
    finished(local_worker, "print()")
    stop = threading.Event()
    found: list[BaseException] = []

    def collecting() -> None:
        while not stop.is_set():
            try:
                for path in contents(local_worker):
                    age(path)
            except FileNotFoundError:
                pass
            try:
                space.collect(local_worker.ctx, "local")
            except BaseException as error:
                found.append(error)

    thread = threading.Thread(target=collecting)
    thread.start()
    try:
        for number in range(8):
            local_worker.file("a.txt", f"{number % 2}")
            run = finished(local_worker, "print(open('a.txt').read())")
            assert local_worker.log(run) == b"%d\n" % (number % 2)
            space.remove(local_worker.ctx, [local_worker.ref(run)], unpulled=True)
    finally:
        stop.set()
        thread.join()
    assert found == []


def test_gc_clears_what_was_cut_and_nothing_under_way(local_worker: LocalWorker) -> None:
    run = finished(local_worker)
    space.collect(local_worker.ctx, "local")
    top, gone = local_worker.workspace, dead_pid()
    blob = next(top.glob(".runner/blobs/*/*"))
    left = [
        top / f"runs/.tmp-cmd-aaaaa-{gone}",
        top / f"code/.tmp-cmd-aaaaa-{gone}",
        top / f".runner/bundles/{'0' * 64}.tmp{gone}",
    ]
    busy = [Path(f"{path}".replace(str(gone), str(os.getpid()))) for path in left]
    for path in [*left, *busy]:
        path.mkdir()
        (path / "spec.json").write_text("{}")
    files = [
        blob.with_name(f"{blob.name}.tmp{gone}"),
        top / f".runner/trees/{'0' * 64}.json.tmp{gone}",
        top / f"runs/{run}/state.json.tmp{gone}",
    ]
    for path in files:
        path.write_text("torn")
    mine = [top / "checkpoints" / run / f"model.tmp{gone}", top / "logs" / run / ".tmp-x-1"]
    for path in mine:
        path.write_text("a job's own")
    done = collect(local_worker)
    assert len(done.items) == 6
    assert not [path for path in [*left, *files] if path.exists()]
    assert all(path.exists() for path in [*busy, *mine])


def test_gc_removes_the_code_of_a_run_never_made_but_no_stray_work(
    local_worker: LocalWorker,
) -> None:
    finished(local_worker, "print()")
    top = local_worker.workspace
    never, stray = top / "code/cmd-never", top / "code/cmd-stray"
    for folder in (never, stray):
        folder.mkdir()
        (folder / "main.py").write_text("print()")
        (folder / "main.py").chmod(0o444)
    (stray / "precious.csv").write_text("made by somebody")
    strange = top / "checkpoints/cmd-strange/step-1"
    strange.mkdir(parents=True)
    collect(local_worker)
    assert never.exists()  # it may be in the making
    age(never, stray, strange.parent)
    collect(local_worker)
    assert not never.exists()
    assert (stray / "main.py").exists() and strange.exists()


def test_gc_keeps_bundles_that_are_current_or_run_or_new(local_worker: LocalWorker) -> None:
    finished(local_worker, "print()")
    bundles = local_worker.workspace / ".runner/bundles"
    current = {path.name for path in bundles.iterdir()}
    used, unused, young = (bundles / (digit * 64) for digit in "123")
    for folder in (used, unused, young):
        folder.mkdir()
        (folder / "__main__.py").write_text("import time; time.sleep(600)")
    age(used, unused, *(bundles / name for name in current))
    program = subprocess.Popen([sys.executable, "-I", "-S", str(used), "dispatcher"])
    try:
        done = collect(local_worker)
    finally:
        program.kill()
        program.wait()
    whats = [what for what, _, _ in done.items if what.startswith(".runner")]
    assert whats == [f".runner/bundles/{unused.name}"]
    assert {path.name for path in bundles.iterdir()} == {*current, used.name, young.name}
    age(used)  # Python left its cache there
    collect(local_worker)
    assert {path.name for path in bundles.iterdir()} == {*current, young.name}


def test_code_that_piles_up_is_one_copy_after_gc(
    local_worker: LocalWorker, capsys: Capture
) -> None:
    local_worker.file("data.bin", "x" * 3_000_000)
    for number in range(8):
        local_worker.file("version.txt", str(number))
        finished(local_worker, "print()")
    assert main(["gc", "host=local", "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["format"], told["dry_run"], told["host"]) == (1, True, "local")
    assert len(told["items"]) == 8 and told["bytes"] >= 8 * 3_000_000
    assert _used(local_worker) > 8 * 3_000_000
    assert main(["gc", "host=local"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["WHAT", "SIZE", "WHY"]
    assert table[-1].startswith("in all") and "removed; " in table[-1]
    assert _used(local_worker) < 2 * 3_000_000
    assert main(["gc", "host=local"]) == 0
    assert capsys.readouterr().out == ""


def _used(worker: LocalWorker) -> int:
    found = (path.lstat() for path in worker.workspace.rglob("*") if path.is_file())
    return sum(each.st_blocks * 512 for each in found)
