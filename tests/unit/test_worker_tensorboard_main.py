"""What TensorBoard is given to read: links to logs, and to what scripts wrote beside themselves."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tensorboard_main import gather

EVENTS = "events.out.tfevents.1.host"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for run in ("dqn-7k3fa", "mine-b2x7m"):
        (tmp_path / "logs" / run).mkdir(parents=True)
        (tmp_path / "code" / run).mkdir(parents=True)
    return tmp_path


def wrote(root: Path, path: str, mode: int = 0o644) -> Path:
    file = root / "code" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")
    file.chmod(mode)
    return file


def seen(root: Path) -> dict[str, str]:
    gather(str(root / "logs"), str(root / "board"))
    links = {path.name: os.readlink(path) for path in (root / "board").iterdir()}
    return {name: os.path.relpath(to, root) for name, to in sorted(links.items())}


def test_logs_of_all_runs_and_event_files_beside_a_script(root: Path) -> None:
    logs = {run: f"logs/{run}" for run in ("dqn-7k3fa", "mine-b2x7m")}
    assert seen(root) == logs
    wrote(root, f"mine-b2x7m/runs/exp__1/{EVENTS}")
    wrote(root, "dqn-7k3fa/runs/notes.txt")
    wrote(root, f"dqn-7k3fa/models/{EVENTS}")
    also = {"mine-b2x7m.runs": "code/mine-b2x7m/runs"}
    assert seen(root) == {**logs, **also} == seen(root)
    shutil.rmtree(root / "logs" / "mine-b2x7m")
    shutil.rmtree(root / "code" / "mine-b2x7m")
    assert seen(root) == {"dqn-7k3fa": "logs/dqn-7k3fa"}


def test_what_was_sent_with_the_code_and_links_out_of_it_are_not_shown(root: Path) -> None:
    wrote(root, f"dqn-7k3fa/runs/old/{EVENTS}", 0o444)
    wrote(root, f"elsewhere/{EVENTS}")
    (root / "code" / "mine-b2x7m" / "runs").symlink_to(root / "code" / "elsewhere")
    assert sorted(seen(root)) == ["dqn-7k3fa", "mine-b2x7m"]
