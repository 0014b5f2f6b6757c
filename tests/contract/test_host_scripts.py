"""The scripts for a host's `sh`, run by this machine's: what they make they can take away again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from runner import host_scripts
from runner.remains import REMAINS, Remains, parse_remains

NAME = f"runner-{os.getuid()}-74cc6138-cpu"
STATE = ".local/state/runner"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "ho me"
    home.mkdir(mode=0o755)
    return home


def sh(home: Path, script: str, *words: str, given: str = "", status: int = 0) -> str:
    done = subprocess.run(
        ["sh", "-c", script, "runner", *words],
        input=given.encode(),
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    return done.stdout.decode()


def make(home: Path, workspace: Path, generation: int = 1) -> None:
    words = [str(workspace), f"{NAME}.{generation}", ""]
    sh(home, host_scripts.FOLDERS, *words, given='{"worker": "w-0123456789ab"}')


def purge(home: Path, workspace: Path) -> None:
    sh(home, host_scripts.FORGET, "", "", NAME)
    sh(home, host_scripts.PURGE_WORKSPACE, str(workspace))
    sh(home, host_scripts.PURGE_STATE)


def whole(home: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(home)): (
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [home, *home.rglob("*")]
    }


def test_what_was_not_there_is_gone_after_a_purge(home: Path) -> None:
    (home / ".local").mkdir(mode=0o755)
    before, workspace = whole(home), home / "a b" / "runner"
    make(home, workspace)
    assert (home / STATE / "keys/authorized_keys").stat().st_mode & 0o777 == 0o600
    run = workspace / "code" / "x"
    run.mkdir(parents=True)
    (run / "read-only").mkdir()
    (run / "read-only" / "file").touch()
    (run / "read-only").chmod(0o500)
    purge(home, workspace)
    assert whole(home) == before


def test_a_workspace_that_was_there_keeps_its_mode_and_what_is_not_ours(home: Path) -> None:
    workspace, elsewhere = home / "runner", home / "elsewhere"
    for folder in (workspace, elsewhere):
        folder.mkdir(mode=0o755)
        (folder / "mine").write_text("mine")
    before = whole(home)
    make(home, workspace)
    make(home, workspace, 2)
    assert workspace.stat().st_mode & 0o777 == 0o700
    (workspace / "runs" / "x").mkdir(parents=True)
    (workspace / "logs").symlink_to(elsewhere)  # a job may have done that
    purge(home, workspace)
    assert whole(home) == before


def test_a_generation_has_one_maker(home: Path) -> None:
    workspace = home / "runner"
    make(home, workspace)
    words = [str(workspace), f"{NAME}.1", ""]
    sh(home, host_scripts.FOLDERS, *words, given="{}", status=host_scripts.TAKEN)
    assert "w-0123" in (home / STATE / "workers" / f"{NAME}.1" / "worker.json").read_text()


def test_notes_stand_once_and_can_be_withdrawn(home: Path) -> None:
    sh(home, host_scripts.NOTE, "base a:1", "image 0", "base a:1")
    sh(home, host_scripts.NOTE, "base a:1")
    lines = (home / STATE / "made").read_text().splitlines()
    assert lines.count("base a:1") == 1 and f"folder {home}/.local" in lines
    sh(home, host_scripts.UNNOTE, "base a:1")
    assert "base a:1" not in (home / STATE / "made").read_text()


def test_a_workers_id_outlives_it_where_its_workspace_stays(home: Path) -> None:
    make(home, home / "runner")
    kept = NAME.removesuffix("-cpu")
    sh(home, host_scripts.FORGET, kept, "w-0123456789ab", NAME)
    assert [path.name for path in (home / STATE / "workers").iterdir()] == [kept]
    assert "w-0123456789ab" in (home / STATE / "workers" / kept / "worker.json").read_text()


def remains(home: Path, workspace: str = "~/runner") -> Remains:
    text = sh(home, REMAINS, "cut-1", "74cc6138", workspace)
    return parse_remains("\n" + text, "cut-1", os.getuid())


def test_what_remains_is_told_and_who_else_needs_the_shared_folders(home: Path) -> None:
    assert remains(home) == Remains()
    make(home, home / "runner")
    for name in ("dqn-7k3fa", "ppo-c41hd", ".del-x-1"):
        (home / "runner" / "runs" / name).mkdir(parents=True)
    found = remains(home)
    assert found.runs == ("dqn-7k3fa", "ppo-c41hd") and found.is_last
    assert f"folder {home}/runner" in found.made
    other = f"runner-{os.getuid()}-0badcafe-cpu.1"
    (home / STATE / "workers" / other).mkdir()
    assert remains(home).others == (other,) and not remains(home).is_last


def test_an_answer_that_breaks_off_is_none() -> None:
    with pytest.raises(ValueError, match="breaks off"):
        parse_remains("\ncut-1 runs\nx\n", "cut-1", 1)
