"""What to make on a host so that it has its worker: decided from facts alone (pure).

A worker is a container named `runner-UID-KEY-PIN` with the label `org.runner.worker`; no other
container is ever touched. Its image is named by a digest of all that goes into it, its options by
a digest too, so that asking for the same again does nothing. One that is to be replaced steps aside
under another name (placement.py), and its runs end there.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.data_rules import SOCKETS, STATE_FOLDER, refused_data
from runner.errors import Conflict, ProvisionError
from runner.host_facts import Card, Container, HostFacts
from runner.model import Host, ImagePin
from runner.placement import KEY_LABEL, container_suffix, worker_key
from runner.worker_options import (
    Folders,
    container_options,
    lasting,
    own_options,
    place_name,
    worker_record,
)

IMAGES = "runner-worker"
"""The repository of the images we make."""
WORKER_LABEL = "org.runner.worker"
IMAGE_LABEL = "org.runner.image"
GENERATION_LABEL = "org.runner.generation"
OPTIONS_LABEL = "org.runner.options"
ROOTS_STAND_IN = 1000
"""The worker's uid and gid where the account is root: its jobs are never root."""
_FORMAT = 1
_ENDED = ("created", "exited", "dead")


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
    generation: int
    """That of the container which is there, or the next one."""
    record: Mapping[str, Any] = field(repr=False)
    """worker.json"""
    run_argv: tuple[str, ...] = field(repr=False)
    """`docker run` with everything but the environment of the host file."""
    folders: Folders
    build: bool = False
    create: bool = False
    """The container is missing, stopped or another one."""
    current: Container | None = None
    """The one of ours that has the name and is to give it up."""
    before: tuple[Container, ...] = ()
    """Workers of a version that knew no others beside them: they do not step aside."""
    leftovers: tuple[Container, ...] = ()
    """Containers of ours that have ended and that nobody needs any more."""
    stale: tuple[str, ...] = ()
    """Folders in workers/ of containers that are gone."""
    mend: tuple[tuple[str, str], ...] = ()
    """(id, restart policy) of containers whose policy a provision that was cut left wrong."""
    uses_gpus: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Nothing is missing."""
        return not self.build and not self.create and not self.before

    @property
    def state_name(self) -> str:
        """Its folder in workers/ on the host."""
        return f"{self.container}.{self.generation}"

    @property
    def old_name(self) -> str:
        """What the current one is called once it has stepped aside."""
        assert self.current is not None
        return f"{self.container}-old-{self.current.generation}"


def container_name(uid: int, host: Host, image: str | None = None) -> str:
    """The container that `placement.worker_argv` looks for."""
    return f"runner-{uid}-{container_suffix(host, image)}"


def check_host(host: Host, pin: ImagePin, pins: Mapping[str, ImagePin], facts: HostFacts) -> None:
    """Refuses a host where the worker cannot be made. Raises ProvisionError; touches nothing."""
    if host.runtime == "docker":
        _check_docker(host, facts)
    check_workspace(host, facts)
    _check_data(host, facts)
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


def check_workspace(host: Host, facts: HostFacts) -> None:
    """Refuses a folder that cannot be a workspace. Raises ProvisionError."""
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
    if host.runtime == "docker" and any(sign in facts.workspace for sign in ':,"\n'):
        raise ProvisionError(f"{where}: Docker cannot mount a folder with such signs in its path")


def _check_data(host: Host, facts: HostFacts) -> None:
    """What the host file names as data must be there and nothing jobs may not see."""
    sockets = {*SOCKETS, *facts.sockets}
    for name, path in host.data.items():
        where = f"{host.name}: data.{name}: {path}"
        real = facts.data.get(path)
        if real is None:
            raise ProvisionError(f"{where} is no folder there, or one you may not read")
        if any(sign in real for sign in ',"\n'):
            raise ProvisionError(
                f"{where}: Docker cannot mount a folder with such signs in its path"
            )
        state = {facts.real_state} - {""}
        for workspace in {facts.workspace, facts.real_workspace}:
            why = refused_data(
                real, workspace=workspace, home=facts.real_home, sockets=sockets, state=state
            )
            if why is not None:
                is_link = posixpath.normpath(path) != real
                raise ProvisionError(f"{where}{f' leads to {real}' if is_link else ''}: {why}")


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
    if host.runtime == "docker" and not facts.has_nvidia_runtime:
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

    new_worker: the id of the worker if there was none before. Raises ProvisionError for a container
    that is in the way, and Conflict for one that must be left alone for now.
    """
    assert facts.base_id is not None
    uid, gid = (facts.uid, facts.gid) if facts.uid else (ROOTS_STAND_IN, ROOTS_STAND_IN)
    inputs = inputs_digest(facts.base_id, context_digest, uid, gid)
    tag = f"{pin.name}-{inputs[:16]}".lower()
    name = container_name(facts.uid, host, pin.name)
    uses_gpus = bool(facts.cards) and host.gpus != "none"
    leftovers = _leftovers(facts, name)
    current = _current(host, facts, name)
    options = container_options(host, facts, (uid, gid), uses_gpus=uses_gpus)
    worker = facts.worker or new_worker
    kept = lasting(worker_record(host, pin, facts, worker, 0))
    identity = {"options": options, "env": dict(host.env), "inputs": inputs}
    digest = hashlib.sha256(json.dumps([identity, kept], sort_keys=True).encode()).hexdigest()[:32]
    same = (
        current is not None
        and current.status == "running"
        and current.labels.get(OPTIONS_LABEL) == digest
        and current.image == facts.images.get(tag)
    )
    build = rebuild or tag not in facts.images
    create = build or not same
    generation = facts.generations.get(pin.name, 0) + 1
    if not create and current is not None:
        generation = current.generation
    state = f"{facts.home}/{STATE_FOLDER}"
    folders = Folders(
        state=f"{state}/workers/{name}.{generation}", leases=f"{state}/leases", keys=f"{state}/keys"
    )
    labels = {
        WORKER_LABEL: worker,
        KEY_LABEL: worker_key(host),
        IMAGE_LABEL: pin.name,
        GENERATION_LABEL: str(generation),
        OPTIONS_LABEL: digest,
    }
    hostname = f"runner-{facts.uid}-{worker_key(host)}"
    own = own_options(hostname, folders, place_name(pin.name, generation))
    said = [word for key, value in labels.items() for word in ("--label", f"{key}={value}")]
    return WorkerPlan(
        container=name,
        image=f"{IMAGES}:{tag}",
        inputs=inputs,
        uid=uid,
        gid=gid,
        worker=worker,
        generation=generation,
        record=worker_record(host, pin, facts, worker, generation),
        run_argv=("docker", "run", "--detach", "--name", name, *said, *options, *own),
        folders=folders,
        build=build,
        create=create,
        current=current if create else None,
        before=tuple(each for each in facts.containers if is_ours(each) and each.pin is None),
        leftovers=leftovers,
        stale=_stale(facts, name, generation, leftovers),
        mend=_mend(facts, current),
        uses_gpus=uses_gpus,
        notes=_notes(host, facts),
    )


def is_ours(container: Container) -> bool:
    """Whether it is a worker's, of any workspace."""
    return WORKER_LABEL in container.labels


def _current(host: Host, facts: HostFacts, name: str) -> Container | None:
    """The container that has the worker's name."""
    found = next((each for each in facts.containers if each.name == name), None)
    if found is None:
        return None
    if not is_ours(found):
        raise ProvisionError(
            f"{host.name}: a container called {name} is there and not the runner's"
        )
    if found.status in ("paused", "removing"):
        raise Conflict(
            f"{host.name}: its container {name} is {found.status}; nothing was changed",
            *([f"docker unpause {name}"] if found.status == "paused" else []),
        )
    return found


def _leftovers(facts: HostFacts, name: str) -> tuple[Container, ...]:
    """Those that have stepped aside and ended, of any pin."""
    return tuple(
        each
        for each in facts.containers
        if is_ours(each) and each.name != name and is_old(each) and each.status in _ENDED
    )


def is_old(container: Container) -> bool:
    """Whether it has stepped aside."""
    return container.name.endswith(f"-old-{container.generation}")


def _stale(
    facts: HostFacts, name: str, generation: int, leftovers: Iterable[Container]
) -> tuple[str, ...]:
    """Folders of older workers of this pin; those of a newer one may just be in the making."""
    there = [each for each in facts.containers if is_ours(each) and each not in leftovers]
    in_use = {each.generation for each in there}
    found = [record.rpartition(".") for record in facts.records]
    return tuple(
        f"{name}.{number}"
        for of, _, number in found
        if of == name and number.isascii() and number.isdigit()
        if int(number) < generation and int(number) not in in_use
    )


def _mend(facts: HostFacts, current: Container | None) -> tuple[tuple[str, str], ...]:
    wanted = [
        (each, "always" if each == current else "no")
        for each in facts.containers
        if is_ours(each) and (each == current or is_old(each))
    ]
    return tuple(
        (each.id, policy)
        for each, policy in wanted
        if each.restart_policy != policy and each.status not in _ENDED
    )


def _notes(host: Host, facts: HostFacts) -> tuple[str, ...]:
    if host.gpus == "none" or facts.cards:
        return ()
    return (f"{host.name} has no GPU that nvidia-smi shows; its runs will use CPUs",)
