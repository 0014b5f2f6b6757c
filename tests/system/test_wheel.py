"""A newcomer's way: install the wheel, make a project in an empty folder, run something."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from runner import __version__
from tests.helpers import packages
from tests.helpers.wait import wait_for

INSTALL_LIMIT_S = 300.0
COMMAND_LIMIT_S = 60.0
END_LIMIT_S = 30.0


class Installation:
    """A virtual environment with the wheel and nothing else, and somebody who uses it."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self.project = folder / "project"
        self.workspace = folder / "workspace"
        self.env = {
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin",
            "RUNNER_WORKSPACE": str(self.workspace),
            "RUNNER_LEASES": str(folder / "leases"),
            # a short path for sockets, whatever pytest calls its folder
            "XDG_RUNTIME_DIR": "",
        }
        for name in ("home", "project"):
            (folder / name).mkdir()

    def run(self, *argv: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT_S,
            check=False,
        )

    def runner(self, *words: str) -> str:
        """What it prints; it must succeed, and say nothing beside."""
        done = self.run(self.bin / "runner", *words)
        assert (done.returncode, done.stderr) == (0, ""), (words, done.stdout, done.stderr)
        return done.stdout

    def end_worker(self) -> None:
        """End the worker that `submit` started, by the pid it wrote down."""
        path = self.workspace / ".runner" / "supervisor.json"
        if path.exists():
            pid = int(json.loads(path.read_text())["pid"])
            with open(f"/proc/{pid}/environ", "rb") as file:
                assert os.fsencode(self.workspace) in file.read()
            os.kill(pid, signal.SIGTERM)
            wait_for(lambda: not os.path.exists(f"/proc/{pid}"), END_LIMIT_S, "the worker's end")


def checked(argv: Sequence[str | Path]) -> None:
    """Run an installation step; its words when it fails."""
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(git: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("wheel")
    wheel = packages.build(packages.copy_listed(folder / "source"), folder / "built", "wheel")
    made = Installation(folder)
    checked([sys.executable, "-m", "venv", made.bin.parent])
    constraints = packages.REPOSITORY / "constraints.txt"
    pip = [made.bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    checked([*pip, "-c", constraints, wheel])
    try:
        yield made
    finally:
        made.end_worker()


def test_it_comes_without_torch(installed: Installation) -> None:
    looked = "import importlib.util as u; print(u.find_spec('torch'), u.find_spec('agents'))"
    assert installed.run(installed.bin / "python", "-c", looked).stdout == "None None\n"


def test_its_version_is_the_wheels(installed: Installation) -> None:
    assert installed.runner("--version") == f"runner {__version__}\n"


def test_an_empty_folder_becomes_a_project_that_runs(installed: Installation) -> None:
    assert "agents/dqn.py" in installed.runner("init")
    assert (installed.project / "agents" / "dqn.toml").is_file()
    words = ["host=local", "--wait", "--", "python", "-c", "print(1)"]
    (run,) = installed.runner("submit", *words).splitlines()
    assert installed.runner("tail", run) == "1\n"
    assert run in installed.runner("ps")


def test_it_can_make_a_host(installed: Installation) -> None:
    """All that goes to a host is in it: the worker's bundle and the image's context."""
    program = (
        "from runner import content; print(len(content.bundle().data) > 0);"
        "print(len(content.image_context()) > 0, content.images_file().is_file())"
    )
    done = installed.run(installed.bin / "python", "-I", "-c", program)
    assert done.stdout == "True\nTrue True\n", done.stderr
