"""Ways into a container behind a jump host: ssh by key alone, Jupyter Lab, TensorBoard, GPUs.

No port is open for any of them: not on the host, and in the container on no socket of a network.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.pinned import pin_base
from tests.helpers.wait import wait_for
from tests.rig.engine import RigEngine
from tests.rig.gpus import FakeGpus
from tests.rig.hosts import RigHost
from tests.rig.operator import Operator

HOST = """ssh = "{alias}"
image = "cpu"
workspace = "~/ways in"
network = "none"
slots = 2
"""


@pytest.fixture(scope="module")
def gpu1(
    make_operator: Callable[[], Operator], jump_host: RigHost, docker: RigEngine
) -> Iterator[Operator]:
    """An operator whose host gpu1 has been provisioned, without a network."""
    operator = make_operator()
    run(operator, "init")
    pin_base(operator.project, docker)
    (operator.project / "hosts").mkdir(exist_ok=True)
    (operator.project / "hosts" / "gpu1.toml").write_text(HOST.format(alias=jump_host.alias))
    run(operator, "provision", "host=gpu1", limit_s=400)
    yield operator
    docker.remove_containers()


def run(operator: Operator, *words: str, status: int = 0, limit_s: float = 120) -> str:
    """`runner WORDS…` must end with `status`; its stdout."""
    done = operator.runner(*words, limit_s=limit_s)
    assert done.returncode == status, (words, done.stdout, done.stderr)
    return done.stdout.decode()


@pytest.fixture
def begin(gpu1: Operator) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a client; all are ended."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "runner", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        begun.append(gpu1.popen(argv, **pipes))
        return begun[-1]

    yield start
    for process in begun:
        with process:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)


def url_of(client: subprocess.Popen[bytes]) -> str:
    assert client.stdout is not None
    line = client.stdout.readline().decode().strip()
    assert line.startswith("http://127.0.0.1:"), (line, client.poll(), client.stderr)
    return line


def get(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def upgraded(base: str, path: str) -> bool:
    """Whether a browser's page from there may open a web socket."""
    place = base.removeprefix("http://").rstrip("/")
    host, _, port = place.partition(":")
    asked = f"GET {path} HTTP/1.1\r\nHost: {place}\r\nOrigin: http://{place}\r\n"
    asked += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    asked += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    with socket.create_connection((host, int(port)), 30) as connection:
        connection.sendall(asked.encode())
        return connection.recv(100).startswith(b"HTTP/1.1 101 ")


def answers(url: str) -> bool:
    with contextlib.suppress(OSError):
        return get(url) == 200
    return False


def container(docker: RigEngine) -> str:
    return docker.docker("ps", "-q", "--filter", "label=org.runner.worker").stdout.strip()


def inside(docker: RigEngine, *words: str) -> str:
    return docker.docker("exec", container(docker), *words).stdout


def listening(docker: RigEngine) -> set[str]:
    """Local addresses on which anything in the container listens, by TCP."""
    rows = inside(docker, "sh", "-c", "cat /proc/net/tcp /proc/net/tcp6").splitlines()
    return {words[1].split(":")[0] for words in map(str.split, rows) if words[3] == "0A"}


def execs(host: RigHost) -> list[str]:
    """What leads into containers from there."""
    return [words for _, _, words in host.processes() if "docker exec" in words]


def test_ssh_gets_in_by_the_projects_key_alone(
    gpu1: Operator, docker: RigEngine, jump_host: RigHost
) -> None:
    before = (jump_host.home / ".ssh/authorized_keys").read_bytes()
    config = gpu1.home / "worker_config"
    config.write_text(run(gpu1, "ssh-config", "host=gpu1"))

    def ssh(*words: str, file: Path = config) -> subprocess.CompletedProcess[bytes]:
        return gpu1.run(["/usr/bin/ssh", "-F", file, *words])

    done = ssh(
        "runner-gpu1", "id -un; echo $HOME [$CUDA_VISIBLE_DEVICES]; python3 -c 'import torch'"
    )
    assert (done.returncode, done.stdout) == (0, b"runner\n/workspace/.home []\n"), done
    (gpu1.project / "data").write_bytes(os.urandom(2_000_000))
    copied = gpu1.run(["scp", "-F", config, "data", "runner-gpu1:/workspace/data"])
    assert copied.returncode == 0, copied
    sums = run(gpu1, "shell", "host=gpu1", "--", "sh", "-c", 'pwd; cksum < "$1"', "x", "data")
    wanted = gpu1.run(["cksum"], stdin=(gpu1.project / "data").read_bytes()).stdout.decode()
    assert sums == "/workspace\n" + wanted
    other = config.read_text().replace(".runner/ssh/id_ed25519", "../other")
    gpu1.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", gpu1.home / "other"])
    (gpu1.home / "other_config").write_text(other)
    refused = ssh("runner-gpu1", "true", file=gpu1.home / "other_config")
    assert refused.returncode == 255 and b"Permission denied (publickey)" in refused.stderr
    assert ssh("-l", "root", "runner-gpu1", "true").returncode == 255
    back = ssh("-R", "0:127.0.0.1:1", "-oExitOnForwardFailure=yes", "runner-gpu1", "true")
    assert back.returncode == 255
    assert (jump_host.home / ".ssh/authorized_keys").read_bytes() == before


def test_lab_and_tensorboard_are_reached_and_nothing_listens(
    gpu1: Operator,
    docker: RigEngine,
    jump_host: RigHost,
    begin: Callable[..., subprocess.Popen[bytes]],
) -> None:
    lab, board = begin("lab", "host=gpu1"), begin("tensorboard", "host=gpu1")
    url = url_of(lab)
    base, _, token = url.partition("lab?token=")
    assert len(token) == 48
    assert get(f"{base}api/contents?token={token}") == 200
    assert get(f"{base}api/contents") == 403
    assert get(f"{base}api/contents?token={token[:-1]}x") == 403
    assert get(url) == 200
    board_url = url_of(board)
    assert get(board_url) == 200
    assert get(f"{board_url}data/runs") == 200
    # kernels talk over the container's own loopback; ours are on sockets
    assert listening(docker) <= {"0100007F"}
    ports = jump_host.run(["ss", "-Hltn"]).stdout.splitlines()
    assert all(":22 " in line or "127.0.0.1" in line for line in ports), ports
    told = docker.docker("inspect", container(docker)).stdout
    told += docker.docker("logs", container(docker)).stdout
    told += inside(
        docker, "sh", "-c", "cat /proc/[0-9]*/cmdline; cat /workspace/.runner/places/*/*.log"
    )
    assert token not in told
    assert inside(docker, "stat", "-c%a", "/workspace/.runner/jupyter_token").strip() == "600"
    # Jupyter is killed, and comes back with the same token
    inside(docker, "sh", "-c", "kill -9 $(pgrep -f [j]upyterlab)")
    wait_for(lambda: answers(f"{base}api/contents?token={token}"), 60, "the Lab again")
    # the link is cut: what is new works again
    jump_host.break_sessions()
    wait_for(lambda: answers(board_url) and answers(url), 60, "both after a cut")
    board.kill()
    lab.send_signal(signal.SIGINT)
    lab.communicate(timeout=30)
    assert lab.returncode == 130
    wait_for(lambda: not execs(jump_host), 30, "the end of what served them on the host")
    assert "serve" not in inside(docker, "ps", "-eo", "args")


def test_the_host_key_stays_and_a_lab_with_a_gpu_is_a_run(
    gpu1: Operator,
    docker: RigEngine,
    fake_gpus: FakeGpus,
    begin: Callable[..., subprocess.Popen[bytes]],
) -> None:
    run(gpu1, "ssh-config", "host=gpu1")
    known = (gpu1.project / ".runner/ssh/known_hosts").read_text()
    before = container(docker)
    run(gpu1, "provision", "host=gpu1", limit_s=400)
    assert container(docker) != before
    assert run(gpu1, "shell", "host=gpu1", "--", "echo", "in") == "in\n"
    assert (gpu1.project / ".runner/ssh/known_hosts").read_text() == known, "the same host key"
    lab = begin("lab", "host=gpu1", "gpus=1", "--json")
    assert lab.stdout is not None
    text = ""
    while not text.endswith("}\n"):
        piece = lab.stdout.readline().decode()
        assert piece, (lab.wait(10), lab.stderr and lab.stderr.read())
        text += piece
    told = json.loads(text)
    base, _, token = told["url"].partition("lab?token=")
    kernel = {"name": "python3"}
    asked = urllib.request.Request(
        f"{base}api/kernels",
        json.dumps(kernel).encode(),
        {"Content-Type": "application/json", "Authorization": f"token {token}"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.status == 201
        kernel_id = json.load(answer)["id"]
    assert upgraded(base, f"/api/kernels/{kernel_id}/channels?token={token}")
    seen = inside(
        docker,
        "sh",
        "-c",
        "for p in $(pgrep -f [i]pykernel_launcher); do tr '\\0' '\\n' < /proc/$p/environ; done",
    )
    assert f"CUDA_VISIBLE_DEVICES={fake_gpus.uuids[0]}" in seen.splitlines()
    found = json.loads(run(gpu1, "status", told["run"], "--json"))
    assert (found["state"], len(found["gpus"])) == ("running", 1)
    where = run(gpu1, "shell", "host=gpu1", "--", "sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]")
    assert where == "[]\n"
    lab.send_signal(signal.SIGINT)
    lab.communicate(timeout=60)
    done = json.loads(run(gpu1, "wait", told["run"], "--json"))
    assert done["runs"][0]["outcome"] == "done"
