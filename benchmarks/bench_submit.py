"""`runner submit` of 300 files, one of them changed, against rsync and ssh by hand.

    python benchmarks/bench_submit.py [rounds=N]            # as root: a host of the test rig's
    RUNNER_RIG_INSTANCE=3 python benchmarks/bench_submit.py # a rig of its own

The host is behind a jump host; all is on this machine, so the network costs nothing. Each side
returns when the program has been started or the run accepted:

    by hand                  rsync -a, then ssh with nohup: a connection each
    by hand, container       rsync -a, then ssh with docker exec -d, into the container runs use
    by hand, shared          as the first, over a connection that is already open
    runner submit, cold      its own shared connection was closed before
    runner submit, warm      its own shared connection is open

The runner's side goes into a container and does more: the tree is verified and kept apart for that
run, and a repeated submit makes no second run. Its connection lasts a minute, so a day's work is
mostly warm. A connection left open is not counted as CPU time of the command that opened it.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pairs  # noqa: E402
import stage  # noqa: E402
from pairs import Goal, Side, process  # noqa: E402

from tests.rig.engine import check_engine  # noqa: E402
from tests.rig.operator import Operator  # noqa: E402
from tests.rig.paths import Unavailable  # noqa: E402
from tests.rig.rig import Rig, check_hosts  # noqa: E402

FILES, SIZE_BYTES = 300, 5_000_000
HOST = "rig-gpu"
WORKSPACE = "bench"
SHARED = ["-o", "ControlMaster=auto", "-o", "ControlPersist=600"]
PROVISION_LIMIT_S = 500.0


class Tree:
    """The code that is submitted; one file changes each time."""

    def __init__(self, folder: Path) -> None:
        self.changing = stage.write_tree(folder, files=FILES, size_bytes=SIZE_BYTES)[150]
        self.text = self.changing.read_text()
        self.edits = 0

    def edit(self) -> None:
        """Change one file, as never before."""
        self.edits += 1
        self.changing.write_text(f"# edit {self.edits}\n{self.text}")


class Client:
    """The operator of the rig with a project for it."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.sockets = operator.runtime / "runner"
        self.runner("init")
        # the agents would be sent too
        shutil.rmtree(operator.project / "agents")
        (operator.project / "images.toml").write_text(
            '["rig"]\nbase = "runner-rig/base:cpu"\ntorch = "2"\ncuda = "12.4"\n'
            'driver_min = "525.60.13"\ncapabilities = ["8.0"]\n'
        )
        (operator.project / "hosts" / "gpu1.toml").write_text(
            f'ssh = "{HOST}"\nimage = "rig"\ngpus = "none"\nworkspace = "~/{WORKSPACE}"\n'
        )

    def runner(self, *words: str, limit_s: float = 120.0) -> None:
        """Run `runner WORDS…`; exits with its message when it fails."""
        done = self.operator.run([*stage.RUNNER, *words], limit_s=limit_s)
        if done.returncode != 0:
            sys.exit(f"runner {' '.join(words)}: {done.stderr.decode('utf-8', 'replace')}")

    def close_connections(self) -> None:
        """End the runner's shared connections, as a minute without a command does."""
        for socket in self.sockets.glob("*"):
            if socket.is_socket():
                self.operator.ssh("-S", str(socket), "-O", "exit", HOST)

    def open_connection(self) -> None:
        """Have the runner's shared connection open."""
        if not any(path.is_socket() for path in self.sockets.glob("*")):
            self.runner("ps", "host=gpu1")

    def container(self) -> str:
        """The name of the worker's container."""
        return self.operator.ssh(HOST, "docker ps --format '{{.Names}}'").stdout.decode().strip()


def by_hand(folder: str, start: str, options: Sequence[str] = ()) -> list[str]:
    """Copy the project to `folder` there, then run `start` there: as one process."""
    ssh = " ".join(["ssh", "-o", "BatchMode=yes", *options])
    copy = f'rsync -a --exclude=.runner --exclude=hosts -e "{ssh}" ./ {HOST}:{folder}/'
    return ["sh", "-c", f"{copy} && {ssh} {HOST} {shlex.quote(start)}"]


def in_background(folder: str) -> str:
    """How a program is left running on a host."""
    return f"cd {folder} && nohup true > log 2>&1 < /dev/null &"


@contextlib.contextmanager
def client_of_rig() -> Iterator[Client]:
    """A client of the rig that is up, or of one made for this."""
    rig = Rig()
    with rig.used_alone(), tempfile.TemporaryDirectory(prefix="rig-op-") as home:
        was_up = rig.is_up()
        try:
            rig.bring_up_docker(owned=not was_up)
            client = Client(Operator(rig, Path(home)))
            yield client
            client.close_connections()
        finally:
            if not was_up:
                rig.take_down()


def main(words: list[str]) -> None:
    """Measure and report."""
    rounds = pairs.read_rounds(words, 9)
    try:
        check_hosts()
        check_engine()
    except Unavailable as reason:
        print(f"submit: left out, {reason}")
        return
    with client_of_rig() as client:
        measure(client, rounds)


def measure(client: Client, rounds: int) -> None:
    """Provision the host, then all sides in turn."""
    client.runner("provision", "host=gpu1", limit_s=PROVISION_LIMIT_S)
    project, env = client.operator.project, client.operator.env
    tree = Tree(project)
    socket = client.operator.runtime / "by-hand"
    shared = [*SHARED, "-o", f"ControlPath={socket}"]
    submit = [*stage.RUNNER, "submit", "host=gpu1", "--", "true"]

    in_container = f"docker exec -d -w /workspace/by-hand {client.container()} true"

    def side(name: str, argv: list[str], before: Callable[[], None] = lambda: None) -> Side:
        def prepare() -> None:
            tree.edit()
            before()

        return process(name, argv, before=prepare, cwd=project, env=env)

    try:
        found = pairs.measure(
            "submit",
            [
                side("by hand", by_hand("plain", in_background("plain"))),
                side("by hand, container", by_hand(f"{WORKSPACE}/by-hand", in_container)),
                side("by hand, shared", by_hand("shared", in_background("shared"), shared)),
                side("runner submit, cold", submit, client.close_connections),
                side("runner submit, warm", submit, client.open_connection),
            ],
            rounds=rounds,
            warm_up=2,
            goals=[Goal("runner submit, cold", factor=0.6)],
        )
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            client.operator.ssh("-S", str(socket), "-O", "exit", HOST)
    pairs.report(found)


if __name__ == "__main__":
    main(sys.argv[1:])
