"""Folders with odd names: the project's, HOME, TMPDIR, the workspace; everything works in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.local_worker import LocalWorker
from tests.helpers.typed import typed
from tests.rig.operator import REPOSITORY

NAMES = {
    "blanks": b" a  b ",
    "quotes": b'it\'s "so" `id` $HOME',
    "newline": b"new\nline",
    "bytes": b"\xff\xfe\x80",
    "dash": b"-rf",
    "supervisor": b"%(x)s %h:#;,",
    "terminal": "\x1b[31m\u202e\u200b\U0001f600".encode(),
    "glob": b"[*?]{}~!\\",
}
WRITES = """
import os
open(os.environ["RUNNER_CHECKPOINTS"] + "/a.pt", "w").write("weights")
open("made", "w").write(open("code.txt").read())
print("said")
"""


@pytest.fixture
def top(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A short folder, in which one with the odd name is made."""
    folder = Path(tempfile.mkdtemp(prefix="odd-"))
    try:
        yield folder
    finally:
        shutil.rmtree(os.fsencode(folder), ignore_errors=True)


@pytest.fixture
def worker(top: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalWorker]:
    odd = Path(os.fsdecode(os.fsencode(top) + b"/" + NAMES[name]))
    made = LocalWorker(monkeypatch.setenv)
    shutil.rmtree(made.root)
    made.root = odd
    made.workspace, made.leases, made.project = odd / "ws", odd / "leases", odd / "project"
    for folder in (made.project, odd / "home", odd / "tmp"):
        folder.mkdir(parents=True)
    (made.project / "runner.toml").write_text('name = "p"\nid = "p-1"\n')
    places = {"RUNNER_WORKSPACE": "ws", "RUNNER_LEASES": "leases", "HOME": "home", "TMPDIR": "tmp"}
    for variable, place in places.items():
        monkeypatch.setenv(variable, str(odd / place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(made.project)
    try:
        yield made
    finally:
        monkeypatch.chdir("/")
        made.close()


SOME = ("newline", "bytes", "supervisor", "terminal")
OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES if name not in SOME]


@pytest.mark.parametrize("name", [*SOME, *OTHERS])
def test_a_run_from_start_to_results(worker: LocalWorker) -> None:
    worker.file("code.txt", "code")
    submitted = typed("submit", "--", "python", "-c", WRITES)
    assert submitted.status == 0, submitted
    run = submitted.text.strip()
    assert typed("wait", run).status == 0, worker.log(run)
    assert typed("tail", run).out == b"said\n"
    pulled = typed("pull", run, terminal=True)
    assert pulled.status == 0, pulled
    top = worker.project / "results" / run
    assert (top / "checkpoints" / "a.pt").read_text() == "weights"
    assert (top / "work" / "made").read_text() == "code"
    for words in (["ps"], ["status", run], ["why", run], ["du"], ["version", "host=local"]):
        said = typed(*words)
        assert said.status == 0, (words, said)
        assert all(char.isprintable() for char in said.text.replace("\n", "")), (words, said)
    assert typed("pull", run).status == 0


@pytest.mark.parametrize("name", [*SOME, *OTHERS])
def test_errors_name_the_place_on_one_line(worker: LocalWorker) -> None:
    (worker.project / "hosts").mkdir()
    (worker.project / "hosts" / "x.toml").write_text("nonsense = 1\n")
    for words in (["submit", "host=x", "--", "true"], ["status", "none"], ["pull", "none"]):
        said = typed(*words, terminal=True)
        assert said.status in (2, 3, 6), (words, said)
        shown = said.err.replace("\n", "").replace("\r\x1b[K", "")
        assert all(char.isprintable() for char in shown), (words, said)


@pytest.mark.parametrize("name", ["bytes", "newline"])
def test_as_a_program_of_its_own(worker: LocalWorker) -> None:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-m", "runner", "submit", "--tail", "--", "echo", "said"]
    done = subprocess.run(argv, env=env, cwd=worker.project, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, b"said"), done


@pytest.mark.parametrize("name", ["quotes"])
def test_to_takes_any_folder(worker: LocalWorker) -> None:
    run = typed("submit", "--", "echo", "said").text.strip()
    assert typed("wait", run).status == 0
    for odd in NAMES.values():
        place = os.fsdecode(odd) + "/deep"
        said = typed("pull", run, "--to", f"./{place}")
        assert said.status == 0, said
        assert (worker.project / place / "logs/rank-0.log").read_bytes() == b"said\n"
