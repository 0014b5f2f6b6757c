"""`doctor` against hosts in which one thing each was broken: it is found, named, and no other.

What is broken is real where it can be: keys, modes, start-up files, disks, cards, containers. What
this machine cannot have (a systemd, a newer driver) is played by a program first on the PATH.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.app import doctor as use
from runner.doctor.findings import Check, HostHealth
from tests.helpers.become import become
from tests.helpers.desk import Desk
from tests.helpers.wait import wait_for
from tests.rig.engine import RigEngine
from tests.rig.gpus import FakeGpus
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig

PINS = """
[old-cuda]
base = "runner-rig/base:old-cuda"
torch = "2.13.0"
cuda = "11.8"
driver_min = "450.80.02"
capabilities = ["8.6"]

[new-cuda]
base = "runner-rig/base:new-cuda"
torch = "2.13.0"
cuda = "12.4"
driver_min = "525.60.13"
capabilities = ["8.0", "8.6"]
"""
BARE = {"worker", "live-restore", "docker-root"}
"""What is said of a host that was not provisioned yet, and has nothing wrong with it."""
USUAL = {"live-restore", "docker-root", "torch-cuda"}
"""What is said of one whose worker is up; the base image's torch is built without CUDA."""


@dataclass
class World:
    """What a plant may break; `undo` is done afterwards, the last one first."""

    desk: Desk
    rig: Rig
    cards: FakeGpus
    undo: contextlib.ExitStack

    @property
    def operator(self) -> Operator:
        return self.desk.operator

    @property
    def gpu(self) -> RigHost:
        return self.rig.gpu

    def write(self, host: RigHost, name: str, text: str) -> None:
        """A file in a host's home, for as long as the plant lasts."""
        path = host.home / name
        path.write_text(text)
        self.undo.callback(path.unlink)

    def program(self, host: RigHost, name: str, text: str) -> None:
        """A program that comes before the host's own of that name."""
        path = host.bin / name
        before = path.read_bytes() if path.exists() else None
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

        def put_back() -> None:
            path.unlink()
            if before is not None:
                path.write_bytes(before)
                path.chmod(0o755)

        self.undo.callback(put_back)

    def mount(self, host: RigHost, path: str, options: str) -> None:
        """A small disk at a place of the host's."""
        argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", path]
        host.run(["mkdir", "-p", path], as_user=True)
        host.run(argv)
        self.undo.callback(host.run, ["umount", "-l", path])


def open_key(world: World) -> None:
    (world.operator.ssh_folder / "id_ed25519").chmod(0o644)


def locked_key(world: World) -> None:
    key = world.operator.ssh_folder / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", key], check=True)


def open_home(world: World) -> None:
    keys = world.rig.plain.home / ".ssh" / "authorized_keys"
    keys.chmod(0o666)
    world.undo.callback(keys.chmod, 0o600)


def other_host_key(world: World) -> None:
    world.operator.trust_wrongly(world.rig.plain)


def silent_host(world: World) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    world.undo.callback(listener.close)
    world.desk.write("mute", f'ssh = "ssh://me@127.0.0.1:{listener.getsockname()[1]}"\n')


def loud_shell(world: World) -> None:
    world.write(world.gpu, ".bashrc", "echo HELLO; printf x >&2\n")


def docker_refused(world: World) -> None:
    world.desk.write("plain", 'ssh = "rig-plain"\n')


def docker_hangs(world: World) -> None:
    world.program(world.gpu, "docker", "#!/bin/sh\nexec sleep 300\n")


def docker_down(world: World) -> None:
    world.program(
        world.gpu, "docker", "#!/bin/sh\nexec /usr/bin/docker -H unix:///run/none.sock $@\n"
    )


def no_toolkit(world: World) -> None:
    _docker_says(world, 's/"nvidia":{[^}]*},*//')


def systemd_cgroups(world: World) -> None:
    _docker_says(world, 's/"CgroupDriver":"[a-z]*"/"CgroupDriver":"systemd"/')


def _docker_says(world: World, edit: str) -> None:
    before = (world.gpu.bin / "docker").read_text().splitlines()[-1].replace('"$@"', "")
    real = before.removeprefix("exec ").strip() or "/usr/bin/docker"
    script = f'#!/bin/sh\nif [ "$1" = info ]; then {real} "$@" | sed \'{edit}\'; exit; fi\n'
    world.program(world.gpu, "docker", f'{script}exec {real} "$@"\n')


def old_driver(world: World) -> None:
    world.cards.set_cards(2, driver_version="470.82.01")


def new_card(world: World) -> None:
    world.cards.set_cards(1, name="NVIDIA RTX 5090", compute_cap="12.0")
    world.desk.write(more="", text='ssh = "rig-gpu"\nimage = "new-cuda"\n#')


def driver_replaced(world: World) -> None:
    world.cards.fail("Failed to initialize NVML: Driver/library version mismatch")


def driver_hangs(world: World) -> None:
    world.cards.slow_down(300)


def sick_card(world: World) -> None:
    world.cards.set_cell(1, "memory.used", "[GPU requires reset]")


def split_card(world: World) -> None:
    world.cards.set_cell(0, "mig.mode.current", "Enabled")


def card_taken(world: World) -> None:
    world.cards.hold(1, 9000)


def missing_card(world: World) -> None:
    world.desk.write(more="gpus = [0, 4]\n")


def full_disk(world: World) -> None:
    world.mount(world.gpu, f"{world.gpu.home}/runner", f"size=50m,uid={world.gpu.spec.uid}")


def no_inodes(world: World) -> None:
    options = f"size=8g,nr_inodes=40,uid={world.gpu.spec.uid}"
    world.mount(world.gpu, f"{world.gpu.home}/runner", options)


def read_only_disk(world: World) -> None:
    world.mount(world.gpu, f"{world.gpu.home}/runner", f"ro,size=8g,uid={world.gpu.spec.uid}")


def clock_behind(world: World) -> None:
    world.program(world.gpu, "date", '#!/bin/sh\nexec /bin/date -d "-2 hours" "$@"\n')


def small_shm(world: World) -> None:
    world.desk.write(more='[limits]\nshm = "64m"\n')


@dataclass(frozen=True)
class Plant:
    """A thing that is broken, and what is to be said of it."""

    do: Callable[[World], None]
    id: str
    text: str
    fix: str
    host: str = "gpu1"
    state: str = "fault"


PLANTED = (
    Plant(open_key, "key-mode", "is open to others (mode 0644)", "  chmod 600 ", "plain"),
    Plant(locked_key, "key-locked", "has a passphrase, and no agent", "  ssh-add ", "plain"),
    Plant(open_home, "login", "key refused for rig-plain", "  chmod go-w ~ ~/.ssh", "plain"),
    Plant(other_host_key, "host-key", "HOST KEY CHANGED", "  ssh-keygen -R ", "plain"),
    Plant(
        loud_shell,
        "shell-noise",
        "~/.bashrc prints at each login: HELLO",
        "  case $- in",
        state="note",
    ),
    Plant(
        docker_refused,
        "docker-rights",
        "rig-plain may not use Docker",
        "  sudo usermod -aG docker",
        "plain",
    ),
    Plant(docker_down, "docker", "Docker does not run", "  sudo systemctl start docker"),
    Plant(docker_hangs, "docker", "does not answer within 5 s", "  sudo systemctl restart docker"),
    Plant(
        no_toolkit,
        "toolkit",
        "Docker cannot give a container the GPUs",
        "  sudo nvidia-ctk runtime",
    ),
    Plant(
        systemd_cgroups,
        "cgroup-driver",
        "daemon-reload",
        "  sudo nvidia-ctk system create",
        state="note",
    ),
    Plant(
        old_driver,
        "driver",
        "470.82.01; image cpu needs 525.60.13",
        "  runner provision host=gpu1 image=old-cuda",
    ),
    Plant(
        new_card, "capability", "no code for GPU 0 (NVIDIA RTX 5090, capability 12.0", "Blackwell"
    ),
    Plant(driver_replaced, "nvidia-smi", "version mismatch", "restart the machine"),
    Plant(driver_hangs, "nvidia-smi", "does not answer within 5 s", "  sudo dmesg"),
    Plant(
        sick_card, "gpu-health", "GPU 1 is ill: nvidia-smi says [GPU requires reset]", "gpus = [0]"
    ),
    Plant(split_card, "mig", "GPU 0 is split", "  sudo nvidia-smi -i 0 -mig 0"),
    Plant(card_taken, "gpu-users", "in use by others: GPU 1 ", "runs wait", state="note"),
    Plant(missing_card, "cards", "it has no GPU 4 (it has 2)", "gpus in hosts/gpu1.toml"),
    Plant(full_disk, "disk", "52 MB free of 52 MB, a run needs 1 GB", "  runner gc host=gpu1"),
    Plant(no_inodes, "inodes", "free of 40", "  runner gc host=gpu1"),
    Plant(read_only_disk, "workspace", "read-only", 'workspace = "/scratch'),
    Plant(clock_behind, "clock", "2h00m behind ours", "  sudo timedatectl", state="note"),
    Plant(small_shm, "shm", "of shared memory; NCCL", '  shm = "8g"', state="note"),
)


@pytest.fixture
def world(
    operator: Operator,
    rig: Rig,
    jump_host: RigHost,
    docker: RigEngine,
    fake_gpus: FakeGpus,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[World]:
    become(operator, monkeypatch)
    desk = Desk(operator, docker)
    with (operator.project / "images.toml").open("a") as file:
        file.write(PINS)
    desk.write("plain", 'ssh = "rig-plain"\n')
    desk.clear(jump_host)
    with contextlib.ExitStack() as undo:
        yield World(desk, rig, fake_gpus, undo)
    desk.clear(jump_host)


def look(world: World, host: str = "gpu1") -> HostHealth:
    (health,) = use.doctor(world.desk.ctx, host)
    return health


def told(health: HostHealth) -> dict[str, Check]:
    """Faults and notes by their ids."""
    found = [check for check in health.checks if check.state in ("fault", "note")]
    assert len({check.id for check in found}) == len(found)
    return {check.id: check for check in found}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.do.__name__)
def test_what_is_broken_is_found_and_nothing_else(world: World, plant: Plant) -> None:
    plant.do(world)
    health = look(world, plant.host)
    found = told(health)
    assert set(found) - BARE == {plant.id}
    check = found[plant.id]
    assert check.state == plant.state
    assert plant.text in check.text
    assert any(plant.fix in line for line in check.fix), check.fix


def test_a_host_that_says_nothing_is_given_up_in_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent_host(world)
    assert use.LIMIT_S < 28
    # a client's own patience, and its end with a conversation under way
    config = world.operator.ssh_config
    before = config.read_text()
    config.write_text(before + "    ConnectTimeout 4\n")
    done = world.operator.runner("doctor", "host=mute", "--json", limit_s=60)
    (host,) = json.loads(done.stdout)["hosts"]
    assert done.returncode == 3 and host["contact"] == {"state": "unreachable"}
    assert [check["state"] for check in host["checks"]].count("fault") == 1
    # a client that would wait longer than doctor does
    config.write_text(before + "    ConnectTimeout 300\n")
    monkeypatch.setattr(use, "LIMIT_S", 3.0)
    (check,) = told(look(world, "mute")).values()
    assert check.text == "no answer within 3 s" and check.id == "login"


def test_a_worker_is_tried_and_what_it_misses_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = world.desk
    container = desk.provision().container
    healthy = look(world)
    slow = {
        check.id for check in healthy.checks if check.state == "note" and "within" in check.text
    }
    assert set(told(healthy)) <= USUAL | slow and healthy.faults == 0
    if not slow:
        well = {check.id: check.text for check in healthy.checks if check.state == "ok"}
        assert well["all-reduce"] == "all-reduce (gloo, 2 ranks)"
        assert well["torch"].startswith("torch 2.13.0")
    # once is enough: what follows is about other things
    monkeypatch.setattr(use, "_PROBE_S", 1.0)

    def finds(id: str, text: str, fix: str) -> None:
        found = told(look(world))
        assert set(found) - USUAL == {id}, found
        assert text in found[id].text and any(fix in line for line in found[id].fix)

    done = world.operator.runner("drain", "host=gpu1")
    assert done.returncode == 0
    finds("drained", "nothing new starts there", "  runner undrain host=gpu1")
    world.operator.runner("undrain", "host=gpu1")

    world.cards.set_cards(3)
    finds("gpu-count", "shows 3 GPUs, its worker was made with 2", f"  docker restart {container}")
    world.cards.set_cards(2)

    inside = json.loads(desk.inside(container, "cat", "/usr/bin/nvidia-smi.json"))
    setting = _setting_of(world, container)
    setting.write_text(json.dumps({**inside, "folder": "/nowhere"}))
    finds("gpus-lost", "the container has lost the GPUs", f"  docker restart {container}")
    setting.write_text(json.dumps(inside))

    leases = world.gpu.home / ".local/state/runner/leases"
    leases.chmod(0o500)
    finds("leases", "leases", "  chmod -R u+rwX")
    leases.chmod(0o700)

    desk.docker.docker("kill", container)
    wait_for(lambda: desk.containers()[container] == "exited", 30, "the container to end")
    finds("worker", "has ended (exited)", "  runner provision host=gpu1")
    assert world.operator.runner("doctor", "host=gpu1").returncode == 4


def _setting_of(world: World, container: str) -> Path:
    """The file that the hook put into a container, as it lies on the host."""
    pid = world.desk.inspect(container)["State"]["Pid"]
    mounts = world.gpu.run(["cat", f"/proc/{pid}/mountinfo"]).stdout.splitlines()
    line = next(each for each in mounts if " /usr/bin/nvidia-smi.json " in each)
    return Path(line.split(" ")[3])
