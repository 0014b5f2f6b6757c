"""Other people's queues to be held against: Slurm on this one machine, and task-spooler.

Their Debian packages are fetched and unpacked into a folder of the benchmark's own: nothing is
installed, no account made, no service of the system started. Slurm is one node with its three
daemons on loopback, its configuration in a temporary folder; the daemons run as children of this
process and are ended with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge", "task-spooler"]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "runner-bench"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
FETCH_LIMIT_S = 300.0
UP_LIMIT_S = 30.0
END_LIMIT_S = 10.0
LOOK_S = 0.1
MEMORY_MB = 1000

CONFIG = """\
ClusterName=bench
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdSpoolDir={folder}/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
PluginDir={plugins}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
NodeName={name} NodeAddr=127.0.0.1 CPUs={slots} RealMemory={memory} State=UNKNOWN
PartitionName=bench Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Missing(Exception):
    """Why there is nothing to be held against; the text says it."""


def fetch() -> Path:
    """The folder that holds the packages unpacked; kept for the next time. Raises Missing."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Missing("Slurm's packages are fetched as root, with apt-get")
    root = CACHE / "queues"
    if root.is_dir():
        return root
    archives, made = CACHE / "archives", CACHE / "queues.new"
    for folder in (archives / "partial", made):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
    apt += ["-o", f"Dir::Cache::archives={archives}", "--no-install-recommends"]
    try:
        # all that they depend on and this machine lacks comes with them
        _run([*apt, "update"])
        _run([*apt, "--download-only", "install", *PACKAGES])
        for archive in archives.glob("*.deb"):
            _run(["dpkg", "-x", str(archive), str(made)])
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise Missing(f"the packages of Slurm cannot be fetched: {error}") from error
    if not (made / "usr/sbin/slurmctld-wlm").exists():
        raise Missing("Slurm is installed on this machine, or is another one than Debian's")
    made.rename(root)
    shutil.rmtree(archives)
    return root


def environment(root: Path) -> dict[str, str]:
    """Variables with which the unpacked programs find what is theirs."""
    libraries = root / "usr/lib" / f"{os.uname().machine}-linux-gnu"
    return {
        "HOME": "/",
        "LANG": "C.UTF-8",
        "PATH": f"{root / 'usr/bin'}:{root / 'usr/sbin'}:{SYSTEM_PATH}",
        "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'slurm-wlm'}",
    }


class Slurm:
    """A cluster of this machine that runs `slots` jobs at a time."""

    def __init__(self, root: Path, folder: Path, slots: int, settings: str) -> None:
        self._folder = folder
        self._root = root
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.env = environment(root)
        self.env["SLURM_CONF"] = str(folder / "slurm.conf")
        for name in ("spool", "state", "munge"):
            (folder / name).mkdir(mode=0o755, parents=True)
        ports = free_ports(2)
        (folder / "slurm.conf").write_text(
            CONFIG.format(
                name=socket.gethostname().partition(".")[0],
                folder=folder,
                controller=ports[0],
                node=ports[1],
                plugins=root / "usr/lib" / f"{os.uname().machine}-linux-gnu" / "slurm-wlm",
                slots=slots,
                memory=MEMORY_MB,
            )
            + settings
        )

    def start(self) -> None:
        """Start the daemons; returns once the node takes jobs. Raises Missing."""
        munge = self._folder / "munge"
        key = munge / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        sbin = self._root / "usr/sbin"
        options = [f"--{name}={munge / name}" for name in ("socket", "pid-file", "log-file")]
        options += [f"--key-file={key}", f"--seed-file={munge / 'seed'}"]
        self._spawn([str(sbin / "munged"), "--foreground", "--force", *options])
        self._wait((munge / "socket").exists, "munged")
        self._spawn([str(sbin / "slurmctld-wlm"), "-D", "-i"])
        self._spawn([str(sbin / "slurmd-wlm"), "-D", "-d", str(sbin / "slurmstepd-wlm")])
        self._wait(self._is_idle, "the node")

    def _spawn(self, argv: Sequence[str]) -> None:
        with open(self._folder / "daemons.out", "ab") as out:
            self._daemons.append(
                subprocess.Popen(
                    argv, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/"
                )
            )

    def _is_idle(self) -> bool:
        done = subprocess.run(
            ["sinfo", "-h", "-o", "%T"], env=self.env, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() == "idle"

    def _wait(self, look: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + UP_LIMIT_S
        while not look():
            dead = [child for child in self._daemons if child.poll() is not None]
            if dead or time.monotonic() > until:
                said = (self._folder / "daemons.out").read_text(errors="replace")[-2000:]
                raise Missing(f"Slurm: {what} did not come up\n{said.strip()}")
            time.sleep(LOOK_S)

    def submit(self, *words: str) -> None:
        """`sbatch WORDS`; its output file is none."""
        _run(["sbatch", "-Q", "-o", "/dev/null", "-D", "/", *words], env=self.env)

    def waiting(self) -> int:
        """Jobs, or tasks of an array, that have not ended."""
        done = subprocess.run(
            ["squeue", "-h", "-r", "-o", "%i"],
            env=self.env,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return len(done.stdout.split())

    def close(self) -> None:
        """End the daemons, the last one first."""
        for child in reversed(self._daemons):
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(number)
                try:
                    child.wait(END_LIMIT_S)
                    break
                except subprocess.TimeoutExpired:
                    continue


@contextlib.contextmanager
def slurm(root: Path, folder: Path, slots: int, settings: str = "") -> Iterator[Slurm]:
    """A cluster that is up, with lines more in its configuration; ended after. Raises Missing."""
    cluster = Slurm(root, folder, slots, settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


class Spooler:
    """task-spooler with a server of its own, `slots` jobs at a time."""

    def __init__(self, root: Path, folder: Path, slots: int) -> None:
        self.env = environment(root)
        self.env.update(TS_SOCKET=str(folder / "tsp"), TS_MAXFINISHED="1000", TMPDIR=str(folder))
        self._tsp("-S", str(slots))

    def _tsp(self, *words: str) -> str:
        return _run(["tsp", *words], env=self.env)

    def submit(self, *argv: str) -> None:
        """Queue a command, its output kept nowhere."""
        self._tsp("-n", *argv)

    def waiting(self) -> int:
        """Commands that have not ended."""
        rows = [line.split() for line in self._tsp().splitlines()[1:]]
        return sum(row[1] in ("queued", "running") for row in rows if len(row) > 1)

    def close(self) -> None:
        """End the server."""
        self._tsp("-K")


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on just now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _run(argv: Sequence[str], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=FETCH_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        print(done.stderr.strip(), file=sys.stderr)
        done.check_returncode()
    return done.stdout
