"""Tab in real shells: what the line becomes, and that no foreign name is ever run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.completing.scripts import SHELLS, script
from runner.model import Project
from runner.store import Store
from runner.wire import RunStatus
from tests.conftest import LEFT_OUT
from tests.helpers.typist import Typist

ODD = "a b\"$(touch pwned)`touch pwned`'c"
BASH_BREAKS = " \t\n\"'@><=;|&(:"
JOB = f"""# Learns; $(touch pwned) `touch pwned`
command = ["true"]
[params]
learning_rate = 0.5
amp = false
text = {json.dumps(ODD)}
"""


def make_project(root: Path) -> Path:
    for folder in ("hosts", "agents", "runs dir"):
        (root / folder).mkdir(parents=True)
    (root / "hosts" / "gpu1.toml").write_text('ssh = "drl@$(touch pwned)"\n')
    (root / "hosts" / "$(touch pwned).toml").write_text('ssh = "x"\n')
    (root / "agents" / "dqn.toml").write_text(JOB)
    (root / "agents" / "x;touch pwned;.toml").write_text(JOB)
    (root / "train.py").write_text("")
    store = Store(Project(root, "p", "p"))
    for run, name, state in (
        ("dqn-7k3fa", "base", "running"),
        ("ppo-1aaaa", "`touch pwned`", "queued"),
    ):
        store.put("gpu1", RunStatus(id=run, state=state, name=name, tags=["t1"]).to_json(), 1.0)
    return root


@contextlib.contextmanager
def at_shell(shell: str, base: Path) -> Iterator[Typist]:
    if shutil.which(shell, path="/usr/bin:/bin") is None:
        pytest.skip(f"{LEFT_OUT}{shell}: not installed")
    person = Typist(shell, base / "home", make_project(base / "project"), script(shell))
    try:
        yield person
    finally:
        person.close()
        left = [
            str(path)
            for path in base.rglob("*pwned*")
            if path.parent.name not in ("hosts", "agents")
        ]
        assert left == [], "a foreign name was run"


@pytest.fixture(scope="module", params=SHELLS)
def typist(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Typist]:
    """One shell for many lines."""
    with at_shell(request.param, tmp_path_factory.mktemp(request.param)) as person:
        yield person


@pytest.fixture(params=SHELLS)
def looking(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Typist]:
    """A shell for one line, which is looked at."""
    with at_shell(request.param, tmp_path) as person:
        yield person


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "runner subm\tho\tgp\tjo\td\tlea\t1",
            ["submit", "host=gpu1", "job=dqn", "learning_rate=1"],
        ),
        ("runner status dqn-7\t", ["status", "dqn-7k3fa"]),
        ("runner status nam\tb\t", ["status", "name:base"]),
        ("runner cancel tag:\t", ["cancel", "tag:t1"]),
        ("runner submit job=dqn amp=t\t--wa\t", ["submit", "job=dqn", "amp=true", "--wait"]),
        ("runner submit job=dqn text=\t", ["submit", "job=dqn", f"text={ODD}"]),
        ("runner submit secret.WANDB_A\t", ["submit", "secret.WANDB_API_KEY"]),
        ("runner submit secret.X=@tr\t", ["submit", "secret.X=@train.py"]),
        ("runner submit -- python trai\t", ["submit", "--", "python", "train.py"]),
        ("runner submit -- run\t", ["submit", "--", "runs dir"]),
        ("runner pull --to run\t", ["pull", "--to", "runs dir"]),
        ("runner pull --what=logs,wo\t", ["pull", "--what=logs,work"]),
        ("runner submit host=zz\t", ["submit", "host=zz"]),
        ("runner jobs x\t", ["jobs", "x"]),
    ],
)
def test_tab_makes_of_a_line(typist: Typist, line: str, words: list[str]) -> None:
    typed = typist.type(line)
    assert [word.rstrip("/") for word in typed] == words  # zsh takes it away again


def test_a_program_of_this_folder_is_not_started_by_tab(looking: Typist) -> None:
    folder = Path(os.readlink(f"/proc/{looking.pid}/cwd"))
    mine = folder / "runner"
    mine.write_text("#!/bin/sh\ntouch pwned\n")
    mine.chmod(0o755)
    try:
        looking.look("./runner submit host=gp\t", "host=gpu1")
    finally:
        mine.unlink()
    assert not (folder / "pwned").exists()


def test_zsh_and_fish_tell_what_each_word_is(looking: Typist) -> None:
    if looking.shell == "bash":
        assert "gpu1" in looking.look("runner submit host=\t\t", "local")
        return
    assert "this machine" in looking.look("runner submit host=\t\t", "this machine")


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("runner submit host=g", ["words 5", "gpu1"]),
        ("runner status name:b", ["words 0", "base"]),
        ("runner > ho", ["file 0"]),
        ("runner submit 'host=g", ["words 5", "host=gpu1"]),
        ("runner nothing ", ["words 0"]),
    ],
)
def test_bash_is_told_what_replaces_its_word(tmp_path: Path, line: str, lines: list[str]) -> None:
    asked = ask(make_project(tmp_path / "p"), "bash", BASH_BREAKS, line)
    assert (asked.stdout.decode().splitlines(), asked.stderr) == (lines, b"")


@pytest.mark.parametrize("argv", [[], ["bash"], ["zsh"], ["tcsh", "x"], ["bash", "a", "b", "c"]])
def test_a_wrong_question_is_answered_without_a_word(tmp_path: Path, argv: list[str]) -> None:
    assert ask(tmp_path, *argv).stderr == b""


def test_nothing_is_written(tmp_path: Path) -> None:
    project = make_project(tmp_path / "p")
    leftover = project / ".runner" / "runs" / ".x.tmp"
    leftover.write_text("")
    os.utime(leftover, (1, 1))
    before = sorted((str(path), path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    for word in ("status", "cancel", "fork"):
        assert ask(project, "zsh", word, "").stdout
    assert sorted((str(p), p.stat().st_mtime_ns) for p in tmp_path.rglob("*")) == before


def test_a_reader_that_went_away_and_a_folder_that_is_gone(tmp_path: Path) -> None:
    gone = "mkdir gone && cd gone && rmdir ../gone && "
    for text in (f'{gone}"$@"', '"$@" | :', '"$@" >&-', '"$@" </dev/null >/dev/full'):
        argv = ["sh", "-c", text, "sh", *program("zsh", "submit", "")]
        ran = subprocess.run(argv, cwd=tmp_path, capture_output=True, env=environ(tmp_path))
        assert ran.stderr == b"", text


def program(*argv: str) -> list[str]:
    code = "import sys; from runner.__main__ import main; sys.exit(main())"
    return [sys.executable, "-c", code, "__complete", *argv]


def environ(home: Path) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    return {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": root}


def ask(folder: Path, *argv: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        program(*argv), cwd=folder, capture_output=True, env=environ(folder), check=False
    )
