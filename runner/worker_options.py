"""How a worker's container is started, and what it is told of itself (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.host_facts import HostFacts
from runner.model import Host, ImagePin

STOP_TIMEOUT_S = 120
LIMITS = ("--ulimit=memlock=-1", "--ulimit=stack=67108864")
"""What NVIDIA asks for NCCL, beside shared memory; left out where the engine may not raise them."""
DATA = "/data"
"""Where a container shows the folders of the host file's [data]."""
_PIDS = 8192
"""Threads count too: 64 environments in processes of 20 threads each must fit."""
_NETWORKS = {"full": (), "none": ("--network=none",), "host": ("--network=host",)}


@dataclass(frozen=True)
class Folders:
    """Where what a container needs lies on the host, besides its workspace."""

    state: str
    """This one's own: worker.json."""
    leases: str
    keys: str


def worker_record(
    host: Host, pin: ImagePin, facts: HostFacts, worker: str, generation: int
) -> dict[str, Any]:
    """worker.json: what the worker program reads of itself."""
    return {
        "format": 1,
        "worker": worker,
        "runtime": "docker",
        "host": host.name,
        "place": place_name(pin.name, generation),
        "generation": generation,
        "image": {
            "pin": pin.name,
            "id": facts.base_id,
            "base": next(iter(facts.base_digests), pin.base),
            "torch": pin.torch,
            "cuda": pin.cuda,
        },
        **host.settings(),
        "network": host.network,
        "data": {name: f"{DATA}/{name}" for name in host.data},
    }


def place_name(pin: str, generation: int) -> str:
    """How a workspace calls this worker among its others."""
    return f"{pin}.{generation}"


def lasting(record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a record is the same for the next worker that is made of the same."""
    passing = ("worker", "host", "place", "generation")
    return {key: value for key, value in record.items() if key not in passing}


def container_options(
    host: Host, facts: HostFacts, owner: tuple[int, int], *, uses_gpus: bool
) -> list[str]:
    """The options of `docker run` that make the worker what it is; see `own_options` for more."""
    uid, gid = owner
    memory = host.limits.memory_bytes
    return [
        "--restart=always",
        f"--stop-timeout={STOP_TIMEOUT_S}",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--read-only",
        f"--pids-limit={_PIDS}",
        # no swap beside it: a job that takes too much is ended, and slows nobody before
        *([f"--memory={memory}", f"--memory-swap={memory}"] if memory else []),
        f"--shm-size={host.limits.shm_bytes}",
        *LIMITS,
        *_NETWORKS[host.network],
        # exec: what torch.compile and Triton write there is loaded from there
        "--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777",
        f"--tmpfs=/run:rw,nosuid,nodev,mode=0755,uid={uid},gid={gid}",
        f"--tmpfs=/home/runner:rw,exec,nosuid,nodev,mode=0700,uid={uid},gid={gid}",
        f"--mount=type=bind,source={facts.workspace},target=/workspace",
        # as it is there with links followed, for that is what was checked
        *(
            f"--mount=type=bind,source={facts.data[path]},target={DATA}/{name},readonly"
            for name, path in sorted(host.data.items())
        ),
        "--env=RUNNER_WORKSPACE=/workspace",
        "--env=RUNNER_LEASES=/leases",
        "--env=RUNNER_WORKER_CONFIG=/etc/runner/worker/worker.json",
        "--log-driver=local",
        "--log-opt=max-size=5m",
        *(["--gpus=all"] if uses_gpus else []),
    ]


def own_options(hostname: str, folders: Folders, place: str) -> list[str]:
    """The options that differ from one worker of a workspace to the next."""
    return [
        f"--mount=type=bind,source={folders.leases},target=/leases",
        f"--mount=type=bind,source={folders.keys},target=/etc/runner/keys,readonly",
        f"--mount=type=bind,source={folders.state},target=/etc/runner/worker,readonly",
        f"--env=RUNNER_PLACE={place}",
        # torch's rendezvous looks up the machine's own name
        f"--hostname={hostname}",
        f"--add-host={hostname}:127.0.0.1",
    ]
