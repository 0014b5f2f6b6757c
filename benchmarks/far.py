"""A host of the test rig's at three distances, for benchmarks: `near`, `20ms` and `100ms`.

All three are the same host and the same worker in its container, reached past the jump host over
links with that round trip and 1 Gbit/s (`tests/rig/ways.py`). The client is the wheel in an
environment of its own, or the Python that RUNNER_BENCH_PYTHON names. What was made goes at the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pairs  # noqa: E402
import stage  # noqa: E402

from tests.rig import ways  # noqa: E402
from tests.rig.engine import check_engine  # noqa: E402
from tests.rig.operator import Operator  # noqa: E402
from tests.rig.paths import RigError, Unavailable  # noqa: E402
from tests.rig.rig import Rig, check_hosts  # noqa: E402
from tests.rig.ways import WAYS, Way  # noqa: E402

WORKSPACE = "bench"
SSH = ["ssh", "-o", "BatchMode=yes"]
PROVISION_LIMIT_S = 500.0
PINS = """["rig"]
base = "runner-rig/base:cpu"
torch = "2"
cuda = "12.4"
driver_min = "525.60.13"
capabilities = ["8.0"]
"""


class Client:
    """An operator with a project, and the host provisioned."""

    def __init__(self, rig: Rig, operator: Operator, python: str) -> None:
        self.rig = rig
        self.operator = operator
        self.python = python
        self.project = operator.project
        self.env = operator.env
        self.sockets = operator.runtime / "runner"
        self.runner("init")
        shutil.rmtree(self.project / "agents")  # they would be sent too
        (self.project / "images.toml").write_text(PINS)
        for way in WAYS:
            (self.project / "hosts" / f"{way.name}.toml").write_text(
                f'ssh = "{way.alias}"\nimage = "rig"\ngpus = "none"\n'
                f'workspace = "~/{WORKSPACE}"\nslots = 8\n'
            )
        self.runner("provision", f"host={WAYS[0].name}", limit_s=PROVISION_LIMIT_S)
        for way in WAYS[1:]:  # the same worker; this says so
            self.runner("provision", f"host={way.name}", limit_s=PROVISION_LIMIT_S)

    def argv(self, *words: str) -> list[str]:
        """`runner WORDS…` as a process."""
        return [self.python, "-m", "runner", *words]

    def runner(self, *words: str, limit_s: float = 120.0) -> str:
        """What `runner WORDS…` prints. Raises Failed, with what it said."""
        done = self.operator.run(self.argv(*words), limit_s=limit_s)
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip()
            raise pairs.Failed(f"runner {' '.join(words)}: exit {done.returncode}\n{said}")
        return done.stdout.decode()

    def submit(self, way: Way, *argv: str, wait: bool = False) -> str:
        """A new run's id."""
        options = ["--wait"] if wait else []
        return self.runner("submit", f"host={way.name}", *options, "--", *argv).strip()

    def popen(self, argv: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
        """Start a process as the operator; the caller ends it (`ended`)."""
        return self.operator.popen(argv, **options)

    def close_connections(self) -> None:
        """End the runner's shared connections, as a minute without a command does."""
        for socket in self.sockets.glob("*"):
            if socket.is_socket():
                self.operator.ssh("-S", str(socket), "-O", "exit", "any")

    def open_connection(self, way: Way) -> None:
        """Have the runner's shared connection open: what a command a moment ago leaves."""
        self.runner("ps", f"host={way.name}")

    @property
    def home(self) -> Path:
        """The account's home on the host, seen from here."""
        return self.rig.gpu.home

    @property
    def workspace(self) -> Path:
        """The worker's files, seen from here."""
        return self.home / WORKSPACE

    def container(self) -> str:
        """The name of the worker's container."""
        listed = self.rig.engine.docker("ps", "--format", "{{.Names}}").stdout.split()
        return next(name for name in listed if name.startswith("runner-"))

    def programs(self) -> set[int]:
        """Pids, as numbered here, of the worker programs that serve conversations.

        They are what `docker exec` starts: in the container, and children of nobody in it.
        """
        mark = f"/rig{self.rig.paths.instance}/"
        inside = {pid for pid in _pids() if mark in _proc(pid, "cgroup")}
        return {
            pid
            for pid in inside
            if _proc(pid, "comm").startswith("python") and _parent(pid) not in inside
        }

    def new_programs(self, before: set[int], limit_s: float = 30.0) -> set[int]:
        """Those that came since `before`, once there is one."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            found = self.programs() - before
            if found:
                return found
            time.sleep(0.02)
        raise pairs.Failed("no worker program was started")


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _fields(pid: int) -> list[str]:
    """What follows the name in a process's `stat`; empty once it is gone."""
    return _proc(pid, "stat").rpartition(")")[2].split()


def _parent(pid: int) -> int:
    fields = _fields(pid)
    return int(fields[1]) if fields else 0


def _proc(pid: int, name: str) -> str:
    """A file of a process; empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def cpu_s(pid: int) -> float:
    """CPU seconds a process used so far, and children it waited for; 0 once it is gone."""
    fields = _fields(pid)
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def peak_mib(pid: int) -> float:
    """The most memory a process held (VmHWM); 0 once it is gone."""
    for line in _proc(pid, "status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


def family(pid: int) -> set[int]:
    """A process and all below it."""
    parents = {each: _parent(each) for each in _pids()}
    found, before = {pid}, set[int]()
    while found != before:
        before = set(found)
        found |= {each for each, parent in parents.items() if parent in found}
    return found


@contextlib.contextmanager
def ended(*children: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens meanwhile, these processes are ended afterwards."""
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()


@contextlib.contextmanager
def python() -> Iterator[str]:
    """The interpreter of an environment with the wheel, or the one asked for."""
    chosen = os.environ.get("RUNNER_BENCH_PYTHON")
    if chosen:
        yield chosen
        return
    with tempfile.TemporaryDirectory(prefix="runner-wheel-") as folder:
        yield str(stage.install(Path(folder)))


@contextlib.contextmanager
def client() -> Iterator[Client]:
    """A client of the rig that is up, or of one made for this."""
    rig = Rig()
    with contextlib.ExitStack() as stack:  # each is undone, whatever becomes of the others
        stack.enter_context(rig.used_alone())
        interpreter = stack.enter_context(python())
        home = Path(tempfile.mkdtemp(prefix="rig-op-"))
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        if rig.is_up():
            if not rig.ways:
                stack.callback(rig.take_down_ways)
            stack.callback(shutil.rmtree, rig.gpu.home / WORKSPACE, ignore_errors=True)
            stack.callback(rig.engine.remove_containers)
        else:
            stack.callback(rig.take_down)
        rig.bring_up_docker(owned=not rig.is_up())
        rig.bring_up_ways()
        made = Client(rig, Operator(rig, home), interpreter)
        stack.callback(made.close_connections)
        yield made


def run(
    name: str, words: Sequence[str], rounds: int, measure: Callable[[Client, int], None]
) -> int:
    """A benchmark's `main`: measure with a client, or say why not."""
    rounds = pairs.read_rounds(words, rounds)
    try:
        check_hosts()
        check_engine()
        ways.check_ways()
        if shutil.which("rsync") is None:
            raise Unavailable("rsync is not installed")
    except Unavailable as reason:
        print(f"{name}: left out, {reason}")
        return 0
    try:
        with client() as made:
            measure(made, rounds)
    except (pairs.Failed, RigError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    return 0
