"""What doctor makes of a host's answer: each thing that is wrong, alone and with its way out."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from runner.doctor import questions
from runner.doctor.answers import Disk, Here, KeyFile, Seen, parse_answer, parse_disk
from runner.doctor.findings import (
    FAULT,
    NOTE,
    OK,
    SKIPPED,
    Check,
    HostHealth,
    fault,
    in_order,
    note,
    ok,
)
from runner.doctor.judge import TOPICS, judge
from runner.errors import AuthRefused, HostKeyError, ProvisionError, TimedOut, Unreachable
from runner.model import Host, ImagePin, Limits
from runner.placement import worker_key

CUT = "runner-0123"
PIN = ImagePin(
    "torch-2.6", "base:1", "2.6.0", "12.4", "525.60.13", ("5.0", "7.0", "8.0", "8.6", "9.0")
)
OLD = ImagePin("torch-2.6-cu118", "base:2", "2.6.0", "11.8", "450.80.02", ("3.7", "8.0", "8.6"))
NEW = ImagePin("torch-2.7", "base:3", "2.7.0", "12.8", "525.60.13", ("8.0", "9.0", "10.0", "12.0"))
VENV_PIN = dataclasses.replace(PIN, pip=("torch==2.6.0",))
PINS = {pin.name: pin for pin in (PIN, OLD)}
HOST = Host("gpu1", ssh="drl@10.20.0.7")
VENV = dataclasses.replace(HOST, runtime="venv")
LOCAL = Host("local", runtime="local")
KEY = worker_key(HOST)
NAME = f"runner-1000-{KEY}-torch-2.6"
GB = 10**6
"""In the KiB of df, more or less."""


def container(status: str = "running", restarts: int = 0, **settings: object) -> str:
    labels = {"org.runner.worker": "w-0123456789ab", "org.runner.image": "torch-2.6"}
    body = {
        "Id": "c1",
        "Name": f"/{NAME}",
        "Image": "sha256:1",
        "RestartCount": restarts,
        "State": {"Status": status},
        "Config": {"Labels": {**labels, "org.runner.generation": "1"}},
        "HostConfig": {"RestartPolicy": {"Name": "always"}, **settings},
    }
    return json.dumps(body) + "\n"


def disk(free: int = 500 * GB, mount: str = "/home", inodes: int = 60_000_000) -> str:
    return (
        f"/dev/sda1 {900 * GB} {400 * GB} {free} 50% {mount}\n"
        f"/dev/sda1 61000000 1000000 {inodes} 2% {mount}\n"
    )


INFO: dict[str, object] = {
    "DockerRootDir": "/var/lib/docker",
    "LiveRestoreEnabled": True,
    "CgroupDriver": "cgroupfs",
    "Runtimes": {"nvidia": {}, "runc": {}},
}


def card(index: int, driver: str = "550.54.15", capability: str = "8.6") -> str:
    return f"{index}, GPU-{index}, 23028, {driver}, {capability}, NVIDIA A10\n"


def python(version: str = "3.11.2", *, venv: bool = True) -> str:
    numbers = [int(each) for each in version.split(".")]
    return json.dumps({"version": numbers, "alone": True, "venv": venv, "ensurepip": venv}) + "\n"


HEALTHY = {
    "clock": "1764653900.5\n+0000 UTC\n",
    "modes": "755 1000\n700 1000\n600 1000\n",
    "limits": "Max processes  63000  63000  processes\nMax open files  1024  1048576  files\n",
    "memory": "MemTotal: 64000000 kB\nMemFree: 1000000 kB\nMemAvailable: 60000000 kB\n",
    "shm": "tmpfs 32000000 0 32000000 0% /dev/shm\n",
    "names": "gpu1\n0\n0\n",
    "shell": "/bin/bash\n",
    "noise": "\n",
    "account": "1000\n1000\ndrl\n/home/drl\n",
    "workspace": "/home/drl/runner\n",
    "real": "/home/drl/runner\n",
    "home": "/home/drl\n",
    "folder": "exists\nfolder\nown\n",
    "free": "/dev/sda1 100 50 50 50% /home\n",
    "nvidia-list": "GPU 0: NVIDIA A10 (UUID: GPU-0)\nGPU 1: NVIDIA A10 (UUID: GPU-1)\n",
    "nvidia": "there\n" + card(0) + card(1),
    "nvidia-status": "0\n",
    "docker": "28.3.3\n",
    "docker-status": "0\n",
    "info": json.dumps(INFO) + "\n",
    "base": '{"Id": "sha256:0"}\n',
    "images": "torch-2.6-ab sha256:1\n",
    "containers": container(),
    "end": "",
    "folders": "yes\nyes\n",
    "mounts": "/dev/sda1 / ext4 rw 0 0\n/dev/sda2 /home ext4 rw,nosuid 0 0\n",
    "disk workspace": disk(),
    "disk docker": disk(mount="/"),
    "gpu-modes": "0, Enabled, Disabled, 3\n1, Enabled, Disabled, 3\n",
    "gpu-health": "0, 0, No, No, No, Not Active\n1, 0, No, No, No, Not Active\n",
    "gpu-apps": "",
    "gpu-users": "",
    "toolkit": "/usr/bin/nvidia-container-runtime-hook\n",
    "made": "yes\n",
    "boot": "cron-line\nLinger=no\n",
    "python /usr/bin/python3": python(),
    "venv-end": "",
    "done": "",
}
"""What a machine says where nothing is wrong."""
TOLD: dict[str, Any] = {
    "image": "torch-2.6",
    "up": True,
    "drained": False,
    "leases": True,
    "shm_bytes": 8 * 10**9,
    "stuck": [],
    "strangers": [],
    "nvidia": None,
    "nvidia_said": None,
    "seen": 2,
    "tried": True,
    "torch": "2.6.0+cu124",
    "cuda": "12.4",
    "python": "3.11.9",
    "matmul": True,
    "reduce": {"backend": "nccl", "ranks": 2, "ok": True},
    "cards": [{"index": 0, "state": "ok", "free_mib": 22000}, {"index": 1, "state": "ok"}],
}
GOOD_KEY = KeyFile("/home/me/.ssh/id_ed25519", 0o600)
ALWAYS = {"docker": {"docker-root"}, "venv": set(), "local": set()}
"""The notes that a host gets which has nothing wrong."""


def seen(
    changed: Mapping[str, str | None] | None = None,
    *,
    host: Host = HOST,
    told: Mapping[str, Any] | None = None,
    until: str | None = None,
    **more: Any,
) -> Seen:
    """A healthy host but for what is given; None leaves a section out, `until` breaks it off."""
    parts = {
        name: text for name, text in {**HEALTHY, **(changed or {})}.items() if text is not None
    }
    if until is not None:
        names = list(parts)
        parts = {name: parts[name] for name in names[: names.index(until) + 1]}
    text = "".join(f"\n{CUT} {name}\n{body}" for name, body in parts.items())
    answer = parse_answer(text, CUT, host)
    given: dict[str, Any] = {
        "pin": VENV_PIN if host.runtime == "venv" else PIN,
        "pins": PINS,
        "here": Here(keys=(GOOD_KEY,)),
        "parts": answer.parts,
        "facts": answer.facts,
        "venv": answer.venv,
        "stopped_in": answer.stopped_in,
        "skew_s": 0.2,
        "worker": {**TOLD, **(told or {})},
        **more,
    }
    return Seen(host=host, **given)


def found(one: Seen) -> list[Check]:
    """Faults and notes, without those that everybody gets."""
    known = ALWAYS[one.host.runtime]
    return [c for c in judge(one) if c.state in (FAULT, NOTE) and c.id not in known]


def only(one: Seen) -> Check:
    checks = found(one)
    assert len(checks) == 1, [(check.id, check.text) for check in checks]
    return checks[0]


@pytest.mark.parametrize("host", [HOST, VENV, LOCAL], ids=lambda host: str(host.runtime))
def test_of_a_healthy_host_nothing_is_reported(host: Host) -> None:
    checks = judge(seen(host=host))
    assert {c.id for c in checks if c.state == NOTE} == ALWAYS[host.runtime]
    assert not [c for c in checks if c.state in (FAULT, SKIPPED)]
    assert len({c.text for c in checks if c.state == OK}) >= 15


INFO_OF: dict[str, dict[str, object]] = {
    "no live restore": {"LiveRestoreEnabled": False},
    "systemd": {"CgroupDriver": "systemd"},
    "no toolkit": {"Runtimes": {"runc": {}}},
}


def info(name: str) -> str:
    return json.dumps({**INFO, **INFO_OF[name]})


DENIED = "permission denied while trying to connect to the Docker daemon socket\n"
DOWN = "Cannot connect to the Docker daemon at unix:///run/docker.sock. Is it running?\n"
NO_DOCKER = dict.fromkeys(("docker-status", "info", "base", "images", "containers", "disk docker"))
UNUSABLE = {**NO_DOCKER, "docker-status": "1\n"}
NVML = "Failed to initialize NVML: Driver/library version mismatch\n"
NOT_LOADED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
NO_CARDS = {"nvidia-status": "9\n", "gpu-modes": "", "gpu-health": ""}
PYTHON = "python /usr/bin/python3"
SMALL = Limits(shm_bytes=64 * 10**6)
NFS = {"mounts": "srv:/home /home nfs4 rw 0 0\n/dev/sda1 / ext4 rw 0 0\n"}
NOEXEC_HOME = {"mounts": "/dev/sda1 / ext4 rw 0 0\n/dev/sda2 /home ext4 rw,noexec 0 0\n"}
READ_ONLY = {"mounts": "/dev/sda1 / ext4 rw 0 0\n/dev/sda2 /home ext4 ro 0 0\n"}

# id, state, in the text, in the fix, what is wrong
WRONG: list[tuple[str, str, str, str, Seen]] = [
    (
        "docker", FAULT, "there is no Docker", 'runtime = "venv"',
        seen({**NO_DOCKER, "docker": ""}, worker=None),
    ),
    (
        "docker-rights", FAULT, "drl may not use Docker", "usermod -aG docker drl",
        seen({**UNUSABLE, "docker": DENIED}, worker=None),
    ),
    (
        "docker", FAULT, "does not run", "systemctl start docker",
        seen({**UNUSABLE, "docker": DOWN}, worker=None),
    ),
    (
        "docker", FAULT, "does not answer within 5 s", "restart docker",
        seen({**UNUSABLE, "docker": "", "docker-status": "124\n"}, worker=None),
    ),
    (
        "docker-port", NOTE, "28.2.2", "28.3.3",
        seen({"docker": "28.2.2\n", "containers": container(PortBindings={"22/tcp": [{}]})}),
    ),
    ("live-restore", NOTE, "live restore is off", '"live-restore": true',
     seen({"info": info("no live restore")})),
    ("cgroup-driver", NOTE, "daemon-reload", "nvidia-ctk", seen({"info": info("systemd")})),
    ("toolkit", FAULT, "container toolkit", "nvidia-ctk runtime configure",
     seen({"info": info("no toolkit"), "toolkit": ""})),
    (
        "driver", FAULT, "470.82; image torch-2.6 needs 525.60.13",
        "  runner provision host=gpu1 image=torch-2.6-cu118",
        seen({"nvidia": "there\n" + card(0, "470.82") + card(1, "470.82")}),
    ),
    (
        "driver", FAULT, "440.33", "newer",
        seen({"nvidia": "there\n" + card(0, "440.33") + card(1, "440.33")}),
    ),
    (
        "capability", FAULT, "capability 12.0", "torch 2.7",
        seen({"nvidia": "there\n" + card(0, capability="12.0") + card(1, capability="12.0")}),
    ),
    (
        "capability", FAULT, "capability 12.0", "  runner provision host=gpu1 image=torch-2.7",
        seen({"nvidia": "there\n" + card(0, capability="12.0") + card(1, capability="12.0")},
             pins={**PINS, NEW.name: NEW}),
    ),
    ("nvidia-smi", FAULT, "mismatch", "restart the machine",
     seen({**NO_CARDS, "nvidia": "there\n" + NVML, "nvidia-old": NVML}, told={"seen": 0})),
    ("nvidia-smi", FAULT, "no driver is loaded", "modprobe nvidia",
     seen({**NO_CARDS, "nvidia": "there\n" + NOT_LOADED, "nvidia-old": NOT_LOADED})),
    ("nvidia-smi", FAULT, "exits 9 without a word", "", seen({**NO_CARDS, "nvidia": "there\n"})),
    ("cards", NOTE, "nvidia-smi names none", 'gpus = "none"',
     seen({"nvidia": "there\nNo devices were found\n", "nvidia-list": "", "gpu-modes": "",
           "gpu-health": ""}, told={"seen": 0})),
    ("nvidia-smi", FAULT, "does not answer within 5 s", "Xid",
     seen({"nvidia-hangs": "", "nvidia": "", "nvidia-status": None})),
    ("gpu-health", FAULT, "GPU 1 is ill: nvidia-smi says [GPU requires reset]", "--gpu-reset -i 1",
     seen({"gpu-modes": "0, Enabled, Disabled, 3\n1, Enabled, Disabled, [GPU requires reset]\n"})),
    ("gpu-health", FAULT, "ERR!", "gpus = [1]",
     seen({"gpu-modes": "0, Enabled, Disabled, ERR!\n1, Enabled, Disabled, 3\n"})),
    ("gpu-health", FAULT, "12 memory errors", "--gpu-reset -i 0",
     seen({"gpu-health": "0, 12, No, No, No, Not Active\n1, 0, No, No, No, Not Active\n"})),
    ("gpu-health", NOTE, "waits for a reset", "--gpu-reset -i 0",
     seen({"gpu-health": "0, 0, No, Yes, No, Not Active\n1, 0, No, No, No, Not Active\n"})),
    ("gpu-hot", NOTE, "heat", "cooling",
     seen({"gpu-health": "0, 0, No, No, No, Active\n1, 0, No, No, No, Not Active\n"})),
    ("mig", FAULT, "GPU 1 is split (MIG is on)", "nvidia-smi -i 1 -mig 0",
     seen({"gpu-modes": "0, Enabled, Disabled, 3\n1, Enabled, Enabled, 3\n"})),
    ("gpus-lost", FAULT, "the container has lost the GPUs", f"  docker restart {NAME}",
     seen(told={"nvidia": "nvidia-smi exits 255", "nvidia_said": "Unknown Error", "seen": 0,
                "cards": []})),
    ("gpu-count", FAULT, "shows 2 GPUs, its worker was made with 1", f"docker restart {NAME}",
     seen(told={"seen": 1, "cards": [{"index": 0, "state": "ok"}]})),
    ("cards", FAULT, "it has no GPU 7", "hosts/gpu1.toml",
     seen(host=dataclasses.replace(HOST, gpus=(0, 1, 7)))),
    ("gpu-users", NOTE, "GPU 1 eve's python (pid 4127, 9.4 GiB)", "gpus = [INDEX",
     seen(told={"strangers": [{"index": 1, "used_mib": 9626, "pids": [
         {"pid": 4127, "program": "python", "user": "eve"}]}]})),
    ("gpu-users", NOTE, "GPU 0 eve's python (pid 4127, 9.4 GiB)", "gpus = [INDEX",
     seen({"gpu-apps": "GPU-0, 4127, 9626, /usr/bin/python\n", "gpu-users": " 4127 eve\n"},
          worker=None)),
    ("worker", FAULT, "there is no worker yet", "  runner provision host=gpu1",
     seen({"containers": ""}, worker=None)),
    ("worker", FAULT, "7 restarts", f"docker logs --tail 20 {NAME}",
     seen({"containers": container("restarting", 7)}, worker=None)),
    ("worker", FAULT, "3 restarts", f"docker logs --tail 20 {NAME}",
     seen({"containers": container("running", 3)}, worker=None)),
    ("file-system", NOTE, "part of a container", "mounted volume",
     seen({"mounts": "overlay / overlay rw 0 0\n"})),
    ("localhost", NOTE, "localhost does not resolve", "/etc/hosts",
     seen({"names": "gpu1\n0\n2\n"}, host=VENV)),
    ("worker", FAULT, "has ended (exited)", "  runner provision host=gpu1",
     seen({"containers": container("exited")}, worker=None)),
    ("worker", FAULT, "paused", f"docker unpause {NAME}",
     seen({"containers": container("paused")}, worker=None)),
    ("worker-age", NOTE, "made of another image", "  runner provision host=gpu1",
     seen(stale=True)),
    ("worker", NOTE, "no end within 27 s", "",
     seen(worker=None, worker_error=TimedOut("gpu1: no end within 27 s"))),
    ("worker", FAULT, "no worker there", "runner provision host=gpu1",
     seen(worker=None, worker_error=ProvisionError("gpu1: there is no worker there"))),
    ("dispatcher", FAULT, "not up", "  runner provision host=gpu1", seen(told={"up": False})),
    ("drained", NOTE, "drained", "  runner undrain host=gpu1", seen(told={"drained": True})),
    ("messages", NOTE, "2 messages not delivered (1 given up), the last error 2h00m ago: HTTP 500",
     "  runner notify test host=gpu1",
     seen(told={"messages": {"waiting": 1, "lost": 1, "error": "HTTP 500", "age_s": 7200.0}})),
    ("leases", FAULT, "leases", "chmod", seen(told={"leases": False})),
    ("stuck", NOTE, "dqn-1", "runner why RUN", seen(told={"stuck": ["dqn-1"]})),
    ("shm-there", NOTE, "shared memory", "  runner provision host=gpu1",
     seen(told={"shm_bytes": 64 << 20})),
    ("torch", FAULT, "cannot use torch: No module named torch", "--rebuild",
     seen(told={"torch": None, "problem": "No module named torch", "cards": []})),
    ("torch", NOTE, "no answer within 20 s", "runner doctor host=gpu1",
     seen(told={"torch": None, "slow": True, "problem": "no answer within 20 s", "cards": []})),
    ("torch-cuda", NOTE, "without CUDA", "image =", seen(told={"cuda": None})),
    ("matmul", FAULT, "GPU 1 computes wrongly: off by 3", "gpus = [INDEX",
     seen(told={"cards": [{"index": 0, "state": "ok"},
                          {"index": 1, "state": "wrong", "text": "off by 3"}]})),
    ("matmul", FAULT, "torch cannot use GPU 1: no kernel image", "restart the machine",
     seen(told={"cards": [{"index": 0, "state": "ok"},
                          {"index": 1, "state": "failed", "text": "no kernel image"}]})),
    ("matmul", FAULT, "wrongly on the CPU", "memory",
     seen(host=dataclasses.replace(HOST, gpus="none"),
          told={"matmul": False, "cards": [], "seen": 0})),
    ("all-reduce", FAULT, "(nccl): unhandled system error", "NCCL_P2P_DISABLE",
     seen(told={"reduce": {"backend": "nccl", "ranks": 2, "ok": False,
                           "text": "unhandled system error"}})),
    ("shm", NOTE, "64 MB of shared memory", "[limits]",
     seen(host=dataclasses.replace(HOST, limits=SMALL), told={"shm_bytes": 64 * 10**6})),
    ("shm", NOTE, "/dev/shm has 66 MB", "remount",
     seen({"shm": "shm 64000 0 64000 0% /dev/shm\n"}, host=VENV)),
    ("memory-limit", NOTE, "limits.memory is 128 GB", "hosts/gpu1.toml",
     seen(host=dataclasses.replace(HOST, limits=Limits(memory_bytes=128 * 10**9)))),
    ("memory", NOTE, "488 MiB free", "ps aux",
     seen({"memory": "MemTotal: 64000000 kB\nMemAvailable: 500000 kB\n"})),
    ("disk", FAULT, "~/runner: 307 MB free", "  runner gc host=gpu1 --dry-run",
     seen({"disk workspace": disk(300_000)})),
    ("disk", FAULT, "with the reserve of 600 GB", "runner gc",
     seen(host=dataclasses.replace(HOST, disk_reserve_bytes=600 * 10**9))),
    ("docker-disk", FAULT, "Docker's folder: 5.1 GB free", "docker system df",
     seen({"disk docker": disk(5 * GB, "/"), "images": "", "base": "", "containers": ""},
          worker=None)),
    ("inodes", FAULT, "~/runner: 12 inodes free", "many small files",
     seen({"disk workspace": disk(inodes=12)})),
    ("workspace", FAULT, "belongs to another account", "hosts/gpu1.toml",
     seen({"folder": "exists\nfolder\n"})),
    ("workspace", FAULT, "read-only", "hosts/gpu1.toml", seen(READ_ONLY)),
    ("workspace", FAULT, "cannot be written", "hosts/gpu1.toml",
     seen({"folders": "no\nyes\n"})),
    ("file-system", NOTE, "nfs", "workspace =", seen(NFS)),
    ("noexec", FAULT, "the home", "exec", seen(NOEXEC_HOME, host=VENV)),
    ("data", FAULT, "/data/atari", "hosts/gpu1.toml",
     seen(host=dataclasses.replace(HOST, data={"atari": "/data/atari"}))),
    ("clock", NOTE, "its clock is 2m ahead of ours", "timedatectl", seen(skew_s=130.0)),
    ("open-files", NOTE, "256 open files", "nofile",
     seen({"limits": "Max open files  256  256  files\n"}, host=VENV)),
    ("processes", NOTE, "100 processes", "nproc",
     seen({"limits": "Max processes  100  100  processes\n"}, host=VENV)),
    ("own-name", NOTE, "does not resolve", "/etc/hosts",
     seen({"names": "gpu1\n2\n0\n"}, host=VENV)),
    ("python", FAULT, "no /opt/python there", "python =",
     seen({PYTHON: None}, host=dataclasses.replace(VENV, python="/opt/python"))),
    ("python", FAULT, "/opt/python does not run there", "python =",
     seen({PYTHON: "oh\n"}, host=dataclasses.replace(VENV, python="/opt/python"))),
    ("python", FAULT, "/opt/python does not answer within 10 s", "python =",
     seen({PYTHON: None, "python /opt/python": "", "python-silent /opt/python": ""},
          host=dataclasses.replace(VENV, python="/opt/python"))),
    ("terminal", NOTE, "/dev/pts is mounted without gid=", "remount,gid=5",
     seen({"mounts": HEALTHY["mounts"] + "devpts /dev/pts devpts rw,mode=600 0 0\n"}, host=VENV)),
    ("python", FAULT, "python3 is 3.8.10", "newer", seen({PYTHON: python("3.8.10")}, host=VENV)),
    ("venv-module", FAULT, "ensurepip", "apt install python3-venv",
     seen({PYTHON: python(venv=False)}, host=VENV)),
    ("venv-pin", FAULT, "torch-2.6 has no list `pip`", "pip = [",
     seen(host=VENV, pin=PIN)),
    ("linger", FAULT, "KillUserProcesses", "loginctl enable-linger",
     seen({"boot": "cron-line\nLinger=no\nKillUserProcesses=yes\n"}, host=VENV)),
    ("at-boot", NOTE, "next contact", "--at-boot", seen({"boot": "Linger=no\n"}, host=VENV)),
    ("shell-noise", NOTE, "~/.bashrc prints at each login: HELLO", "case $- in",
     seen({"noise": "HELLO\n", "prints": ".bashrc\n"})),
    ("strict-modes", NOTE, ".ssh/authorized_keys", "chmod go-w",
     seen({"modes": "755 1000\n700 1000\n664 1000\n"})),
    ("strict-modes", NOTE, "home", "chmod go-w", seen({"modes": "777 1000\n700 1000\n600 1000\n"})),
    ("key-mode", NOTE, "mode 0644", "  chmod 600 /home/me/.ssh/id_ed25519",
     seen(here=Here(keys=(GOOD_KEY, dataclasses.replace(GOOD_KEY, mode=0o644))))),
    ("agent", NOTE, "cron", "IdentityFile",
     seen(here=Here(keys=(dataclasses.replace(GOOD_KEY, locked=True, in_agent=True),),
                    agent_keys=1))),
    ("ssh-client", NOTE, "no ssh client", "OpenSSH", seen(here=Here(has_ssh=False,
                                                                    keys=(GOOD_KEY,)))),
    ("home", NOTE, "HOME is not set", "HOME",
     seen(here=Here(keys=(GOOD_KEY,), home_problem="HOME is not set"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("id", "state", "text", "way", "one"),
    WRONG,
    ids=[f"{row[0]}-{n}" for n, row in enumerate(WRONG)],
)
def test_what_is_wrong_is_found_alone(id: str, state: str, text: str, way: str, one: Seen) -> None:
    expected = [(id, state)]
    checks = found(one)
    if id == "docker-disk":  # with no image there is no worker either
        checks = [check for check in checks if check.id != "worker"]
    assert [(check.id, check.state) for check in checks] == expected, [c.text for c in checks]
    assert text in checks[0].text
    assert way in "\n".join(checks[0].fix)
    assert "gpu1: " not in checks[0].text and "\n" not in checks[0].text


def test_the_table_has_every_finding_there_is() -> None:
    """A new check stands in the table above, or in a test of its own."""
    named = {row[0] for row in WRONG} | {"login", "host-key", "key-locked", "answer", "hangs"}
    named |= {"docker-root", "docker-version", "localhost", "persistence"}
    told = set()
    for module in TOPICS:
        text = inspect.getsource(module)
        told |= set(re.findall(r'(?:fault|note|make)\(\s*"([a-z-]+)"', text))
    assert not told - named


def test_what_prevents_a_fault_is_seen() -> None:
    by_cdi = {"CgroupDriver": "systemd", "DiscoveredDevices": [{"ID": "nvidia.com/gpu=all"}]}
    assert not found(seen({"info": json.dumps({**INFO, **by_cdi})}))
    kills = "Linger=yes\nKillUserProcesses=yes\n"
    assert not found(seen({"boot": kills}, host=VENV, told={"at_boot": "unit"}))
    assert only(seen({"boot": kills}, host=VENV)).id == "at-boot"
    # provision looks on where the first Python is of no use
    old = {PYTHON: python("3.8.10"), "python /opt/conda/bin/python3": python("3.12.1")}
    by_conda = seen(old, host=VENV)
    assert not found(by_conda)
    assert "Python 3.12.1" in {check.text for check in judge(by_conda)}
    # the image of another pin is of no use, however it begins
    for tag, room in (("torch-2.6-cu118-ab", 1), ("torch-2.6-ab", 0)):
        small = seen({"disk docker": disk(5 * GB, "/"), "base": "", "images": f"{tag} sha256:1\n"})
        assert [check.id for check in found(small)] == ["docker-disk"] * room
    # a container has names of its own, and restarts of before are over once it answers
    assert not found(seen({"names": "gpu1\n2\n2\n"}))
    assert not found(seen({"containers": container("running", 9)}))


# no session


UNREACHED: list[tuple[str, str, str, Exception, Here]] = [
    ("login", "no answer for 20 s", "", Unreachable("gpu1: no answer for 20 s"), Here()),
    ("host-key", "key changed", "runner host rekey gpu1",
     HostKeyError("gpu1: its key changed", "runner host rekey gpu1"), Here(keys=(GOOD_KEY,))),
    ("login", "key refused for drl", "chmod go-w",
     AuthRefused("gpu1: key refused for drl (offered id_ed25519)", "let this key in with:"),
     Here(keys=(GOOD_KEY,))),
    ("key-mode", "mode 0644", "  chmod 600 /home/me/.ssh/id_ed25519",
     AuthRefused("gpu1: key refused for drl"),
     Here(keys=(dataclasses.replace(GOOD_KEY, mode=0o644),))),
    ("key-locked", "id_ed25519 has a passphrase, and no agent holds it",
     "  ssh-add /home/me/.ssh/id_ed25519", AuthRefused("gpu1: key refused for drl"),
     Here(keys=(dataclasses.replace(GOOD_KEY, locked=True),))),
    ("answer", "breaks off", "", ProvisionError("gpu1: its answer breaks off"), Here()),
]  # fmt: skip


@pytest.mark.parametrize(
    ("id", "text", "way", "error", "here"), UNREACHED, ids=[row[0] for row in UNREACHED]
)
def test_without_a_session_that_is_all_there_is(
    id: str, text: str, way: str, error: Exception, here: Here
) -> None:
    one = Seen(host=HOST, pin=PIN, pins=PINS, here=here, error=error)  # type: ignore[arg-type]
    (check,) = judge(one)
    assert (check.id, check.state, check.topic) == (id, FAULT, "ssh")
    assert text in check.text and way in "\n".join(check.fix)
    assert not check.text.startswith("gpu1:")


def test_a_public_half_that_the_agent_serves_is_no_fault() -> None:
    key = KeyFile("/home/me/.ssh/id_ed25519.pub", None, in_agent=True)
    one = seen(here=Here(keys=(key,), agent_keys=1))
    assert only(one).id == "agent"
    assert not only(one).text.count("mode")


# an answer that is not whole, and one that lies


@pytest.mark.parametrize("until", ["noise", "nvidia", "docker", "info", "gpu-modes", "toolkit"])
def test_an_answer_that_breaks_off_is_judged_as_far_as_it_came(until: str) -> None:
    one = seen({until: ""}, until=until, worker=None)
    assert one.stopped_in == until
    faults = [check for check in judge(one) if check.state == FAULT]
    assert [check for check in faults if "does not answer" in check.text], faults
    assert all(check.fix for check in faults)


def test_where_nothing_came_at_all_the_host_hangs() -> None:
    one = dataclasses.replace(seen(worker=None), parts={}, facts=None, stopped_in="")
    (check,) = [check for check in judge(one) if check.state == FAULT]
    assert check.id == "hangs"


NONSENSE = ("", "\x00\x1b[31m", "9" * 400, "-1, -1, -1, -1, -1, -1\n" * 3, "{" * 5000, "[]\n", "ß")


@pytest.mark.parametrize("text", NONSENSE, ids=range(len(NONSENSE)))
@pytest.mark.parametrize("host", [HOST, VENV, LOCAL], ids=lambda host: str(host.runtime))
def test_nonsense_from_a_host_never_breaks_it(host: Host, text: str) -> None:
    for name in HEALTHY:
        for check in judge(seen({name: text}, host=host)):
            assert len(check.text) < 700, (name, check.id)
    for key in TOLD:
        odd: list[Any] = [None, text, [], {}, -1, [text], [{"index": text, "state": text}], True]
        for value in odd:
            judge(seen(told={key: value}, host=host))


def test_no_command_of_a_fix_holds_what_a_host_said() -> None:
    evil = "$(touch x)"
    names = ("noise", "prints", "names", "nvidia", "docker", "shell", "boot", "toolkit")
    for name in names:
        text = evil + "\n" + HEALTHY.get(name, "")
        for check in judge(seen({name: text})):
            assert not [line for line in check.fix if evil in line], (name, check)
    hostile = HEALTHY["account"].replace("drl", "drl;touch")
    for check in judge(seen({"account": hostile, **UNUSABLE, "docker": DENIED}, worker=None)):
        assert not [line for line in check.fix if "touch" in line], check


# the question itself


def test_the_question_runs_in_any_sh_and_is_answered_to_its_end(tmp_path: Any) -> None:
    host = dataclasses.replace(LOCAL, data={"here": str(tmp_path)})
    pin = ImagePin("none", "", "", "", "0", ())
    argv = questions.argv(host, pin, CUT, workspace=str(tmp_path / "ws"), images="none")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SHELL": "/bin/sh"}
    for path in ("/usr/bin:/bin", "/nowhere"):
        done = subprocess.run(
            ["/bin/sh", *argv[1:]], env={**env, "PATH": path}, capture_output=True, timeout=60
        )
        text = done.stdout.decode("utf-8", "replace")
        answer = parse_answer(text, CUT, host)
        parts, facts = answer.parts, answer.facts
        assert answer.stopped_in is None and "done" in parts
        if path != "/nowhere":  # without a single tool there is nothing to be told
            assert facts is not None and facts.real_workspace == str(tmp_path / "ws")
            assert facts.data == {str(tmp_path): str(tmp_path)}
            assert parse_disk(parts["disk workspace"].splitlines()) is not None
    assert not (tmp_path / "ws").exists()


# small things


def test_df_is_read_whatever_it_says() -> None:
    lines = disk().splitlines()
    assert parse_disk(lines) == Disk(
        900 * GB * 1024, 500 * GB * 1024, "/home", 61_000_000, 60_000_000
    )
    assert parse_disk([lines[0], "btrfs 0 0 0 - /home"]) == Disk(
        900 * GB * 1024, 500 * GB * 1024, "/home"
    )
    over = parse_disk(["/dev/a b 10 20 -10 100% /a b"])
    assert over is not None and (over.free, over.mount) == (0, "/a b")
    assert parse_disk([]) is None and parse_disk(["df: no such file"]) is None


def test_faults_come_first_and_each_kind_as_it_bites() -> None:
    checks = [ok("a", "disk", "a"), note("b", "docker", "b"), fault("c", "disk", "c")]
    checks += [fault("d", "ssh", "d"), note("e", "ssh", "e")]
    assert [check.id for check in in_order(checks)] == ["d", "c", "e", "b", "a"]
    assert HostHealth("gpu1", "ok", "gpu1", 0.1, tuple(checks)).faults == 2


def test_who_uses_a_card_beside_its_runs_is_told_by_the_worker() -> None:
    apps = {"gpu-apps": "GPU-0, 4127, 900, python\n", "gpu-users": "4127 drl\n"}
    assert not found(seen(apps))  # the worker knows: it is one of its runs
