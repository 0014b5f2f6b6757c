"""`provision`: a worker on a host behind a jump, made, found, broken off, refused."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import pytest

from runner.app.context import open_context
from runner.app.provision import provision
from runner.app.reports import ProvisionReport
from runner.endpoint import Worker
from runner.errors import Conflict, ProvisionError, SpecError, Unreachable
from runner.inventory import read_hosts
from runner.model import Host
from tests.helpers.become import become
from tests.helpers.local_worker import Heard
from tests.helpers.wait import wait_for
from tests.rig.engine import RigEngine
from tests.rig.gpus import FakeGpus
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig

IMAGES = """
[cpu]
base = "runner-rig/base:cpu"
torch = "2.13.0"
cuda = "none"
driver_min = "525.60.13"
"""


class Desk:
    """The operator with a project whose host `gpu1` is the rig's, behind its jump."""

    def __init__(self, operator: Operator, docker: RigEngine) -> None:
        self.operator = operator
        self.docker = docker
        self.heard = Heard()
        (operator.project / "images.toml").write_text(IMAGES)
        self.write()

    def write(self, name: str = "gpu1", text: str = 'ssh = "rig-gpu"\n', more: str = "") -> None:
        folder = self.operator.project / "hosts"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.toml").write_text(f'{text}image = "cpu"\n{more}')

    def host(self, name: str = "gpu1") -> Host:
        return read_hosts(open_context(self.heard, self.operator.project).project)[name]

    def provision(self, host: str = "gpu1", **options: object) -> ProvisionReport:
        self.heard.notes.clear()
        context = open_context(self.heard, self.operator.project)
        given = {"image": None, "rebuild": False, **options}
        return provision(context, host, **given)  # type: ignore[arg-type]

    def inspect(self, name: str) -> dict[str, object]:
        found: list[dict[str, object]] = json.loads(self.docker.docker("inspect", name).stdout)
        return found[0]

    def inside(self, name: str, *argv: str) -> str:
        return self.docker.docker("exec", name, *argv).stdout


@pytest.fixture
def desk(
    operator: Operator, jump_host: RigHost, docker: RigEngine, monkeypatch: pytest.MonkeyPatch
) -> Desk:
    become(operator, monkeypatch)
    docker.remove_containers()
    return Desk(operator, docker)


def test_a_worker_is_made_and_then_found_as_it_is(desk: Desk, rig: Rig) -> None:
    made = desk.provision()
    assert made.changed and made.torch.startswith("2.13.0") and made.gpus == 0
    assert made.container.startswith(f"runner-{rig.gpu.spec.uid}-")
    # another test may have made the image
    assert "will make on gpu1: " in desk.heard.text
    assert f"container {made.container}, ~/runner" in desk.heard.text
    assert "will not: use sudo, open a port, change sshd or your keys there" in desk.heard.text
    before = desk.inspect(made.container)
    again = desk.provision()
    assert again == dataclasses.replace(made, changed=False, seconds=again.seconds)
    assert desk.inspect(made.container)["Id"] == before["Id"]
    assert "will make" not in desk.heard.text
    with Worker(desk.host()) as worker:
        reply, _ = worker.call("info")
        assert reply["up"] and worker.hello["worker"] == made.worker


def test_the_worker_has_no_rights_and_shows_nothing(desk: Desk, rig: Rig) -> None:
    desk.write(more='[env]\nGREETING = "a b\'c"\n')
    name = desk.provision().container
    status = desk.inside(name, "cat", "/proc/self/status").splitlines()
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    assert {fields[key] for key in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2"
    assert fields["Uid"].split()[0] == str(rig.gpu.spec.uid)
    body = desk.inspect(name)
    settings = body["HostConfig"]
    assert isinstance(settings, dict)
    assert settings["ReadonlyRootfs"] is True and not settings["PortBindings"]
    assert settings["RestartPolicy"]["Name"] == "always" and not settings["Privileged"]
    assert settings["ShmSize"] == 8 * 10**9
    assert "docker.sock" not in json.dumps(body["Mounts"])
    refused = desk.docker.docker("exec", name, "touch", "/etc/runner/worker/x", "/x", check=False)
    assert refused.stderr.count("Read-only file system") == 2
    assert desk.inside(name, "printenv", "GREETING") == "a b'c\n"
    workspace = rig.gpu.home / "runner"
    assert workspace.stat().st_mode & 0o777 == 0o700
    owners = {path.lstat().st_uid for path in [workspace, *workspace.rglob("*")]}
    assert owners == {rig.gpu.spec.uid}


def test_broken_off_in_the_build_it_is_made_by_the_next_try(desk: Desk) -> None:
    desk.docker.reset()
    first = desk.operator.popen([sys.executable, "-m", "runner", "provision", "host=gpu1"])
    wait_for(lambda: len(desk.docker.docker("images", "-aq").stdout.split()) > 2, 60, "the build")
    first.kill()
    first.wait()
    assert desk.provision().changed
    assert not desk.provision().changed


def test_a_half_made_container_is_replaced(desk: Desk) -> None:
    made = desk.provision()
    desk.docker.docker("kill", made.container)
    again = desk.provision()
    assert again.changed and again.worker == made.worker
    desk.docker.docker("rm", "-f", made.container)
    third = desk.provision()
    assert third.changed and third.worker == made.worker and third.image == made.image


def test_containers_of_others_are_left_alone(desk: Desk, rig: Rig) -> None:
    base = desk.docker.base_image
    desk.docker.docker("run", "-d", "--name", "theirs", base, "sleep", "600")
    name = desk.provision().container
    desk.docker.docker("rm", "-f", name)
    desk.docker.docker("run", "-d", "--name", name, base, "sleep", "600")
    before = [desk.inspect(each) for each in ("theirs", name)]
    with pytest.raises(ProvisionError, match="not the runner's") as caught:
        desk.provision()
    assert caught.value.status == 4
    after = [desk.inspect(each) for each in ("theirs", name)]
    assert [each["Id"] for each in before] == [each["Id"] for each in after]
    assert all(each["State"]["Running"] for each in after)  # type: ignore[index]


def test_while_runs_live_nothing_is_changed(desk: Desk, rig: Rig) -> None:
    made = desk.provision()
    desk.inside(
        made.container,
        "sh",
        "-c",
        "mkdir -p /workspace/runs/live && "
        'echo \'{"format":1,"id":"live","state":"running"}\' > /workspace/runs/live/state.json',
    )
    try:
        assert not desk.provision().changed
        desk.write(more="slots = 3\n")
        before = desk.inspect(made.container)["Id"]
        with pytest.raises(Conflict, match=r"runs live there \(live\)") as caught:
            desk.provision()
        assert caught.value.status == 7 and desk.inspect(made.container)["Id"] == before
    finally:
        desk.inside(made.container, "rm", "-r", "/workspace/runs/live")
    assert desk.provision().changed
    record = desk.inside(made.container, "cat", "/etc/runner/worker/worker.json")
    assert json.loads(record)["slots"] == 3


def test_gpus_are_given_to_the_container(desk: Desk, fake_gpus: FakeGpus) -> None:
    made = desk.provision()
    assert made.gpus == 2
    assert desk.inside(made.container, "nvidia-smi", "-L").count("GPU ") == 2
    desk.write(more='gpus = "none"\n')
    without = desk.provision()
    assert without.changed and without.gpus == 0


def test_a_driver_that_is_too_old_is_refused_first(desk: Desk, fake_gpus: FakeGpus) -> None:
    fake_gpus.set_cards(1, driver_version="470.82.01")
    with pytest.raises(ProvisionError, match=r"driver is 470\.82\.01; image cpu needs 525\.60\.13"):
        desk.provision()
    fake_gpus.fail("Failed to initialize NVML: Driver/library version mismatch")
    with pytest.raises(ProvisionError, match="nvidia-smi fails there"):
        desk.provision()
    assert desk.docker.docker("ps", "-aq").stdout == ""


def test_an_account_without_the_right_is_told_in_one_line(desk: Desk, rig: Rig) -> None:
    desk.write("plain", 'ssh = "rig-plain"\n')
    with pytest.raises(ProvisionError) as caught:
        desk.provision("plain")
    assert caught.value.status == 4
    assert caught.value.message.startswith("plain: rig-plain may not use Docker there")


@pytest.mark.parametrize("folder", ["", "/.ssh/.."])
def test_the_home_itself_is_no_workspace(desk: Desk, rig: Rig, folder: str) -> None:
    link = rig.gpu.home / "link"
    link.symlink_to(str(rig.gpu.home) + folder)
    try:
        desk.write(more='workspace = "~/link"\n')
        with pytest.raises(ProvisionError, match="is the home itself"):
            desk.provision()
    finally:
        link.unlink()
    assert desk.docker.docker("ps", "-aq").stdout == ""


def test_an_unknown_image_is_refused_before_anyone_is_asked(desk: Desk, rig: Rig) -> None:
    rig.login.stop_sshd()
    with pytest.raises(SpecError, match="is no image pin"):
        desk.provision(image="torch-9")
    with pytest.raises(Unreachable):
        desk.provision()


def test_a_base_that_cannot_be_had_is_told(desk: Desk) -> None:
    text = IMAGES + IMAGES.replace("[cpu]", "[gone]").replace(
        "runner-rig/base:cpu", "127.0.0.1:9/x"
    )
    (desk.operator.project / "images.toml").write_text(text)
    began = time.monotonic()
    with pytest.raises(ProvisionError, match="could not fetch base image"):
        desk.provision(image="gone")
    assert time.monotonic() - began < 60


def test_two_projects_with_one_workspace_share_the_worker(desk: Desk, tmp_path: Path) -> None:
    made = desk.provision()
    desk.write("other", 'ssh = "rig-gpu"\n')
    same = desk.provision("other")
    assert (same.changed, same.worker) == (False, made.worker)
    desk.write("third", 'ssh = "rig-gpu"\nworkspace = "~/third"\n')
    third = desk.provision("third")
    assert third.container != made.container and third.worker != made.worker
    assert not desk.provision().changed
