"""A real `local` worker in a folder of its own, driven through the use cases; nothing is mocked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paths
import processes
import sockets

from runner.app import cancel as cancel_use
from runner.app import context, pull, runs, status, submit, tail, wait
from runner.app.reports import CancelReport, PullReport
from runner.app.results import RunOnHost
from runner.spec import parse_submit
from tests.helpers.wait import wait_for

Table = dict[str, Any]
ENDS_IN_S = 30.0


class Notes:
    """A report that remembers the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def step(self, text: str) -> None:
        pass

    def trouble(self, text: str) -> None:
        self.step(text)

    def done(self) -> None:
        pass

    def warn(self, text: str) -> None:
        self.notes.append(text)

    @property
    def text(self) -> str:
        """All of them."""
        return "\n".join(self.notes)


class Heard(Notes):
    """Steps too, which a terminal shows and forgets."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)


class LocalWorker:
    """One workspace, one lease folder, one project; `close` ends every process of it, by pid."""

    def __init__(self, set_env: Callable[[str, str], None]) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="rw-"))
        self.workspace = self.root / "ws"
        self.leases = self.root / "leases"
        self.project = self.root / "project"
        self.project.mkdir()
        (self.project / "runner.toml").write_text('name = "p"\nid = "p-1"\n')
        self.set_env = set_env
        set_env("RUNNER_WORKSPACE", str(self.workspace))
        set_env("RUNNER_LEASES", str(self.leases))
        set_env("RUNNER_IDLE_END_S", "3600")
        # whoever runs the tests may have a notify.toml
        set_env("XDG_CONFIG_HOME", str(self.root / "config"))
        set_env("XDG_STATE_HOME", str(self.root / "state"))
        self.report = Heard()

    # -- what a person does -------------------------------------------------------------------

    @property
    def ctx(self) -> context.Context:
        """The project as a command sees it."""
        return context.open_context(self.report, self.project)

    def file(self, name: str, text: str) -> None:
        """Put a file into the project."""
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def host(self, **settings: Any) -> None:
        """Write hosts/local.toml."""
        lines = ['runtime = "local"', *(f"{k} = {json.dumps(v)}" for k, v in settings.items())]
        self.file("hosts/local.toml", "\n".join(lines) + "\n")

    def submit(self, *command: str, words: tuple[str, ...] = ()) -> str:
        """`runner submit WORDS -- COMMAND`; the run's id."""
        request = parse_submit(list(words), list(command))
        return submit.submit(self.ctx, request, lambda run: None)[0]

    def python(self, code: str, *argv: str, words: tuple[str, ...] = ()) -> str:
        """Submit a Python program given as text."""
        return self.submit("python", "-c", code, *argv, words=words)

    def ref(self, run: str) -> runs.RunRef:
        return runs.RunRef(run, "local")

    def wait(self, run: str, limit_s: float = ENDS_IN_S) -> RunOnHost:
        """The run once it has ended."""
        return wait.wait(self.ctx, [self.ref(run)], limit_s)[0]

    def status(self, run: str) -> RunOnHost:
        return status.status(self.ctx, self.ref(run))

    def cancel(self, *ids: str, now: bool = False) -> list[CancelReport]:
        return cancel_use.cancel(self.ctx, [self.ref(run) for run in ids], cancel_use.Order(now))

    def tail(self, run: str, rank: int = 0, follow: bool = True, **options: Any) -> bytes:
        pieces: list[bytes] = []
        start, lines = options.get("start"), options.get("lines")
        tail.tail(self.ctx, self.ref(run), rank, start, lines, follow, pieces.append)
        return b"".join(pieces)

    def pull(self, run: str, to: Path | None = None) -> PullReport:
        return pull.pull(self.ctx, self.ref(run), to)

    # -- what is on disk ----------------------------------------------------------------------

    def run_folder(self, run: str) -> Path:
        return self.workspace / "runs" / run

    def state(self, run: str) -> Table:
        """state.json, or {} before there is one."""
        return read(self.run_folder(run) / "state.json")

    def attempts(self, run: str) -> list[Table]:
        """exit.json of every attempt, oldest first; {} for one that has none."""
        folders = sorted((self.run_folder(run) / "attempts").iterdir(), key=lambda p: int(p.name))
        return [read(folder / "exit.json") for folder in folders]

    def causes(self, run: str) -> list[str | None]:
        """The kind of each attempt's cause; None for a good end."""
        return [(end.get("cause") or {}).get("kind") for end in self.attempts(run)]

    def log(self, run: str, rank: int = 0) -> bytes:
        path = self.workspace / "logs" / run / f"rank-{rank}.log"
        return path.read_bytes() if path.exists() else b""

    def until_logged(self, run: str, text: str, rank: int = 0, limit_s: float = 20.0) -> None:
        """Wait for a text in a rank's log."""
        wait_for(
            lambda: text.encode() in self.log(run, rank),
            limit_s,
            f"{text!r} in rank {rank}'s log",
        )

    def until(self, run: str, state: str, limit_s: float = 20.0) -> None:
        """Wait for a run's state."""
        wait_for(lambda: self.state(run).get("state") == state, limit_s, f"{run} {state}")

    # -- its processes ------------------------------------------------------------------------

    @property
    def dispatcher(self) -> int:
        """The dispatcher's pid; 0 when none lives."""
        who = read(self.workspace / ".runner/dispatcher.json")
        return int(who["pid"]) if processes.is_alive(who) else 0

    @property
    def supervisor(self) -> int:
        """supervisord's pid; 0 when none lives."""
        who = read(self.workspace / ".runner/dispatcher.json").get("supervisor")
        return int(who["pid"]) if who and processes.is_alive(who) else 0

    def born(self, run: str, attempt: int | None = None) -> Table:
        """proc.json of an attempt, the newest unless told otherwise."""
        number = attempt or int(self.state(run).get("attempt", 0))
        return read(self.run_folder(run) / "attempts" / str(number) / "proc.json")

    def launcher(self, run: str) -> int:
        """The pid of the run's launcher; waits for it."""
        born = wait_for(lambda: self.born(run), 20, f"a launcher of {run}")
        return int(born["launcher"]["pid"])

    def members(self, run: str) -> set[int]:
        """Every living process of any attempt, the launchers not among them."""
        found: set[int] = set()
        folder = self.run_folder(run) / "attempts"
        for attempt in folder.iterdir() if folder.is_dir() else ():
            born = read(attempt / "proc.json")
            if born:
                launcher = int(born["launcher"]["pid"])
                member = processes.Membership(born["mark"], born["limit"], (), [launcher])
                found |= member.find()
        return found

    def machinery(self) -> dict[int, str]:
        """Every process of this worker but the jobs': pid to command line."""
        mark = os.fsencode(f"RUNNER_WORKSPACE={self.workspace}")
        found = {}
        for pid in processes.all_pids():
            if pid == os.getpid():
                continue
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, UnicodeDecodeError):
                continue
            if mark in environ and ("/supervisord.py" in words or "-I -S" in words):
                found[pid] = words
        return {pid: found[pid] for pid in processes.living(found)}

    def kill(self, *pids: int) -> None:
        """kill -9, and wait until they are gone."""
        for pid in pids:
            assert pid > 1, f"no process to kill among {pids}"
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not processes.living(pids), 10, f"the end of {pids}")

    def close(self) -> None:
        """End all there is, in an order that lets nothing start anew, and remove the folder."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            left = self.machinery()
            order = sorted(left, key=lambda pid: "supervisord" not in left[pid])
            everything = order + [
                pid
                for run in (self.workspace / "runs").glob("[!.]*")
                for pid in self.members(run.name)
            ]
            if not everything:
                break
            for pid in everything:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        for folder in sockets.folders(paths.Workspace(str(self.workspace))):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.root, ignore_errors=True)


def read(path: Path) -> Table:
    """A record, or {}."""
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def stamps(text: bytes) -> Iterator[tuple[str, float]]:
    """(word, time) of lines `WORD TIME` that a job printed."""
    for line in text.decode().splitlines():
        word, _, moment = line.partition(" ")
        yield word, float(moment)
