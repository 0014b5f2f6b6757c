"""A private place for a benchmark: home, project, workspace and leases, gone at its end.

Nothing of the account's own runner is used: a worker of this stage is told apart by its workspace,
and ended by the pid it wrote down.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

RUNNER = [sys.executable, "-m", "runner"]
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
END_LIMIT_S = 60.0


class Stage:
    """`folder`, the `project` in it, and `env` for commands."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        self.python = python
        self.project = folder / "project"
        self.workspace = folder / "workspace"
        self.leases = folder / "leases"
        self.env = {
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "PATH": f"{Path(python).parent}:{SYSTEM_PATH}",
            "XDG_RUNTIME_DIR": str(folder / "xdg"),
            "RUNNER_WORKSPACE": str(self.workspace),
            "RUNNER_LEASES": str(self.leases),
        }
        for name in ("home", "xdg", "project"):
            (folder / name).mkdir(mode=0o700)
        self.runner("init")

    def runner(self, *words: str, limit_s: float = 120.0) -> str:
        """What `runner WORDS…` prints. Exits with its message when it fails."""
        done = self.try_runner(*words, limit_s=limit_s)
        if done.returncode != 0:
            sys.exit(f"runner {' '.join(words)}: exit {done.returncode}\n{done.stderr.strip()}")
        return done.stdout

    def try_runner(self, *words: str, limit_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """`runner WORDS…`, whatever its status."""
        return subprocess.run(
            [self.python, "-m", "runner", *words],
            cwd=self.project,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def end_worker(self) -> None:
        """End this stage's `local` worker, and with it what still runs there."""
        try:
            born = json.loads((self.workspace / ".runner" / "supervisor.json").read_text())
        except FileNotFoundError:
            return
        pid, until = int(born["pid"]), time.monotonic() + END_LIMIT_S
        while _start_of(pid) == born["start"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < until else signal.SIGKILL)
            time.sleep(0.1)


@contextlib.contextmanager
def made(python: str = sys.executable) -> Iterator[Stage]:
    """A stage for that Python's runner; afterwards its worker is ended and its folder removed."""
    folder = Path(tempfile.mkdtemp(prefix="runner-bench-"))
    try:
        stage = Stage(folder, python)
        try:
            yield stage
        finally:
            stage.end_worker()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def install(folder: Path) -> Path:
    """The Python of an environment that holds the wheel and what it needs."""
    from tests.helpers import packages

    wheel = packages.build(packages.copy_listed(folder / "source"), folder / "built", "wheel")
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
    constraints = packages.REPOSITORY / "constraints.txt"
    subprocess.run([*pip, "-c", str(constraints), str(wheel)], check=True)
    return python


def write_tree(folder: Path, *, files: int, size_bytes: int, seed: int = 0) -> list[Path]:
    """Files of program-like text, evenly sized, 20 to a folder; the same for the same seed."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz_", k=6)) for _ in range(4000)]
    made_files = []
    for number in range(files):
        path = folder / f"part{number // 20:02d}" / f"module{number:03d}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines: list[str] = []
        left = size_bytes // files
        while left > 0:
            name, *others = draw.choices(words, k=5)
            lines.append(f"    {name} = {' + '.join(others)}  # {draw.random()}\n")
            left -= len(lines[-1])
        path.write_text("".join(lines)[: size_bytes // files])
        made_files.append(path)
    return made_files


def _start_of(pid: int) -> int | None:
    """When a process started, in ticks since boot: with its pid that names it for good."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
