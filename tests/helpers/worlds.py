"""The two places where faults are tried: a `local` worker, and one in a container of a rig host."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import processes
import records

from runner.app import submit
from runner.app.provision import provision
from runner.app.runs import RunRef
from runner.spec import parse_submit
from tests.helpers.local_worker import Heard, LocalWorker, Table
from tests.helpers.trained import Trained, lay_job
from tests.helpers.wait import wait_for
from tests.rig.engine import RigEngine
from tests.rig.operator import Operator
from tests.rig.rig import Rig

CONTAINER_HOST = "gpu1"
IMAGES = """
[cpu]
base = "runner-rig/base:cpu"
torch = "2.13.0"
cuda = "none"
driver_min = "525.60.13"
"""


class World(LocalWorker):
    """A worker of one slot; its processes are known by the pids that this machine gives them."""

    is_container = False

    def __init__(self, set_env: Callable[[str, str], None]) -> None:
        super().__init__(set_env)
        self.outside, self.inside = self.root, str(self.root)
        self.lay()

    def lay(self) -> None:
        self.host(slots=1)
        lay_job(self)

    def submit_job(self, job: str, *words: str) -> str:
        """`runner submit job=JOB WORDS`; the run's id."""
        request = parse_submit([f"job={job}", *words], None)
        return submit.submit(self.ctx, request, lambda run: None)[0]

    def train(self, *words: str, nproc: int = 1) -> Trained:
        """A run of the job under test."""
        return Trained(self, self.submit_job, self.outside, self.inside, nproc, words)

    def warm_up(self) -> None:
        """Have the worker up, with nothing on it."""
        if not self.dispatcher:
            self.wait(self.submit("true"))

    def pid_of(self, who: Table) -> int:
        """This machine's pid of a process named in its own pid namespace; 0: gone."""
        for pid in processes.all_pids():
            if in_namespace(pid) == (who["ns"], who["pid"]) and processes.living([pid]):
                return pid
        return 0

    def launcher_if_any(self, run: str) -> int:
        """The pid of the newest attempt's launcher; 0 when none lives."""
        born = self.born(run)
        return self.pid_of(born["launcher"]) if born else 0

    def is_one_worker(self) -> bool:
        """Whether exactly one supervisord and one dispatcher of the workspace live."""
        found = self.machinery()
        supervisors = {pid for pid, words in found.items() if "/supervisord.py" in words}
        # launchers are forked by the dispatcher and have its command line, but another parent
        dispatchers = {pid for pid in found if parent_of(pid) in supervisors}
        alone = len(dispatchers) == len(supervisors) == 1
        return alone and dispatchers == {self.dispatcher} and supervisors == {self.supervisor}

    def everything(self, run: str) -> set[int]:
        """All processes of the worker, the run's too."""
        return set(self.machinery()) | self.members(run)

    def held_leases(self) -> list[str]:
        """Leases that some process holds."""
        paths = sorted(self.leases.glob("slot-*"))
        return [path.name for path in paths if records.is_locked(str(path), alone=False)]


class ContainerWorld(World):
    """A worker in a container of the rig's gpu host, provisioned as a person does it."""

    is_container = True

    def __init__(self, operator: Operator, rig: Rig, set_env: Callable[[str, str], None]) -> None:
        self.operator = operator
        self.rig = rig
        self.engine: RigEngine = rig.engine
        self.root = operator.home
        self.project = operator.project
        self.set_env = set_env
        self.report = Heard()
        self.uid = rig.gpu.spec.uid
        home = rig.gpu.home
        self.workspace = home / "faults"
        self.leases = home / ".local/state/runner/leases"
        self.outside, self.inside = self.workspace / "outside", "/workspace/outside"
        (self.project / "runner.toml").write_text('name = "p"\nid = "p-1"\n')
        self.lay()
        self.container = provision(self.ctx, CONTAINER_HOST, None, False).container
        self.outside.mkdir(exist_ok=True)
        self.outside.chmod(0o777)

    def lay(self) -> None:
        (self.project / "images.toml").write_text(IMAGES)
        text = 'ssh = "rig-gpu"\nimage = "cpu"\nworkspace = "~/faults"\nslots = 1\n'
        self.file(f"hosts/{CONTAINER_HOST}.toml", text)
        lay_job(self)

    def submit_job(self, job: str, *words: str) -> str:
        return super().submit_job(job, f"host={CONTAINER_HOST}", *words)

    def submit(self, *command: str, words: tuple[str, ...] = ()) -> str:
        return super().submit(*command, words=(f"host={CONTAINER_HOST}", *words))

    def ref(self, run: str) -> RunRef:
        return RunRef(run, CONTAINER_HOST)

    def warm_up(self) -> None:
        """Wait for what comes back by itself."""

        def is_up() -> bool:
            locks = (self.workspace / ".runner/places").glob("*/dispatcher.lock")
            return any(records.is_locked(str(lock)) for lock in locks) and self.is_one_worker()

        wait_for(is_up, 60, "the container's one dispatcher")

    # -- its processes ------------------------------------------------------------------------

    def contained(self) -> dict[int, str]:
        """Every process in a container of the account: pid to command line."""
        outside = in_namespace(self.rig.gpu.init_pid)[0]
        found = {}
        for pid in processes.all_pids():
            try:
                if os.stat(f"/proc/{pid}").st_uid != self.uid:
                    continue
                if os.stat(f"/proc/{pid}/ns/pid").st_ino == outside:
                    continue
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            found[pid] = words.decode("utf-8", "replace")
        return {pid: found[pid] for pid in processes.living(found)}

    def machinery(self) -> dict[int, str]:
        found = self.contained()
        ends = (" dispatcher ", "/supervisord.py ", "worker supervise ")
        return {pid: words for pid, words in found.items() if any(end in words for end in ends)}

    @property
    def dispatcher(self) -> int:
        supervisor = self.supervisor
        found = [p for p, w in self.machinery().items() if " dispatcher " in w]
        return next((pid for pid in found if parent_of(pid) == supervisor), 0)

    @property
    def supervisor(self) -> int:
        found = [pid for pid, words in self.machinery().items() if "/supervisord.py " in words]
        return min(found, default=0)

    def launcher(self, run: str) -> int:
        born = wait_for(lambda: self.born(run), 20, f"a launcher of {run}")
        return self.pid_of(born["launcher"])

    def members(self, run: str) -> set[int]:
        mark = f"{processes.MARK}={run}.".encode()
        found = set()
        for pid in self.contained():
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(item.startswith(mark) for item in environ):
                found.add(pid)
        return found

    def everything(self, run: str) -> set[int]:
        return set(self.contained())

    def close(self) -> None:
        self.engine.remove_containers()
        # a container that its engine has forgotten is left to us
        for pid in self.contained():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def in_namespace(pid: int) -> tuple[int, int]:
    """(inode of its pid namespace, its pid there); zeros when it is gone."""
    try:
        inode = os.stat(f"/proc/{pid}/ns/pid").st_ino
        with open(f"/proc/{pid}/status") as file:
            line = next(line for line in file if line.startswith("NSpid:"))
    except (OSError, StopIteration):
        return 0, 0
    return inode, int(line.split()[-1])


def parent_of(pid: int) -> int:
    return (processes.read_stat(pid) or (0, 0, ""))[0]
