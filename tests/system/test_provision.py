"""`provision`: a worker on a host behind a jump, made, found, broken off, refused."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from runner.endpoint import Worker
from runner.errors import ProvisionError, SpecError, Unreachable
from tests.helpers.become import become
from tests.helpers.desk import PIN, Desk
from tests.helpers.wait import wait_for
from tests.rig.engine import RigEngine
from tests.rig.gpus import FakeGpus
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator
from tests.rig.rig import Rig


@pytest.fixture
def desk(
    operator: Operator, jump_host: RigHost, docker: RigEngine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    become(operator, monkeypatch)
    desk = Desk(operator, docker)
    desk.clear(jump_host)
    yield desk
    desk.clear(jump_host)


def test_a_worker_is_made_then_found_as_it_is_and_mended(desk: Desk, rig: Rig) -> None:
    base = desk.docker.base_image
    desk.docker.docker("run", "-d", "--name", "theirs", base, "sleep", "600")
    theirs = desk.inspect("theirs")["Id"]
    made = desk.provision()
    assert made.changed and made.torch.startswith("2.13.0") and made.gpus == 0
    assert made.container.startswith(f"runner-{rig.gpu.spec.uid}-")
    # another test may have made the image
    assert "will make on gpu1: " in desk.heard.text
    assert f"container {made.container}, ~/runner" in desk.heard.text
    assert "will not: use sudo, open a port, change sshd or your keys there" in desk.heard.text
    before = desk.inspect(made.container)

    # a second project with the same workspace shares it
    desk.write("other", 'ssh = "rig-gpu"\n')
    again = desk.provision("other")
    assert not again.changed and (again.worker, again.generation) == (made.worker, 1)
    assert {"look", "up", "probe"} <= set(again.steps) and "start" not in again.steps
    assert desk.inspect(made.container)["Id"] == before["Id"]
    assert "will make" not in desk.heard.text
    with Worker(desk.host()) as worker:
        reply, _ = worker.call("info")
        assert reply["up"] and worker.hello["worker"] == made.worker

    desk.docker.docker("kill", made.container)
    third = desk.provision()
    assert third.changed and third.worker == made.worker and third.image == made.image

    # one that has the name and is not ours is never touched
    desk.docker.docker("rm", "-f", made.container)
    desk.docker.docker("run", "-d", "--name", made.container, base, "sleep", "600")
    foreign = desk.inspect(made.container)["Id"]
    with pytest.raises(ProvisionError, match="not the runner's") as caught:
        desk.provision()
    assert caught.value.status == 4
    assert desk.containers() == {"theirs": "running", made.container: "running"}
    assert (desk.inspect("theirs")["Id"], desk.inspect(made.container)["Id"]) == (theirs, foreign)


EATS = "x = []\nwhile True: x.append(bytearray(b'1') * (16 << 20)); print(len(x), flush=True)"
SEES = """
import os, socket
print(sorted(os.listdir(os.environ["RUNNER_DATA"])), open("/data/atari/pong").read())
for what in ("write", "reach"):
    try:
        if what == "write":
            open("/data/atari/x", "w")
        else:
            socket.create_connection(("198.18.3.2", 22), 3)
        print("could", what)
    except OSError as error:
        print(error.strerror)
"""


def test_the_worker_has_no_rights_and_what_its_file_says(desk: Desk, rig: Rig) -> None:
    data = rig.gpu.home / "sets"
    shutil.rmtree(data, ignore_errors=True)
    (data / "atari").mkdir(parents=True)
    (data / "atari" / "pong").write_text("ping")
    (data / "state").symlink_to(rig.gpu.home / ".local")
    (data / "keys").symlink_to(rig.gpu.home / ".ssh")
    (data / "run").symlink_to("/run")
    told = f'[data]\natari = "{data}/atari"\n[env]\nGREETING = "a b\'c"\n'
    limits = 'network = "none"\n[limits]\nmemory = "700m"\nshm = "256m"\n'
    desk.write(more=limits + told)
    name = desk.provision().container
    status = desk.inside(name, "cat", "/proc/self/status").splitlines()
    fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
    assert {fields[key] for key in ("CapEff", "CapPrm", "CapBnd")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2"
    assert fields["Uid"].split()[0] == str(rig.gpu.spec.uid)
    body = desk.inspect(name)
    settings = body["HostConfig"]
    assert settings["ReadonlyRootfs"] is True and not settings["PortBindings"]
    assert settings["RestartPolicy"]["Name"] == "always" and not settings["Privileged"]
    assert (settings["ShmSize"], settings["Memory"]) == (256 * 10**6, 700 * 10**6)
    assert settings["NetworkMode"] == "none" and body["Config"]["StopTimeout"] == 120
    mounts = {row["Destination"]: row["RW"] for row in body["Mounts"]}
    assert mounts == {
        "/workspace": True,
        "/leases": True,
        "/etc/runner/keys": False,
        "/etc/runner/worker": False,
        "/data/atari": False,
    }
    refused = desk.docker.docker("exec", name, "touch", "/etc/runner/worker/x", "/x", check=False)
    assert refused.stderr.count("Read-only file system") == 2
    assert desk.inside(name, "printenv", "GREETING") == "a b'c\n"
    workspace = rig.gpu.home / "runner"
    assert workspace.stat().st_mode & 0o777 == 0o700
    owners = {path.lstat().st_uid for path in [workspace, *workspace.rglob("*")]}
    assert owners == {rig.gpu.spec.uid}

    # a job that takes more memory than there is ends, and nobody beside it
    (stays,) = desk.submit("--", "bash", "-c", "while [ ! -e /workspace/.go ]; do sleep 0.1; done")
    desk.until(stays, "running")
    (sees,) = desk.submit("--", "python3", "-c", SEES)
    (eats,) = desk.submit("--", "python3", "-c", EATS)
    assert desk.outcomes([sees, eats]) == ["done", "failed"]
    said = desk.log(sees).splitlines()
    assert said == ["['atari'] ping", "Read-only file system", "Network is unreachable"]
    cause = desk.status(eats).status.cause or {}
    assert cause["kind"] == "oom", cause
    assert desk.status(stays).status.attempt == 1
    (workspace / ".go").touch()
    assert desk.outcomes([stays]) == ["done"]

    # in the machine's own network nothing of ours listens where others could reach it
    before = listeners(rig.gpu)
    desk.write(more='network = "host"\n')
    assert desk.provision().changed
    assert desk.inspect(name)["HostConfig"]["NetworkMode"] == "host"
    assert listeners(rig.gpu) == before

    for path, why in {
        f"{data}/state": "leads to .*the runner's own state would be seen",
        str(rig.gpu.home): "own state would be seen",
        f"{data}/keys": "leads to .*: it lies in .ssh",
        f"{workspace}/runs": "it lies in the workspace",
        f"{data}/run": "leads to /run: the Docker socket would be seen",
        f"{data}/gone": "is no folder there",
    }.items():
        desk.write(more=f'[data]\nset = "{path}"\n')
        with pytest.raises(ProvisionError, match=why):
            desk.provision()


def listeners(host: RigHost) -> set[str]:
    """Addresses of the host that others could reach and where somebody listens."""
    rows: set[str] = set()
    for name in ("tcp", "tcp6"):
        text = host.run(["cat", f"/proc/net/{name}"]).stdout
        found = [line.split() for line in text.splitlines()[1:]]
        rows |= {row[1] for row in found if row[3] == "0A"}
    return {row for row in rows if not row.startswith(("0100007F", "0" * 24 + "01000000"))}


def test_cut_anywhere_and_two_at_once_it_ends_well_and_runs_are_not_disturbed(
    desk: Desk, rig: Rig
) -> None:
    argv = [sys.executable, "-m", "runner", "provision", "host=gpu1"]
    both = [desk.operator.popen(argv) for _ in range(2)]
    assert [each.wait(180) for each in both] == [0, 0]
    (name,) = desk.containers()
    (live,) = desk.submit("--", "bash", "-c", "while [ ! -e /workspace/.go ]; do sleep 0.1; done")
    desk.until(live, "running")
    place = name

    def pid() -> str:
        return desk.pid_of(place, "while [")

    before = pid()
    cuts: list[tuple[list[str], str, Callable[[], bool]]] = [
        (["--rebuild"], "", lambda: len(building(desk)) > 0),
        ([], "slots = 3\n", lambda: any("-old-" in each for each in desk.containers())),
    ]
    for words, more, is_there in cuts:
        desk.write(more=more)
        first = desk.operator.popen([*argv, *words])
        wait_for(is_there, 90, f"the moment to cut {words}")
        first.kill()
        first.wait()
        place = next((each for each in desk.containers() if "-old-" in each), place)
        assert pid() == before
    done = desk.provision()
    assert not desk.provision().changed
    assert pid() == before and desk.status(live).status.attempt == 1
    wait_for(lambda: not building(desk), 90, "the build that was cut to end there")
    assert set(desk.containers()) == {name, place} and "-old-" in place
    assert (
        done.container == name
        and desk.inspect(name)["HostConfig"]["RestartPolicy"]["Name"] == "always"
    )
    (rig.gpu.home / "runner" / ".go").touch()
    assert desk.outcomes([live]) == ["done"]
    desk.until_ended(place)


def building(desk: Desk) -> list[str]:
    """Containers a build runs in."""
    return [each for each in desk.containers() if not each.startswith("runner-")]


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
    with (desk.operator.project / "images.toml").open("a") as pins:
        pins.write(PIN.format(name="gone", base="127.0.0.1:9/x"))
    began = time.monotonic()
    with pytest.raises(ProvisionError, match="could not fetch base image") as caught:
        desk.provision(image="gone")
    assert time.monotonic() - began < 60
    assert caught.value.advice[-1] == "  docker save 127.0.0.1:9/x | ssh rig-gpu docker load"
