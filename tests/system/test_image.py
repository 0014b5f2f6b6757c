"""The image: what a change builds anew, what is in it, and what it does when run by hand."""

from __future__ import annotations

import functools
import io
import json
import re
import secrets
import tarfile
from collections.abc import Iterator

import pytest

from runner import content
from tests.helpers.listeners import tried
from tests.helpers.wait import wait_for
from tests.rig import network
from tests.rig.engine import RigEngine
from tests.rig.rig import Rig

NAME = "by-hand"
REFUSED = "Permission denied (publickey)"
SSH = ["ssh", "-F", "none", "-p", "2222", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none"]
SSH += ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"]
SSH += ["-o", "BatchMode=yes"]
LOCAL = "http://127.0.0.1:8888"


@functools.cache
def plain_context() -> bytes:
    """The context as this session first saw it: people edit the worker while tests run."""
    return content.image_context()


def context(**more: str) -> bytes:
    """The image's context, with text added to the end of some of its files."""
    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(plain_context())) as old,
        tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as new,
    ):
        for member in old.getmembers():
            file = old.extractfile(member)
            data = file.read() if file else b""
            data += more.get(member.name.replace(".", "_").replace("/", "_"), "").encode()
            member.size = len(data) if file else 0
            new.addfile(member, io.BytesIO(data) if file else None)
    return out.getvalue()


def build(
    docker: RigEngine,
    uid: int,
    data: bytes,
    *,
    base: str = RigEngine.base_image,
    buildkit: bool = False,
    check: bool = True,
    more: tuple[str, ...] = (),
) -> tuple[str, str]:
    """The image's tag, and what the builder said. more: options of `docker build`."""
    tag = f"by-hand:{uid}"
    args = {"BASE_IMAGE": base, "RUNNER_UID": str(uid), "RUNNER_GID": str(uid)}
    words = [word for key, value in args.items() for word in ("--build-arg", f"{key}={value}")]
    words += [*more, *(["--progress=plain"] if buildkit else [])]
    done = docker.docker(
        *("build", *words, "--tag", tag, "-"), stdin=data, buildkit=buildkit, check=check
    )
    return tag, done.stdout + done.stderr


@pytest.fixture(scope="module")
def image(docker: RigEngine, rig: Rig) -> Iterator[str]:
    """The image for the rig's account on the gpu host."""
    tag, _ = build(docker, rig.gpu.spec.uid, context())
    yield tag
    docker.remove_containers()


def built_anew(said: str) -> list[str]:
    """The first words of each step that was not taken from what was built before."""
    if "Step 1/" in said:
        steps = re.split(r"(?m)^Step \d+/\d+ : ", said)[1:]
        made = [step for step in steps if "Using cache" not in step and "Running in" in step]
        made += [step for step in steps if step.startswith("COPY") and "Using cache" not in step]
    else:
        steps = re.findall(r"(?m)^#(\d+) \[ *\d+/\d+\] (.*)$", said)
        cached = set(re.findall(r"(?m)^#(\d+) CACHED", said))
        made = [text for number, text in steps if number not in cached and text[:4] != "FROM"]
    work = [step for step in made if step.startswith(("RUN", "COPY"))]
    return sorted({name for step in work for name in STEPS if re.search(STEPS[name], step)})


STEPS = {
    "apt": r"lacking=",
    "list": r"COPY packages\.py",
    "pip": r"pip install|cd /opt/runner",
    "code": r"COPY (entrypoint|worker)",
    "compile": r"compileall",
    "user": r"getent passwd",
}


@pytest.mark.parametrize("buildkit", [False, True], ids=["legacy", "buildkit"])
def test_a_change_builds_only_what_follows_it(docker: RigEngine, rig: Rig, buildkit: bool) -> None:
    def rebuilt(uid: int = 4001, **more: str) -> list[str]:
        return built_anew(build(docker, uid, context(**more), buildkit=buildkit)[1])

    mark = f"# {secrets.token_hex(8)}\n"  # never built before
    rebuilt(requirements_txt=mark)
    assert rebuilt(requirements_txt=mark) == []
    assert rebuilt(uid=4002, requirements_txt=mark) == ["user"]
    assert rebuilt(requirements_txt=mark, worker___main___py=mark) == ["code", "compile", "user"]
    anew = rebuilt(requirements_txt=mark + mark)
    assert anew == ["code", "compile", "list", "pip", "user"]


def test_what_is_in_it_and_what_is_not(docker: RigEngine, image: str, rig: Rig) -> None:
    script = """
    id -un; id -u
    cat /opt/runner/constraints.txt
    ls /etc/ssh/ssh_host_* 2>/dev/null
    for tool in mpirun rsync ps tini py-spy /usr/sbin/sshd; do
        command -v $tool >/dev/null || echo lacks $tool
    done
    python3 -c "import cv2, gymnasium.envs.classic_control, jupyterlab, pygame" && echo whole
    """
    said = docker.docker("run", "--rm", image, "sh", "-c", script).stdout.split()
    assert said[:2] == ["runner", str(rig.gpu.spec.uid)]
    assert [line.partition("==")[0] for line in said[2:4]] == ["torch", "numpy"]
    assert said[4:] == ["whole"]
    refused = build(docker, 0, context(), check=False)[1]
    assert "the worker's user cannot be root" in refused


def test_an_image_is_a_base_too_for_hosts_without_a_network(docker: RigEngine, image: str) -> None:
    again, _ = build(docker, 4003, context(), base=image)
    accounts = "cut -d: -f1,3 /etc/passwd | grep ^runner; cut -d: -f1,3 /etc/group | grep ^runner"
    said = docker.docker("run", "--rm", again, "sh", "-c", f"id -un; {accounts}").stdout.split()
    assert said == ["runner", "runner:4003", "runner:4003"]


def test_a_requirement_that_cannot_be_had_is_named(docker: RigEngine) -> None:
    data = context(requirements_txt="no-such-package-of-ours==1.0\n")
    said = build(docker, 4001, data, check=False, more=("--network=none",))[1]
    assert "no-such-package-of-ours" in said and "returned a non-zero code" in said


def test_a_command_behind_the_image_is_run_as_it_is(docker: RigEngine, image: str) -> None:
    words = ["python3", "-c", "import sys; print(ascii(sys.argv[1:]))", "a b", "$HOME", "", "ü"]
    assert docker.docker("run", "--rm", image, *words).stdout.strip() == ascii(words[3:])


def test_all_that_is_wrong_is_told_before_anything_starts(
    docker: RigEngine, image: str, rig: Rig
) -> None:
    folder = rig.gpu.home / "unwritable"
    folder.mkdir(exist_ok=True)  # root's, as Docker makes one that is not there
    done = docker.docker(
        *("run", "--rm", f"--volume={folder}:/workspace/checkpoints"),
        *("--env=RUNNER_SERVICES=jupiter,sshd", "--env=RUNNER_LISTEN=all", image),
        check=False,
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert all(line.startswith("runner: ") for line in lines) and len(lines) == 4
    assert "'jupiter' is no service (did you mean jupyter?)" in lines[0]
    assert "RUNNER_LISTEN: 'all' is no IP address" in lines[1]
    assert "/workspace/checkpoints cannot be written: it belongs to uid 0 (root)" in lines[2]
    assert f"sudo chown {rig.gpu.spec.uid}:{rig.gpu.spec.uid} FOLDER" in lines[2]
    assert "sshd has no key to let in; mount a public key" in lines[3]


@pytest.fixture(scope="module")
def by_hand(docker: RigEngine, image: str, rig: Rig) -> Iterator[dict[str, object]]:
    """The documented line, without its --gpus; what `docker inspect` says of it."""
    here = rig.gpu.home / "by-hand"
    for name in ("code", "checkpoints", "logs"):
        (here / name).mkdir(parents=True, exist_ok=True)
    (here / "id_ed25519.pub").write_text(rig.public_key)
    rig.gpu.run(["chown", "-R", rig.gpu.user, here])
    docker.docker(
        *("run", "--detach", "--name", NAME),
        *("-p", "127.0.0.1:8888:8888", "-p", "127.0.0.1:2222:2222"),
        *("-v", f"{here}/code:/workspace/code"),
        *("-v", f"{here}/checkpoints:/workspace/checkpoints"),
        *("-v", f"{here}/logs:/workspace/logs"),
        *("-v", f"{here}/id_ed25519.pub:/run/runner/keys/authorized_keys:ro"),
        *("-e", "RUNNER_SERVICES=jupyter,sshd", "-e", "RUNNER_LISTEN=0.0.0.0", image),
    )
    wait_for(lambda: fetch(rig, "/api")[0] == 200, 60, "Jupyter by hand")
    wait_for(lambda: ssh(rig, "true")[0] == 0, 30, "sshd by hand")
    yield json.loads(docker.docker("inspect", NAME).stdout)[0]
    docker.docker("rm", "-f", NAME)


def ssh(rig: Rig, *words: str, key: str = "id_ed25519", user: str = "runner") -> tuple[int, str]:
    """(status, what was said) of a log-in from the host it runs on."""
    argv = [*SSH, "-l", user, "-i", str(rig.paths.keys / key), "127.0.0.1", *words]
    done = rig.gpu.run(argv, check=False)
    return done.returncode, done.stdout + done.stderr


def fetch(rig: Rig, path: str) -> tuple[int, str]:
    """(HTTP status, body) asked for on that host; 0 while nobody answers."""
    code = (
        "import sys, urllib.request as r, urllib.error as e\n"
        f"try: a = r.urlopen('{LOCAL}' + sys.argv[1], timeout=10)\n"
        "except e.HTTPError as x: print(x.code)\n"
        "except OSError: print(0)\n"
        "else: print(a.status, a.read().decode())\n"
    )
    said = rig.gpu.run(["python3", "-c", code, path]).stdout.strip()
    return int(said.split()[0]), said.partition(" ")[2]


def test_by_hand_a_key_lets_in_and_nothing_else(
    by_hand: dict[str, object], rig: Rig, docker: RigEngine
) -> None:
    asked = "python3 -c 'import torch; print(torch.__version__)'; id -un; echo $PATH; pwd; "
    status, said = ssh(rig, asked + "touch /workspace/code/made")
    assert status == 0 and "2.13.0" in said and "\nrunner\n" in said, said
    image_path = docker.docker("exec", NAME, "printenv", "PATH").stdout.strip()
    assert image_path in said
    assert (rig.gpu.home / "by-hand/code/made").stat().st_uid == rig.gpu.spec.uid
    assert REFUSED in ssh(rig, "true", key="other_ed25519")[1]
    assert REFUSED in ssh(rig, "true", user="root")[1]
    word = ["-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=password"]
    argv = [*SSH, *word, "-o", "BatchMode=no", "-l", "runner", "127.0.0.1", "true"]
    assert REFUSED in rig.gpu.run(argv, check=False).stderr


def test_by_hand_a_token_stands_before_jupyter_and_shows_nowhere(
    by_hand: dict[str, object], rig: Rig, docker: RigEngine
) -> None:
    log = docker.docker("logs", NAME).stderr
    found = re.search(r"its token: docker exec (\S+) cat (\S+)", log)
    assert found is not None, log
    token = docker.docker("exec", found[1], "cat", found[2]).stdout.strip()
    assert len(token) >= 32
    assert docker.docker("exec", NAME, "stat", "-c", "%a", found[2]).stdout.strip() == "600"
    assert fetch(rig, "/api/contents")[0] == 403
    assert fetch(rig, "/api/contents?token=wrong")[0] == 403
    status, body = fetch(rig, f"/api/contents?token={token}")
    assert status == 200 and '"name": "code"' in body
    shown = docker.docker("exec", NAME, "sh", "-c", "cat /proc/[0-9]*/cmdline").stdout
    assert "jupyterlab" in shown and token not in shown
    assert token not in json.dumps(by_hand) and token not in log


def test_by_hand_a_neighbour_meets_the_same_locks(
    by_hand: dict[str, object], rig: Rig, docker: RigEngine
) -> None:
    address = docker.docker("inspect", "-f", "{{.NetworkSettings.IPAddress}}", NAME).stdout.strip()
    with network.neighbour(rig.paths.instance):
        found = tried(lambda argv: rig.login.run(argv).stdout, address, (2222, 8888))
        assert set(found.values()) == {"connected"}  # Docker before 28 lets it pass
        argv = [*SSH, "-l", "runner", "-i", str(rig.paths.keys / "other_ed25519"), address, "true"]
        assert REFUSED in rig.login.run(argv, check=False).stderr
        ask = f"import urllib.request as r; r.urlopen('http://{address}:8888/api/contents')"
        assert "403" in rig.login.run(["python3", "-c", ask], check=False).stderr


def test_by_hand_it_listens_where_it_was_told_and_docker_publishes_it(
    by_hand: dict[str, object], docker: RigEngine
) -> None:
    ports = by_hand["NetworkSettings"]["Ports"]  # type: ignore[index, call-overload]
    assert {each["HostIp"] for port in ports.values() for each in port or []} == {"127.0.0.1"}
    restarted = docker.docker("exec", NAME, "cat", "/workspace/.runner/ssh/host_ed25519.pub").stdout
    docker.docker("restart", NAME)
    again = docker.docker("exec", NAME, "cat", "/workspace/.runner/ssh/host_ed25519.pub").stdout
    assert restarted == again and restarted.startswith("ssh-ed25519 ")
