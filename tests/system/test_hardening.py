"""What a worker's container may do, and who can reach it: seen from inside and from outside."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.listeners import beyond_loopback, listening, tried
from tests.helpers.pinned import pin_base
from tests.helpers.wait import wait_for
from tests.rig import network
from tests.rig.engine import RigEngine
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig

HOST = 'ssh = "{alias}"\nimage = "cpu"\nworkspace = "~/{workspace}"\n{more}'
TOKEN = "a-secret-of-the-job-4711"
CONTROL = 4321
"""A port that is opened on purpose: a proof that no firewall makes the others look closed."""
OURS = (22, 2222, 6006, 8888, 29400, 29500)
RANKS = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

class Frames(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, index): return torch.ones(60_000_000)

if __name__ == "__main__":
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    frames = 0
    if dist.get_rank() == 0 and "frames" in sys.argv:
        # through /dev/shm, as pixels come from loaders
        loader = DataLoader(Frames(), num_workers=1)
        frames = int(sum(batch.sum(dtype=torch.float64) for batch in loader))
    status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
    keys = ("CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp")
    said = {key: status[key].strip() for key in keys}
    said.update(sum=total.item(), frames=frames, uid=os.getuid())
    said["secret"] = len(open(os.environ["RUNNER_SECRETS"] + "/TOKEN").read())
    said["tables"] = open("/proc/net/tcp").read() + open("/proc/net/tcp6").read()
    print("said " + json.dumps(said), flush=True)
    while not os.path.exists("/workspace/go"):
        time.sleep(0.1)
    dist.barrier()
"""


class Place:
    """A provisioned host and its container."""

    def __init__(self, operator: Operator, docker: RigEngine, name: str, workspace: Path) -> None:
        self.operator = operator
        self.docker = docker
        self.name = name
        self.workspace = workspace
        labels = "label=org.runner.worker"
        ids = docker.docker("ps", "-q", "--filter", labels).stdout.split()
        shown = json.loads(docker.docker("inspect", *ids).stdout)
        mine = [each for each in shown if str(workspace) in json.dumps(each["Mounts"])]
        assert len(mine) == 1, [each["Name"] for each in shown]
        self.inspected: dict[str, Any] = mine[0]
        self.container = self.inspected["Id"]

    def run(self, *words: str, status: int = 0, **options: object) -> str:
        done = self.operator.runner(*words, limit_s=400, **options)
        assert done.returncode == status, (words, done.stdout, done.stderr)
        return done.stdout.decode()

    def inside(self, *argv: str, check: bool = True) -> str:
        return self.docker.docker("exec", self.container, *argv, check=check).stdout

    def sockets(self) -> set[tuple[str, int]]:
        return listening(self.inside("cat", "/proc/net/tcp", "/proc/net/tcp6"))

    def two_ranks(self, *more: str) -> tuple[str, dict[str, Any]]:
        """A live run of two ranks, and what its rank 0 said."""
        words = [f"host={self.name}", "nproc=2", "gpus=0", "secret.TOKEN", "--", "python3"]
        env = {**self.operator.env, "TOKEN": TOKEN}
        run_id = self.run("submit", *words, "ranks.py", *more, env=env).strip()
        log = self.workspace / "logs" / run_id / "rank-0.log"
        try:
            wait_for(lambda: log.exists() and "said " in log.read_text(), 300, "two ranks to speak")
        except AssertionError as error:
            raise AssertionError(log.read_text() if log.exists() else "no log") from error
        line = next(each for each in log.read_text().splitlines() if each.startswith("said "))
        return run_id, json.loads(line[5:])

    def let_go(self, run_id: str) -> None:
        (self.workspace / "go").write_text("")
        self.run("wait", run_id)
        (self.workspace / "go").unlink()


@pytest.fixture(scope="module")
def make_place(
    make_operator: Callable[[], Operator], jump_host: RigHost, docker: RigEngine
) -> Iterator[Callable[..., Place]]:
    operator = make_operator()
    assert operator.runner("init").returncode == 0
    pin_base(operator.project, docker)
    (operator.project / "ranks.py").write_text(RANKS)
    (operator.project / "hosts").mkdir(exist_ok=True)

    def make(name: str, more: str = "") -> Place:
        workspace = f"hardening-{name}"
        text = HOST.format(alias=jump_host.alias, workspace=workspace, more=more)
        (operator.project / "hosts" / f"{name}.toml").write_text(text)
        done = operator.runner("provision", f"host={name}", limit_s=400)
        assert done.returncode == 0, done.stderr.decode()
        return Place(operator, docker, name, jump_host.home / workspace)

    yield make
    docker.remove_containers()


@pytest.fixture(scope="module")
def place(make_place: Callable[..., Place]) -> Place:
    return make_place("box", '[limits]\nmemory = "6g"\n')


@pytest.fixture(scope="module")
def busy(place: Place) -> Iterator[tuple[Place, str, dict[str, Any]]]:
    """The same with a run of two ranks, Jupyter and TensorBoard at work in it."""
    ctl = ["supervisorctl", "-s", "unix:///run/runner/supervisor.sock", "start"]
    place.inside(*ctl, "jupyter", "tensorboard")
    run_id, said = place.two_ranks("frames")
    wait_for(lambda: "jupyter.sock" in place.inside("ls", "/run/runner"), 60, "Jupyter's socket")
    wait_for(lambda: "tensorboard.sock" in place.inside("ls", "/run/runner"), 60, "TensorBoard's")
    yield place, run_id, said
    place.let_go(run_id)


def test_what_docker_says_of_it(place: Place, rig: Rig) -> None:
    settings, config = place.inspected["HostConfig"], place.inspected["Config"]
    uid = rig.gpu.spec.uid
    assert {
        "drop": settings["CapDrop"],
        "add": settings["CapAdd"] or [],
        "security": settings["SecurityOpt"],
        "root": settings["ReadonlyRootfs"],
        "privileged": settings["Privileged"],
        "pids": settings["PidsLimit"],
        "memory": settings["Memory"],
        "shm": settings["ShmSize"],
        "restart": settings["RestartPolicy"]["Name"],
        "devices": settings["Devices"] or [],
        "namespaces": [settings[name] for name in ("PidMode", "UTSMode", "UsernsMode")],
        "ipc": settings["IpcMode"],
        "published": settings["PortBindings"] or {},
        "ports": {key for key, value in place.inspected["NetworkSettings"]["Ports"].items()},
        "user": config["User"],
        "stop": config["StopTimeout"],
    } == {
        "drop": ["ALL"],
        "add": [],
        "security": ["no-new-privileges"],
        "root": True,
        "privileged": False,
        "pids": 8192,
        "memory": 6 * 10**9,
        "shm": 8 * 10**9,
        "restart": "always",
        "devices": [],
        "namespaces": ["", "", ""],
        "ipc": "private",
        "published": {},
        "ports": set(),
        "user": f"{uid}:{uid}",
        "stop": 120,
    }
    tmpfs = settings["Tmpfs"]
    assert set(tmpfs) == {"/tmp", "/run", "/home/runner"}
    assert all("nosuid" in text and "nodev" in text for text in tmpfs.values())
    mounts = {each["Destination"]: each["RW"] for each in place.inspected["Mounts"]}
    writable = {name for name, is_writable in mounts.items() if is_writable}
    assert writable == {"/workspace", "/leases"}
    assert set(mounts) - writable == {"/etc/runner/worker", "/etc/runner/keys"}
    stack = {each["Name"]: each["Hard"] for each in settings["Ulimits"] or []}
    # where the engine itself may not raise them they are left as they are
    assert stack in ({"memlock": -1, "stack": 64 << 20}, {}), stack


def test_what_a_run_may_do_in_it(busy: tuple[Place, str, dict[str, Any]], rig: Rig) -> None:
    place, _, said = busy
    assert said["sum"] == 2.0 and said["frames"] == 60_000_000
    assert {said[key] for key in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (said["NoNewPrivs"], said["Seccomp"], said["uid"]) == ("1", "2", rig.gpu.spec.uid)
    for path in ("/x", "/usr/x", "/etc/runner/keys/x", "/etc/runner/worker/x", "/opt/runner/x"):
        told = place.docker.docker("exec", place.container, "touch", path, check=False)
        assert "Read-only file system" in told.stderr, path


def test_a_secret_shows_nowhere(busy: tuple[Place, str, dict[str, Any]]) -> None:
    place, _, said = busy
    assert said["secret"] == len(TOKEN)
    token = place.inside("sh", "-c", "cat /workspace/.runner/places/*/jupyter_token "
                         "/workspace/.runner/jupyter_token 2>/dev/null; true").split()  # fmt: skip
    shown = place.inside("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "jupyterlab" in shown and "ranks.py" in shown and token
    inspected = json.dumps(json.loads(place.docker.docker("inspect", place.container).stdout))
    for secret in (TOKEN, *token):
        assert secret not in shown and secret not in inspected


def test_nobody_can_reach_it(
    busy: tuple[Place, str, dict[str, Any]], rig: Rig, docker: RigEngine
) -> None:
    place, _, _ = busy
    before = place.sockets()
    assert before and not beyond_loopback(before), before
    address = place.inspected["NetworkSettings"]["IPAddress"]
    ports = {*OURS, *(port for _, port in before), CONTROL}
    opened = f"import socket as s, time; a = s.create_server(('0.0.0.0', {CONTROL}))"
    opened += "; time.sleep(60)"
    docker.docker("exec", "--detach", place.container, "python3", "-c", opened)
    wait_for(lambda: ("0.0.0.0", CONTROL) in place.sockets(), 20, "the control port")

    def container(argv: Sequence[str]) -> str:
        return docker.docker("run", "--rm", docker.base_image, *argv).stdout

    with open_ways(rig):
        seen = {
            "another container": tried(container, address, ports),
            "the host": tried(lambda argv: rig.gpu.run(argv).stdout, address, ports),
            "a neighbour": tried(lambda argv: rig.login.run(argv).stdout, address, ports),
        }
    closed = dict.fromkeys(ports, "refused")
    assert seen == {who: {**closed, CONTROL: "connected"} for who in seen}
    # and what is only the host's own: nothing was published on its loopback
    told = tried(lambda argv: rig.gpu.run(argv).stdout, "127.0.0.1", ports - {22})
    assert set(told.values()) == {"refused"}


@contextlib.contextmanager
def open_ways(rig: Rig) -> Iterator[None]:
    """Docker's own firewall open, and a neighbour on the host's link with a route to its bridge."""
    with network.neighbour(rig.paths.instance):
        rig.gpu.run(["iptables", "-w", "-P", "FORWARD", "ACCEPT"])
        try:
            yield
        finally:
            rig.gpu.run(["iptables", "-w", "-P", "FORWARD", "DROP"])


@pytest.mark.parametrize("kind", ["none", "host"])
def test_two_ranks_on_the_other_networks(
    kind: str, make_place: Callable[..., Place], rig: Rig
) -> None:
    tables = ["cat", "/proc/net/tcp", "/proc/net/tcp6"]
    before = listening(rig.gpu.run(tables).stdout)
    place = make_place(kind, f'network = "{kind}"\n')
    assert place.inspected["HostConfig"]["NetworkMode"] == kind
    run_id, said = place.two_ranks()
    try:
        found = listening(said["tables"]) - (before if kind == "host" else set())
        assert found and not beyond_loopback(found), found
        assert said["sum"] == 2.0
    finally:
        place.let_go(run_id)


def test_all_in_the_workspace_is_its_owners(place: Place, rig: Rig) -> None:
    run_id = place.run("submit", "host=box", "--wait", "--", "sh", "-c", "echo x > made").strip()
    place.run("pull", run_id)
    paths = [place.workspace, *place.workspace.rglob("*")]
    assert any(path.name == "made" for path in paths)
    others = {str(path) for path in paths if path.lstat().st_uid != rig.gpu.spec.uid}
    assert others == set()
