"""The worker there: whether it is up, takes runs up, and its torch computes rightly (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runner.doctor.answers import Seen
from runner.doctor.findings import Check, commands_apart, fault, note, ok, skipped
from runner.errors import ProvisionError
from runner.show.undelivered import left_text
from runner.show.units import memory, plural

MANY_RESTARTS = 3


def is_made(seen: Seen) -> bool:
    """Whether there is a worker to talk to."""
    if seen.facts is None:
        return False
    if seen.host.runtime == "docker":
        return seen.container is not None and seen.container.status == "running"
    return seen.lines("made")[:1] == ["yes"]


def judge(seen: Seen) -> Iterator[Check]:
    """Skipped where what it needs is missing already, which is said elsewhere."""
    facts = seen.facts
    if facts is None:
        return
    make = f"  runner provision host={seen.host.name}"
    if seen.host.runtime == "docker":
        if facts.docker_version is None:
            return
        yield from _container(seen, make)
    elif not is_made(seen):
        if seen.host.runtime == "venv":
            yield fault("worker", "worker", "there is no worker yet", "make it:", make)
        else:
            yield ok("worker", "worker", "no worker yet (it starts with the first run)")
    if seen.worker is not None:
        yield from _told(seen, seen.worker)
    elif seen.worker_error is not None:
        error = seen.worker_error
        text = error.message.removeprefix(f"{seen.host.name}: ")
        if isinstance(error, ProvisionError):
            yield fault("worker", "worker", text, *(commands_apart(error.advice) or (make,)))
        else:
            advice = commands_apart(error.advice)
            yield note("worker", "worker", f"the try in the worker: {text}", *advice)


def _container(seen: Seen, make: str) -> Iterator[Check]:
    found = seen.container
    if found is None:
        others = {each.pin for each in (seen.facts.containers if seen.facts else ())} - {None}
        of = f" of image {seen.pin.name}" if others else ""
        yield fault("worker", "worker", f"there is no worker{of} yet", "make it:", make)
    elif found.status == "restarting" or (
        found.status == "running" and found.restarts >= MANY_RESTARTS and seen.worker is None
    ):
        yield fault(
            "worker", "worker", "its container ends as soon as it has started"
            f" ({plural(found.restarts, 'restart')} so far)",
            f"see why, {seen.there}, then make it anew:",
            f"  docker logs --tail 20 {found.name}", make,
        )  # fmt: skip
    elif found.status == "paused":
        yield fault("worker", "worker", "its container is paused", f"{seen.there}:",
                    f"  docker unpause {found.name}")  # fmt: skip
    elif found.status != "running":
        yield fault(
            "worker", "worker", f"its container has ended ({found.status}), and nothing starts it",
            "start it again:", make,
        )  # fmt: skip
    elif seen.stale:
        yield note(
            "worker-age", "worker", "the worker was made of another image, host file or version"
            " than now",
            "make it anew; runs that live there end there:", make,
        )  # fmt: skip
    if found is not None and found.status == "running" and not seen.stale:
        yield ok("worker", "worker", f"worker {seen.pin.name}")


def _told(seen: Seen, told: Mapping[str, Any]) -> Iterator[Check]:
    # any other is started by the next contact that needs it
    if told.get("up") is False and seen.host.runtime == "docker":
        yield fault(
            "dispatcher", "worker", "the worker is there, and nothing takes runs up (its"
            " dispatcher is not up)",
            "see why, then make it anew:", f"  runner provision host={seen.host.name}",
        )  # fmt: skip
    else:
        yield ok("dispatcher", "worker", "dispatcher")
    if told.get("drained") is True:
        yield note(
            "drained", "worker", "it is drained: nothing new starts there", "let it start again:",
            f"  runner undrain host={seen.host.name}",
        )  # fmt: skip
    text = left_text(told.get("messages"))
    if text is not None:
        yield note("messages", "worker", text, "see why:",
                   f"  runner notify test host={seen.host.name}")  # fmt: skip
    if told.get("leases") is False and seen.lines("folders")[1:2] != ["no"]:
        yield fault(
            "leases", "worker", "the worker cannot write the folder of leases; no run gets a GPU",
            f"{seen.there}:", "  chmod -R u+rwX ~/.local/state/runner/leases",
        )  # fmt: skip
    stuck = [run for run in _list(told, "stuck") if isinstance(run, str)][:3]
    if stuck:
        yield note(
            "stuck", "worker", f"no sign of life for long: {', '.join(stuck)}",
            "see why each does not move:", "  runner why RUN",
        )  # fmt: skip
    shm = told.get("shm_bytes")
    wanted = seen.host.limits.shm_bytes
    if seen.host.runtime == "docker" and isinstance(shm, int) and shm < wanted * 0.9:
        yield note(
            "shm-there", "shm", f"the worker has {memory(shm / 2**20)} of shared memory, the host"
            f" file says {memory(wanted / 2**20)}",
            "make it anew:", f"  runner provision host={seen.host.name}",
        )  # fmt: skip
    yield from _tried(seen, told)


def _tried(seen: Seen, told: Mapping[str, Any]) -> Iterator[Check]:
    """What the job's Python did, on the cards that nobody has."""
    problem = told.get("problem")
    if told.get("tried") is False:
        yield skipped("torch", "torch", str(problem or "not tried")[:120])
        return
    if told.get("torch") is None:
        text = str(problem or "it said nothing")[:200]
        if told.get("slow"):
            yield note("torch", "torch", f"torch in the worker: {text}", "try again; the first"
                       " import from a cold disk is slow:",
                       f"  runner doctor host={seen.host.name}")  # fmt: skip
        elif seen.host.runtime == "venv" and not _names_torch(seen.pin.pip):
            yield note("torch", "torch", f"image {seen.pin.name} has no torch",
                       "fine where your jobs need none")  # fmt: skip
        elif seen.host.runtime == "local":
            yield note("torch", "torch", f"this Python cannot use torch: {text}",
                       "fine where your jobs do not; else:", "  pip install torch")  # fmt: skip
        else:
            yield fault("torch", "torch", f"the worker's Python cannot use torch: {text}",
                        "make it anew:",
                        f"  runner provision host={seen.host.name} --rebuild")  # fmt: skip
        return
    yield ok("torch", "torch", f"torch {str(told['torch'])[:40]}")
    yield from _cards(seen, told)
    yield from _reduced(seen, told)


def _names_torch(pip: Sequence[str]) -> bool:
    """Whether a pin's packages hold torch."""
    return any(re.match(r"torch\s*([=<>~!\[@]|$)", line) for line in pip)


def _cards(seen: Seen, told: Mapping[str, Any]) -> Iterator[Check]:
    cards = [row for row in _list(told, "cards") if isinstance(row, dict)]
    if cards and told.get("cuda") is None:
        yield note(
            "torch-cuda", "torch", "this torch was built without CUDA; it has no use for the"
            f" {plural(len(cards), 'GPU')}",
            "choose an image with CUDA in its host file, as  image = \"torch-2.6\"",
        )  # fmt: skip
        return
    well = []
    for row in cards:
        state, index = row.get("state"), row.get("index")
        text = str(row.get("text") or "")[:160]
        if state == "ok":
            free = row.get("free_mib")
            well.append(f"GPU {index}" + (f" {memory(free)} free" if _is_number(free) else ""))
        elif state == "wrong":
            yield fault(
                "matmul", "torch", f"GPU {index} computes wrongly: {text}",
                "leave it out in its host file (gpus = [INDEX, …]) and have it looked at",
            )  # fmt: skip
        elif state == "failed":
            yield fault(
                "matmul", "torch", f"torch cannot use GPU {index}: {text}",
                "after a driver upgrade restart the machine; else see  sudo dmesg | grep -i nvrm",
            )  # fmt: skip
        else:
            yield skipped("matmul", "torch", f"GPU {index} not tried: {text or 'in use'}")
    if well:
        yield ok("matmul", "torch", f"matmul ({', '.join(well)})")
    elif not cards:
        yield _on_cpu(told)


def _on_cpu(told: Mapping[str, Any]) -> Check:
    if told.get("matmul") is False:
        return fault("matmul", "torch", "torch computes wrongly on the CPU",
                     "the memory of this machine may be at fault")  # fmt: skip
    return ok("matmul", "torch", "matmul")


def _reduced(seen: Seen, told: Mapping[str, Any]) -> Iterator[Check]:
    found = told.get("reduce")
    if not isinstance(found, dict):
        return
    backend, ranks = str(found.get("backend"))[:10], found.get("ranks")
    if found.get("ok") is True:
        yield ok("all-reduce", "torch", f"all-reduce ({backend}, {ranks} ranks)")
        return
    text = str(found.get("text") or "no answer")[:160]
    make = note if found.get("slow") else fault
    yield make(
        "all-reduce", "torch", f"ranks cannot talk to each other ({backend}): {text}",
        *(("for cards that hang there, in its host file:", "  [env]", '  NCCL_P2P_DISABLE = "1"')
          if backend == "nccl" else ("see that the loopback device is up there:", "  ip addr")),
    )  # fmt: skip


def _list(told: Mapping[str, Any], key: str) -> list[Any]:
    found = told.get(key)
    return found if isinstance(found, list) else []


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
