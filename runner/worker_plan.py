"""What to make on a host so that it has its worker: decided from facts alone (pure).

A worker is a container named `runner-UID-KEY` with the label `org.runner.worker`; no other
container is ever touched. Its image is named by a digest of all that goes into it, its options by
a digest too, so that asking for the same again does nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.errors import ProvisionError
from runner.host_facts import Card, HostFacts
from runner.model import Host, ImagePin
from runner.placement import worker_key

IMAGES = "runner-worker"
"""The repository of the images we make."""
WORKER_LABEL = "org.runner.worker"
OPTIONS_LABEL = "org.runner.options"
STATE_FOLDER = ".local/state/runner"
ROOTS_STAND_IN = 1000
"""The worker's uid and gid where the account is root: its jobs are never root."""
STOP_TIMEOUT_S = 120
_PIDS = 8192
"""Threads count too: 64 environments in processes of 20 threads each must fit."""
_FORMAT = 1


@dataclass(frozen=True)
class WorkerPlan:
    """What is to be there, and what of it is missing."""

    container: str
    image: str
    """Tag of the worker's image."""
    inputs: str
    """Digest of all that goes into the image; its tag and label."""
    uid: int
    gid: int
    worker: str
    record: Mapping[str, Any] = field(repr=False)
    """worker.json"""
    run_argv: tuple[str, ...] = field(repr=False)
    """`docker run` with everything but the environment of the host file."""
    state_folder: str = ""
    """Where worker.json goes on the host."""
    leases: str = ""
    build: bool = False
    create: bool = False
    """The container is missing, stopped or another one."""
    replace: bool = False
    """There is one of ours to take away first."""
    uses_gpus: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Nothing is missing."""
        return not self.build and not self.create


def container_name(uid: int, host: Host) -> str:
    """The container that `placement.worker_argv` looks for."""
    return f"runner-{uid}-{worker_key(host)}"


def check_host(host: Host, pin: ImagePin, pins: Mapping[str, ImagePin], facts: HostFacts) -> None:
    """Refuses a host where the worker cannot be made. Raises ProvisionError; touches nothing."""
    _check_docker(host, facts)
    _check_workspace(host, facts)
    if host.gpus != "none":
        _check_gpus(host, pin, pins, facts)


def _check_docker(host: Host, facts: HostFacts) -> None:
    if not facts.has_docker:
        raise ProvisionError(f"{host.name}: there is no Docker; its keeper can install it")
    if facts.docker_version is None:
        said = facts.docker_error.splitlines()
        if "permission denied" in facts.docker_error.lower():
            raise ProvisionError(
                f"{host.name}: {facts.user} may not use Docker there; its keeper can allow it:",
                f"  usermod -aG docker {facts.user}",
                "whoever is in that group is root on the host",
            )
        raise ProvisionError(f"{host.name}: Docker does not answer there", *said[-1:])


def _check_workspace(host: Host, facts: HostFacts) -> None:
    real, marks = facts.real_workspace, facts.workspace_marks
    where = f"{host.name}: workspace {host.workspace}"
    if real in ("/", ""):
        raise ProvisionError(f"{where} is the root of the file system; name a folder of its own")
    if real == facts.real_home:
        raise ProvisionError(f"{where} is the home itself; name a folder in it, as ~/runner")
    if facts.real_home.startswith(real + "/"):
        raise ProvisionError(f"{where} holds the home; name a folder of its own")
    if "holds-ssh" in marks:
        raise ProvisionError(f"{where} holds .ssh; name a folder of its own")
    if "exists" in marks and "folder" not in marks:
        raise ProvisionError(f"{where} is no folder")
    if "exists" in marks and not marks & {"own", "stand-in"}:
        raise ProvisionError(f"{where} belongs to another account")
    if any(sign in facts.workspace for sign in ':,"\n'):
        raise ProvisionError(f"{where}: Docker cannot mount a folder with such signs in its path")


def _check_gpus(host: Host, pin: ImagePin, pins: Mapping[str, ImagePin], facts: HostFacts) -> None:
    wanted = host.gpus if isinstance(host.gpus, tuple) else ()
    without = 'to use its CPUs alone, write in its file:  gpus = "none"'
    if facts.has_nvidia_smi and facts.nvidia_error:
        line = facts.nvidia_error.splitlines()[0]
        raise ProvisionError(f"{host.name}: nvidia-smi fails there: {line}", without)
    missing = [index for index in wanted if index not in {card.index for card in facts.cards}]
    if missing:
        raise ProvisionError(
            f"{host.name}: it has no GPU {', '.join(map(str, missing))}"
            f" (it has {len(facts.cards)})",
            f"gpus in hosts/{host.name}.toml names them",
        )
    if not facts.cards:
        return
    if not driver_suffices(facts.driver, pin):
        raise ProvisionError(
            f"{host.name}: its driver is {facts.driver}; image {pin.name} needs"
            f" {pin.driver_min} or newer",
            *_other_pins(host, pins, facts),
        )
    for card in facts.cards:
        if (not wanted or card.index in wanted) and not card_fits(card, pin):
            raise ProvisionError(
                f"{host.name}: image {pin.name} has no code for GPU {card.index}"
                f" ({card.name}, capability {_capability(card)})",
                *_other_pins(host, pins, facts),
            )
    if not facts.has_nvidia_runtime:
        raise ProvisionError(
            f"{host.name}: Docker there cannot give a container the GPUs; its keeper can install"
            " the NVIDIA container toolkit and restart Docker",
            without,
        )


def _other_pins(host: Host, pins: Mapping[str, ImagePin], facts: HostFacts) -> list[str]:
    fitting = [
        pin.name
        for pin in pins.values()
        if pin.name != host.image
        and driver_suffices(facts.driver, pin)
        and all(card_fits(card, pin) for card in facts.cards)
    ]
    if not fitting:
        return ["no image pin fits; images.toml beside hosts/ may add one"]
    return ["this one fits:", f"  runner provision host={host.name} image={fitting[0]}"]


def driver_suffices(driver: str | None, pin: ImagePin) -> bool:
    """Whether the driver is new enough; one that is not told is not judged."""
    return driver is None or _numbers(driver) >= _numbers(pin.driver_min)


def card_fits(card: Card, pin: ImagePin) -> bool:
    """Code for X.z runs on a card of capability X.y where z <= y; never for another X."""
    if card.capability is None or not pin.capabilities:
        return True
    major, minor = card.capability
    built = [_numbers(text) for text in pin.capabilities]
    return any(code[0] == major and code[1] <= minor for code in built if len(code) == 2)


def _capability(card: Card) -> str:
    return "-" if card.capability is None else "{}.{}".format(*card.capability)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def inputs_digest(base_id: str, context_digest: str, uid: int, gid: int) -> str:
    """The name of an image: all that decides what is in it."""
    text = json.dumps([_FORMAT, base_id, context_digest, uid, gid])
    return hashlib.sha256(text.encode()).hexdigest()


def plan_worker(
    host: Host,
    pin: ImagePin,
    facts: HostFacts,
    *,
    context_digest: str,
    rebuild: bool,
    new_worker: str,
) -> WorkerPlan:
    """What to make. The base image must be there (`facts.base_id`).

    new_worker: the id of the worker if there was none before.
    """
    assert facts.base_id is not None
    uid, gid = (facts.uid, facts.gid) if facts.uid else (ROOTS_STAND_IN, ROOTS_STAND_IN)
    inputs = inputs_digest(facts.base_id, context_digest, uid, gid)
    tag = f"{pin.name}-{inputs[:16]}".lower()
    name = container_name(facts.uid, host)
    worker = facts.worker or new_worker
    uses_gpus = bool(facts.cards) and host.gpus != "none"
    record = _record(host, pin, facts, worker)
    state = f"{facts.home}/{STATE_FOLDER}/workers/{name}"
    leases = f"{facts.home}/{STATE_FOLDER}/leases"
    options = _options(host, facts, name, (uid, gid), uses_gpus, state, leases)
    identity = {"options": options, "env": dict(host.env), "inputs": inputs}
    kept = {key: value for key, value in record.items() if key not in ("worker", "host")}
    digest = hashlib.sha256(json.dumps([identity, kept], sort_keys=True).encode()).hexdigest()[:32]
    labels = ["--label", f"{WORKER_LABEL}={worker}", "--label", f"{OPTIONS_LABEL}={digest}"]
    found = facts.container
    ours = found is not None and WORKER_LABEL in found.labels
    if found is not None and not ours:
        raise ProvisionError(
            f"{host.name}: a container called {name} is there and not the runner's"
        )
    same = (
        found is not None
        and found.status == "running"
        and found.labels.get(OPTIONS_LABEL) == digest
        and found.image == facts.images.get(tag)
    )
    build = rebuild or tag not in facts.images
    return WorkerPlan(
        container=name,
        image=f"{IMAGES}:{tag}",
        inputs=inputs,
        uid=uid,
        gid=gid,
        worker=worker,
        record=record,
        run_argv=("docker", "run", "--detach", "--name", name, *labels, *options),
        state_folder=state,
        leases=leases,
        build=build,
        create=build or not same,
        replace=ours,
        uses_gpus=uses_gpus,
        notes=_notes(host, facts),
    )


def _record(host: Host, pin: ImagePin, facts: HostFacts, worker: str) -> dict[str, Any]:
    gpus: Any = list(host.gpus) if isinstance(host.gpus, tuple) else host.gpus
    return {
        "format": 1,
        "worker": worker,
        "runtime": "docker",
        "host": host.name,
        "image": {
            "pin": pin.name,
            "id": facts.base_id,
            "base": next(iter(facts.base_digests), pin.base),
            "torch": pin.torch,
            "cuda": pin.cuda,
        },
        "gpus": gpus,
        "slots": host.slots,
        "disk_reserve": host.disk_reserve_bytes,
        "env": dict(host.env),
    }


def _options(
    host: Host,
    facts: HostFacts,
    name: str,
    owner: tuple[int, int],
    uses_gpus: bool,
    state: str,
    leases: str,
) -> list[str]:
    uid, gid = owner
    memory = host.limits.memory_bytes
    return [
        "--restart=always",
        f"--stop-timeout={STOP_TIMEOUT_S}",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--read-only",
        f"--pids-limit={_PIDS}",
        *([f"--memory={memory}"] if memory else []),
        f"--shm-size={host.limits.shm_bytes}",
        # exec: what torch.compile and Triton write there is loaded from there
        "--tmpfs=/tmp:rw,exec,nosuid,nodev,mode=1777",
        f"--tmpfs=/run:rw,nosuid,nodev,mode=0755,uid={uid},gid={gid}",
        f"--tmpfs=/home/runner:rw,exec,nosuid,nodev,mode=0700,uid={uid},gid={gid}",
        f"--mount=type=bind,source={facts.workspace},target=/workspace",
        f"--mount=type=bind,source={leases},target=/leases",
        f"--mount=type=bind,source={state},target=/etc/runner/worker,readonly",
        "--env=RUNNER_WORKSPACE=/workspace",
        "--env=RUNNER_LEASES=/leases",
        "--env=RUNNER_WORKER_CONFIG=/etc/runner/worker/worker.json",
        # torch's rendezvous looks up the machine's own name
        f"--hostname={name}",
        f"--add-host={name}:127.0.0.1",
        "--log-driver=local",
        "--log-opt=max-size=5m",
        *(["--gpus=all"] if uses_gpus else []),
    ]


def _notes(host: Host, facts: HostFacts) -> tuple[str, ...]:
    if host.gpus == "none" or facts.cards:
        return ()
    return (f"{host.name} has no GPU that nvidia-smi shows; its runs will use CPUs",)
