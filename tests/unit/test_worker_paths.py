from __future__ import annotations

import os
from pathlib import Path

import paths
import pytest


def test_a_workspace_is_made_for_the_owner_alone(tmp_path: Path) -> None:
    place = tmp_path / "ws"
    workspace = paths.Workspace(str(place))
    workspace.make()
    workspace.make()
    assert place.stat().st_mode & 0o777 == 0o700
    for name in ("code", "checkpoints", "logs", "runs", ".home", ".runner/blobs", ".runner/inbox"):
        assert (place / name).is_dir()


@pytest.mark.parametrize(("mode", "after"), [(0o755, 0o700), (0o1777, 0o1777)])
def test_one_that_was_there_is_for_the_owner_alone_unless_it_is_for_all(
    tmp_path: Path, mode: int, after: int
) -> None:
    place = tmp_path / "ws"
    place.mkdir()
    place.chmod(mode)
    paths.Workspace(str(place)).make()
    assert place.stat().st_mode & 0o7777 == after


@pytest.mark.parametrize(
    "run", ["", "..", ".hidden", "a/b", "a\0b", "-x", "a" * 129, "../x", "a\n", "ü"]
)
def test_what_cannot_be_an_id_has_no_paths(run: str) -> None:
    with pytest.raises(ValueError, match="not a run id"):
        paths.Workspace("/w").run(run)


def test_where_a_runs_things_lie() -> None:
    run = paths.Workspace("/w").run("dqn-7k3fa.2")
    assert run.code == "/w/code/dqn-7k3fa.2"
    assert run.attempt(3) == "/w/runs/dqn-7k3fa.2/attempts/3"
    assert run.log(1) == "/w/logs/dqn-7k3fa.2/rank-1.log"
    assert run.progress(0) == "/w/logs/dqn-7k3fa.2/progress.jsonl"
    assert run.progress(1) == "/w/logs/dqn-7k3fa.2/progress-rank-1.jsonl"


def test_a_workspace_is_named_or_below_the_home(tmp_path: Path) -> None:
    assert paths.find_workspace({"RUNNER_WORKSPACE": "/x/../w"}) == "/w"
    assert paths.find_workspace({"HOME": "/h"}) == "/h/.local/share/runner/workspace"
    assert paths.find_workspace({}).endswith("/.local/share/runner/workspace")
    assert paths.find_leases({"RUNNER_LEASES": "/l"}) == "/l"
    assert paths.find_leases({"HOME": "/h"}) == "/h/.local/state/runner/leases"


def test_folders_that_cannot_be_a_workspace(tmp_path: Path) -> None:
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "home")
    home = str(tmp_path / "home")
    assert paths.refused("/", home)
    assert paths.refused(home, home)
    assert paths.refused(str(tmp_path / "link"), "/elsewhere")
    assert paths.refused(str(tmp_path / "link"), home)
    assert paths.refused(os.path.join(home, "runner"), home) is None
    assert paths.refused(str(tmp_path), None) is None
