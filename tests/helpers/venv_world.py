"""A `venv` worker on a rig host, over ssh as an ordinary user: made and driven as by a person."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import processes
import records

from runner.app import submit
from runner.app.context import Context, open_context
from runner.app.down import down
from runner.app.provision import provision
from runner.app.reports import DownReport, ProvisionReport
from runner.app.runs import RunRef
from runner.app.wait import wait
from runner.endpoint import Worker
from runner.spec import parse_submit
from tests.helpers.local_worker import Heard, Table, read
from tests.helpers.wait import wait_for
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator

PINS = """
[small]
base = "unused"
torch = "2.13.0"
cuda = "none"
driver_min = "525.60.13"
pip = ["py-spy==0.4.3", "supervisor==4.3.0"]

[other]
base = "unused"
torch = "2.13.0"
cuda = "none"
driver_min = "525.60.13"
pip = ["six==1.17.0"]

[bare]
base = "unused"
torch = "2.13.0"
cuda = "none"
driver_min = "525.60.13"
"""


class VenvWorld:
    """One project with the host `box`; `close` ends every process of its user there."""

    def __init__(
        self, operator: Operator, host: RigHost, wheels: Path, home: Path | None = None
    ) -> None:
        self.operator = operator
        self.rig_host = host
        self.report = Heard()
        self.home = home or host.home
        (operator.project / "runner.toml").write_text('name = "p"\nid = "p-1"\n')
        (operator.project / "images.toml").write_text(PINS)
        self.write()
        self.let_pip(f"[global]\nno-index = true\nfind-links = {wheels}\n")

    def let_pip(self, text: str) -> None:
        """Write the account's own pip.conf."""
        path = self.home / ".config/pip/pip.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for each in (path, path.parent, path.parent.parent):
            os.chown(each, self.rig_host.spec.uid, self.rig_host.spec.uid)

    def write(self, more: str = "", image: str = "small", workspace: str = "~/runner") -> None:
        folder = self.operator.project / "hosts"
        folder.mkdir(exist_ok=True)
        text = f'ssh = "{self.rig_host.alias}"\nruntime = "venv"\nimage = "{image}"\n'
        text += f'workspace = "{workspace}"\nslots = 2\n'
        (folder / "box.toml").write_text(text + more)
        self.workspace = self.home / workspace.removeprefix("~/")

    # what a person does

    @property
    def ctx(self) -> Context:
        return open_context(self.report, self.operator.project)

    def provision(
        self, image: str | None = None, rebuild: bool = False, at_boot: bool | None = None
    ) -> ProvisionReport:
        self.report.notes.clear()
        return provision(self.ctx, "box", image, rebuild, at_boot)

    def down(self, purge: bool = False) -> DownReport:
        return down(self.ctx, "box", purge=purge, yes=True)

    def submit(self, *command: str, words: tuple[str, ...] = ()) -> str:
        request = parse_submit(["host=box", *words], list(command))
        return submit.submit(self.ctx, request, lambda run: None)[0]

    def wait(self, run: str, limit_s: float = 40.0) -> Table:
        """state.json of a run that has ended."""
        wait(self.ctx, [RunRef(run, "box")], limit_s)
        return self.state(run)

    def info(self) -> Table:
        with Worker(self.ctx.host("box")) as worker:
            return worker.call("info")[0]

    # what is there

    @property
    def runners(self) -> Path:
        """The runner's own folder."""
        return self.home / ".local/state/runner"

    def environments(self) -> list[str]:
        return sorted(p.name for p in (self.runners / "venvs").iterdir() if p.is_dir())

    def state(self, run: str) -> Table:
        return read(self.workspace / "runs" / run / "state.json")

    def cause(self, run: str, attempt: int) -> str | None:
        ended = read(self.workspace / "runs" / run / "attempts" / str(attempt) / "exit.json")
        return (ended.get("cause") or {}).get("kind")

    def log(self, run: str, rank: int = 0) -> str:
        path = self.workspace / "logs" / run / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def until_logged(self, run: str, text: str, limit_s: float = 20.0) -> None:
        wait_for(lambda: text in self.log(run), limit_s, f"{text!r} in the log")

    def tree(self) -> dict[str, tuple[int, object]]:
        """Every path in the home with its mode and what it holds."""
        found: dict[str, tuple[int, object]] = {}
        for path in sorted(self.home.rglob("*")):
            seen = path.lstat()
            data: object = None
            if stat.S_ISREG(seen.st_mode):
                data = path.read_bytes()
            elif stat.S_ISLNK(seen.st_mode):
                data = os.readlink(path)
            found[str(path.relative_to(self.home))] = (seen.st_mode, data)
        return found

    # its processes, by the pids that this machine gives them

    def mine(self) -> dict[int, str]:
        """Every process of the user there but sshd's: pid to command line."""
        found = {}
        for pid in processes.all_pids():
            try:
                if os.stat(f"/proc/{pid}").st_uid != self.rig_host.spec.uid:
                    continue
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if not words.startswith("sshd"):
                found[pid] = words
        return {pid: found[pid] for pid in processes.living(found)}

    def supervisors(self) -> list[int]:
        return [pid for pid, words in self.mine().items() if "/supervisord.py " in words]

    def dispatchers(self) -> list[int]:
        """Launchers have its command line, but another parent."""
        found = self.supervisors()
        mine = self.mine()
        return [p for p in mine if (processes.read_stat(p) or (0,))[0] in found]

    def is_one_worker(self) -> bool:
        lock = self.workspace / ".runner/dispatcher.lock"
        alone = len(self.supervisors()) == len(self.dispatchers()) == 1
        return alone and records.is_locked(str(lock))

    def kill_all(self) -> None:
        """End everything of the user, as a power cut does."""
        for pid in self.mine():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        wait_for(lambda: not self.mine(), 20, "the end of all processes there")

    def close(self) -> None:
        self.rig_host.break_sessions()
        self.kill_all()
        for path in self.rig_host.tmp.glob("runner-*"):
            for each in path.iterdir():
                each.unlink()
            path.rmdir()
