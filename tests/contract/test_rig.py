"""The rig keeps its promises to the other tests, and to the machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.wait import wait_for
from tests.rig import gpus, network, processes
from tests.rig.engine import RigEngine
from tests.rig.gpus import FakeGpus
from tests.rig.hosts import RigHost
from tests.rig.operator import REPOSITORY, Operator
from tests.rig.paths import RigError
from tests.rig.rig import Rig

QUERY = ["--query-gpu=index,memory.used", "--format=csv,noheader,nounits"]


def test_docker_answers_through_the_jump(docker: RigEngine, operator: Operator) -> None:
    done = operator.ssh("rig-gpu", "docker version --format '{{.Server.Version}}'; hostname")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == b"rig-gpu"


def test_gpu_host_cannot_be_reached_past_the_jump(jump_host: RigHost, operator: Operator) -> None:
    done = operator.ssh("-o", "ProxyJump=none", "-o", "ConnectTimeout=1", "rig-gpu", "true")
    assert done.returncode == 255, done.stdout


def test_plain_user_is_refused_by_docker(sshd: RigHost, operator: Operator) -> None:
    done = operator.ssh("rig-plain", "docker", "ps")
    assert done.returncode == 1
    assert b"permission denied" in done.stderr.lower()


def test_wrong_key_and_unknown_host_key_are_refused(sshd: RigHost, operator: Operator) -> None:
    operator.use_key("other_ed25519")
    assert b"Permission denied (publickey)" in operator.ssh("rig-plain", "true").stderr
    operator.use_key("id_ed25519")
    operator.trust()
    assert b"Host key verification failed" in operator.ssh("rig-plain", "true").stderr
    operator.trust_wrongly(sshd)
    assert b"IDENTIFICATION HAS CHANGED" in operator.ssh("rig-plain", "true").stderr
    operator.trust(sshd)
    assert operator.ssh("rig-plain", "true").returncode == 0


def test_machine_is_left_as_it_was(rig: Rig) -> None:
    assert network.read_firewall() == rig.firewall_before
    accounts = Path("/etc/passwd").read_text() + Path("/etc/group").read_text()
    assert "rig-" not in accounts
    listening = processes.run(["ss", "-Hltnp"]).stdout.splitlines()
    ours = [line.split()[3] for line in listening if '"sshd"' in line or '"dockerd"' in line]
    mine = [place for place in ours if place.endswith(f":{rig.plain.spec.port}")]
    assert mine == [f"127.0.0.1:{rig.plain.spec.port}"]


def test_held_memory_is_seen_by_another_process_and_gone_with_the_holder(
    fake_gpus: FakeGpus, operator: Operator
) -> None:
    gpus.place_tool(operator.bin, fake_gpus.folder)
    holder = fake_gpus.hold(1, 4000)
    assert operator.run(["nvidia-smi", *QUERY]).stdout == b"0, 3\n1, 4003\n"
    assert operator.ssh("rig-plain", "nvidia-smi", *QUERY).stdout == b"0, 3\n1, 4003\n"
    apps = ["--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader"]
    row = f"{fake_gpus.uuids[1]}, {holder.pid}, 4000 MiB\n"
    assert operator.run(["nvidia-smi", *apps]).stdout.decode() == row
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert operator.run(["nvidia-smi", *QUERY]).stdout == b"0, 3\n1, 3\n"
    assert operator.run(["nvidia-smi", *apps]).stdout == b""


def test_who_computes_is_told_as_far_as_the_driver_tells(
    fake_gpus: FakeGpus, operator: Operator
) -> None:
    gpus.place_tool(operator.bin, fake_gpus.folder)
    apps = ["--query-compute-apps=gpu_uuid,used_memory,process_name", "--format=csv,noheader"]
    fake_gpus.hold(0, 70)
    _, used, program = operator.run(["nvidia-smi", *apps]).stdout.decode().strip().split(", ")
    assert (used, program) == ("70 MiB", sys.executable)
    fake_gpus.set_app_cell("used_memory", "[N/A]")
    assert b", [N/A], " in operator.run(["nvidia-smi", *apps]).stdout
    fake_gpus.slow_down(0.5)
    began = time.monotonic()
    operator.run(["nvidia-smi", *QUERY])
    assert time.monotonic() - began >= 0.5
    fake_gpus.slow_down(600)
    with pytest.raises(subprocess.TimeoutExpired):
        operator.run(["nvidia-smi", *QUERY], limit_s=0.5)
    fake_gpus.heal()
    assert operator.run(["nvidia-smi", *QUERY]).stdout == b"0, 73\n1, 3\n"


def test_container_is_given_the_cards_it_asked_for(docker: RigEngine, fake_gpus: FakeGpus) -> None:
    fake_gpus.hold(1, 500)
    asked = f"device={fake_gpus.uuids[1]}"
    words = ["run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL"]
    uid = docker.host.spec.uid
    words += ["--user", f"{uid}:{uid}", "--gpus", asked, docker.base_image]
    assert docker.docker(*words, "nvidia-smi", *QUERY).stdout == "1, 503\n"
    refused = docker.docker("run", "--rm", "--gpus", "device=7", docker.base_image, check=False)
    assert "unknown device" in refused.stderr


def test_memory_held_in_a_container_is_seen_outside(docker: RigEngine, fake_gpus: FakeGpus) -> None:
    name = "rig-self-test-holder"
    place = docker.host.home / "hold"
    place.mkdir()
    (place / "hold_gpu.py").write_bytes(gpus.HOLD.read_bytes())
    words = ["run", "-d", "--rm", "--name", name, "--network", "none", "--gpus", "all"]
    uid = docker.host.spec.uid
    words += ["--user", f"{uid}:{uid}", "-v", f"{place}:/hold:ro", "-e", "CUDA_VISIBLE_DEVICES=1"]
    try:
        docker.docker(*words, docker.base_image, "python3", "/hold/hold_gpu.py", "700")
        wait_for(lambda: fake_gpus.used_mib(1) == 703, 20, "the container to hold memory")
        told = docker.docker("exec", name, "nvidia-smi", *QUERY).stdout
        assert told == "0, 3\n1, 703\n"
        # the host knows the holder by the pid that Docker gives for the container
        pid = docker.docker("inspect", "-f", "{{.State.Pid}}", name).stdout.strip()
        apps = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        assert docker.host.run(["nvidia-smi", *apps], as_user=True).stdout == f"{pid}, 700\n"
        docker.docker("kill", name)
        wait_for(lambda: fake_gpus.used_mib(1) == 3, 20, "the memory to be free")
    finally:
        docker.docker("rm", "-f", name, check=False)
        processes.run(["rm", "-r", place])


def test_nvidia_smi_fails_as_the_real_one_does(fake_gpus: FakeGpus, operator: Operator) -> None:
    gpus.place_tool(operator.bin, fake_gpus.folder)

    def smi(*words: str) -> tuple[int, str]:
        done = operator.run(["nvidia-smi", *words])
        return done.returncode, done.stdout.decode().strip()

    assert smi("--query-gpu=index,nonsense", "--format=csv") == (
        2,
        'Field "nonsense" is not a valid field to query.',
    )
    assert smi("-L")[1].splitlines()[0] == f"GPU 0: NVIDIA A10 (UUID: {fake_gpus.uuids[0]})"
    fake_gpus.set_cell(0, "utilization.gpu", "[N/A]")
    assert smi("--query-gpu=utilization.gpu,memory.total", "--format=csv")[1].splitlines() == [
        "utilization.gpu [%], memory.total [MiB]",
        "[N/A], 23028 MiB",
        "0 %, 23028 MiB",
    ]
    fake_gpus.fail("Failed to initialize NVML: Unknown Error")
    assert smi("-L") == (255, "Failed to initialize NVML: Unknown Error")
    fake_gpus.heal()
    fake_gpus.set_cards(0)
    assert smi("-L") == (6, "No devices were found")
    fake_gpus.remove_driver()
    assert smi("-L")[0] == 9


def test_python39_is_one(python39: str, tmp_path: Path) -> None:
    (tmp_path / "__main__.py").write_text("import sys; print(sys.version_info[:2])")
    done = subprocess.run([python39, "-I", "-S", tmp_path], capture_output=True, check=False)
    assert done.stdout == b"(3, 9)\n", done.stderr


def test_halted_host_is_gone_with_all_its_processes_and_comes_back(
    rig: Rig, sshd: RigHost, operator: Operator
) -> None:
    session = operator.popen([operator.bin / "ssh", "rig-plain", "sleep", "600"])
    wait_for(lambda: any("sleep 600" in row[2] for row in sshd.processes()), 20, "a session")
    rig.halt(sshd)
    assert session.wait(20) == 255
    assert operator.ssh("rig-plain", "true").returncode == 255
    rig.start(sshd)
    assert operator.ssh("rig-plain", "true").returncode == 0
    assert not any("sleep 600" in row[2] for row in sshd.processes())


def test_killed_docker_engine_is_mended_with_its_container(docker: RigEngine, rig: Rig) -> None:
    name = "rig-self-test-survivor"
    words = ["run", "-d", "--name", name, "--network", "none", "--restart", "always"]
    docker.docker(*words, docker.base_image, "tini", "sleep", "1000")  # obeys TERM at once
    try:
        docker.kill()
        assert not docker.is_up()
        assert any("sleep 1000" in row[2] for row in docker.host.processes())
        rig.repair()
        wait_for(lambda: docker.docker("ps", "-q").stdout, 30, "the container to be back")
    finally:
        docker.docker("rm", "-f", name)


def test_second_session_is_refused_in_words(rig: Rig) -> None:
    argv = [sys.executable, "-m", "tests.rig", "down"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"in use by pid {os.getpid()}" in done.stderr
    assert "RUNNER_RIG_INSTANCE=" in done.stderr
    assert rig.is_up()


def test_pid_that_went_to_another_process_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        recorded = processes.identify(stranger.pid)
        processes.kill({**recorded, "start": recorded["start"] - 1})
        assert stranger.poll() is None
        processes.kill(recorded)
        assert stranger.wait() == -signal.SIGKILL


def test_waiting_names_what_did_not_come() -> None:
    began = time.monotonic()
    with pytest.raises(AssertionError, match="waited 0.1 s for the moon; last seen: None"):
        wait_for(lambda: None, 0.1, "the moon")
    assert time.monotonic() - began < 5


def test_lock_is_free_again_after_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with processes.locked(lock, refusal="held by {holder}"):
        second = processes.locked(lock, refusal="held by {holder}")
        with pytest.raises(RigError, match=f"held by pid {os.getpid()}"):
            second.__enter__()
    with processes.locked(lock, refusal="held by {holder}"):
        pass


def test_the_docker_of_a_host_is_no_way_to_that_of_the_machine(docker: RigEngine) -> None:
    """A stand-in is written there by tests; it must not reach what all use."""
    front = docker.host.bin / "docker"
    assert front.is_file() and not front.is_symlink()
    assert os.stat(front).st_nlink == 1
