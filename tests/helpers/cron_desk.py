"""Somebody with a crontab, a home and a Python that finds the runner without any variable.

The `crontab` program is a stand-in that keeps a file, since the machine's own must stay untouched.
Cron itself is played by `look`, which runs the line as cron would: its shell and few variables.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from runner.schedule_files import Shelf, schedules_folder
from tests.helpers.local_worker import LocalWorker

ROOT = Path(__file__).parents[2]
CRONTAB = """#!/bin/sh
case $1 in
-l) [ -e {file} ] || {{ echo "no crontab for you" >&2; exit 1; }}; cat {file} ;;
-) cat > {file}.new && mv {file}.new {file} ;;
-r) rm {file} ;;
*) exit 2 ;;
esac
"""


class CronDesk:
    """What they type, and what cron does."""

    def __init__(self, worker: LocalWorker) -> None:
        self.worker = worker
        self.cron_path = "/usr/bin:/bin"
        self.home = worker.root / "home"
        self.bin = worker.root / "bin"
        self.file = worker.root / "crontab"
        for folder in (self.home, self.bin):
            folder.mkdir()
        program = self.bin / "crontab"
        program.write_text(CRONTAB.format(file=shlex.quote(str(self.file))))
        program.chmod(0o755)
        self.python = self._make_python()
        self.head = f"# mine\nHOME={self.home}\n"
        self.file.write_text(self.head)

    def _make_python(self) -> Path:
        """An environment whose runner is this one, as `pip install -e` makes it."""
        venv = self.worker.root / "venv"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        site = venv / "lib" / version / "site-packages"
        site.mkdir(parents=True)
        (venv / "bin").mkdir()
        real = Path(sys.executable).resolve()
        (venv / "pyvenv.cfg").write_text(
            f"home = {real.parent}\ninclude-system-site-packages = false\n"
        )
        (site / "here.pth").write_text(f"{ROOT}\n{sysconfig.get_paths()['purelib']}\n")
        python = venv / "bin" / "python3"
        python.symlink_to(real)
        return python

    @property
    def crontab(self) -> str | None:
        return self.file.read_text() if self.file.exists() else None

    @property
    def env(self) -> dict[str, str]:
        """What a session of theirs has."""
        own = {key: os.environ[key] for key in os.environ if key.startswith("RUNNER_")}
        path = f"{self.bin}:/usr/local/bin:/usr/bin:/bin"
        return {**own, "HOME": str(self.home), "PATH": path, "LANG": "C.UTF-8"}

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """`runner WORDS`."""
        return subprocess.run(
            [str(self.python), "-m", "runner", *words],
            cwd=self.worker.project,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )

    def done(self, *words: str, **env: str) -> str:
        """The same, which must end with 0; its stdout."""
        ran = self.run(*words, **env)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self.done(*words, "--json"))

    def lines(self) -> list[str]:
        """Our lines in the crontab."""
        return [line for line in (self.crontab or "").splitlines() if "# runner schedule" in line]

    def rewind(self, name: str, seconds: float) -> None:
        """As if nobody had looked after a schedule for so long."""
        path = self.shelf(name).folder / "progress.json"
        body = json.loads(path.read_text())
        path.write_text(json.dumps({**body, "handled": time.time() - seconds}))

    def shelf(self, name: str) -> Shelf:
        place = schedules_folder(str(self.home))
        (folder,) = [each for each in place.iterdir() if each.name.startswith(f"{name}-")]
        return Shelf(folder)

    def shelf_folders(self) -> list[str]:
        """What is left of schedules."""
        place = schedules_folder(str(self.home))
        return [name for name in os.listdir(place) if name[0] != "."] if place.is_dir() else []

    def look(self) -> subprocess.CompletedProcess[str]:
        """Cron comes by."""
        command = self.command()
        env = {"HOME": str(self.home), "LOGNAME": "root", "PATH": self.cron_path}
        return subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self.home,
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )

    def command(self) -> str:
        """What cron would give to its shell, without where the output goes."""
        (line,) = self.lines()
        return line.split(" ", 5)[5].split(" >/dev/null")[0].replace("\\%", "%")
