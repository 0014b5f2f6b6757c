"""Memory, shared memory, disks and inodes (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.doctor.answers import Disk, Seen, parse_disk
from runner.doctor.findings import Check, fault, note, ok
from runner.errors import ProvisionError
from runner.show.units import memory, plural, size
from runner.worker_plan import check_workspace

RUN_BYTES = 10**9
"""What a run needs at least: its code, a checkpoint, logs."""
IMAGE_BYTES = 14 * 10**9
"""Base and worker image, while the one is made of the other."""
LAYERS_BYTES = 2 * 10**9
"""The worker image where its base is there."""
LEAST_INODES = 20_000
LEAST_SHM_BYTES = 1 << 30
"""NCCL and data loaders of a few workers."""
LEAST_MEMORY_MIB = 1024
_NETWORK = ("nfs", "cifs", "smb", "fuse.sshfs", "lustre", "ceph", "beegfs", "gpfs", "9p")


def judge(seen: Seen) -> Iterator[Check]:
    """What there is room for."""
    if seen.facts is None:
        return
    yield from _shm(seen)
    yield from _disks(seen)
    yield from _inodes(seen)
    yield from _file_systems(seen)
    yield from _memory(seen)


def _image_bytes(seen: Seen) -> int:
    facts = seen.facts
    assert facts is not None
    if seen.host.runtime != "docker" or facts.docker_version is None:
        return 0
    if any(tag.startswith(f"{seen.pin.name.lower()}-") for tag in facts.images):
        return 0
    return LAYERS_BYTES if facts.base_id is not None else IMAGE_BYTES


def _disks(seen: Seen) -> Iterator[Check]:
    workspace, docker = seen.disk("workspace"), seen.disk("docker")
    image = _image_bytes(seen)
    reserve = seen.host.disk_reserve_bytes
    shared = docker is not None and workspace is not None and docker.mount == workspace.mount
    if workspace is not None:
        need = RUN_BYTES + reserve + (image if shared else 0)
        yield _one_disk(
            seen, "disk", _workspace(seen), workspace, need, _needs(image, shared, seen)
        )
    if docker is not None and not shared and image:
        yield _one_disk(seen, "docker-disk", "Docker's folder", docker, image, "the image needs")
    elif docker is not None and not shared:
        yield ok("docker-disk", "disk", "Docker's disk")


def _workspace(seen: Seen) -> str:
    return "workspace" if seen.host.runtime == "local" else seen.host.workspace


def _needs(image: int, shared: bool, seen: Seen) -> str:
    parts = [*(["image"] if image and shared else []), "a run"]
    text = " and ".join(parts) + (" need" if len(parts) > 1 else " needs")
    reserve = seen.host.disk_reserve_bytes
    return text if not reserve else f"with the reserve of {size(reserve)} {text}"


def _one_disk(seen: Seen, id: str, where: str, disk: Disk, need: int, needs: str) -> Check:
    if disk.free >= need:
        return ok(id, "disk", f"disk ({size(disk.free)} free)")
    text = f"{where}: {size(disk.free)} free of {size(disk.total)}, {needs} {size(need)}"
    if id == "docker-disk":
        return fault(id, "disk", text, "see what Docker keeps there, and what of it is not used;"
                     f" {seen.there}:", "  docker system df")  # fmt: skip
    return fault(
        id, "disk", text, "see what may go:",
        f"  runner gc host={seen.host.name} --dry-run",
    )  # fmt: skip


def _inodes(seen: Seen) -> Iterator[Check]:
    names = [("workspace", _workspace(seen)), ("docker", "Docker's folder")]
    met: set[str] = set()
    well = True
    for name, where in names:
        disk = seen.disk(name)
        if disk is None or disk.inodes_free is None or disk.mount in met:
            continue
        met.add(disk.mount)
        if disk.inodes_free < LEAST_INODES:
            well = False
            yield fault(
                "inodes", "disk",
                f"{where}: {plural(disk.inodes_free, 'inode')} free of {disk.inodes}, an image and"
                f" its packages alone are {LEAST_INODES} files"
                if name == "docker"
                else f"{where}: {plural(disk.inodes_free, 'inode')} free of {disk.inodes};"
                " no more files can be made there soon",
                "remove many small files, old runs for one:",
                f"  runner gc host={seen.host.name} --dry-run",
            )  # fmt: skip
    if well and met:
        yield ok("inodes", "disk", "inodes")


def mount_of(seen: Seen, path: str) -> tuple[str, frozenset[str]]:
    """(type, options) of the file system of a path; ("", none) when that is not known."""
    best, found = "", ("", frozenset[str]())
    for line in seen.lines("mounts"):
        words = line.split(" ")
        if len(words) < 4:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8) & 0xFF), words[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, found = point, (words[2], frozenset(words[3].split(",")))
    return found


def _file_systems(seen: Seen) -> Iterator[Check]:
    facts = seen.facts
    assert facts is not None
    kind, options = mount_of(seen, facts.real_workspace)
    writable = seen.lines("folders")
    refused = _refused(seen)
    if refused is not None:
        yield refused
    elif writable[:1] == ["no"] or "ro" in options:
        why = "is on a file system that is read-only" if "ro" in options else "cannot be written"
        yield fault(
            "workspace", "disk", f"workspace {_workspace(seen)} {why}",
            f"name another one in hosts/{seen.host.name}.toml:",
            '  workspace = "/scratch/YOU/runner"',
        )  # fmt: skip
    else:
        yield ok("workspace", "disk", "workspace")
    if writable[3:4] == ["no"]:
        yield fault(
            "leases", "disk", "the folder of leases, ~/.local/state/runner/leases, cannot be"
            " written",
            f"{seen.there}:", "  sudo chown -R $(id -u) ~/.local/state/runner",
            "  chmod -R u+rwX ~/.local/state/runner",
        )  # fmt: skip
    if kind.startswith(_NETWORK):
        yield note(
            "file-system", "disk", f"workspace {_workspace(seen)} is on a network file system"
            f" ({kind[:20]}): slow for many files, and locks there may fail",
            "a local disk is better; checkpoints can be pulled from it:",
            f"  workspace = \"/scratch/YOU/runner\"   (hosts/{seen.host.name}.toml)",
        )  # fmt: skip
    elif kind == "overlay" and seen.host.runtime != "local":
        yield note(
            "file-system", "disk", f"workspace {_workspace(seen)} is part of a container: it is"
            " gone when that is made anew",
            "name a mounted volume in its host file:  workspace = \"/workspace/runner\"",
        )  # fmt: skip
    if seen.host.runtime in ("venv", "local"):
        yield from _noexec(seen)
    yield from _data(seen)


def _refused(seen: Seen) -> Check | None:
    """Why a provision would not take the workspace."""
    if seen.facts is None or seen.host.runtime == "local":
        return None
    try:
        check_workspace(seen.host, seen.facts)
    except ProvisionError as error:
        text = error.message.removeprefix(f"{seen.host.name}: ")
        name = f"workspace in hosts/{seen.host.name}.toml names it"
        return fault("workspace", "disk", text, *(error.advice or (name,)))
    return None


def _data(seen: Seen) -> Iterator[Check]:
    """The folders that the host file's [data] names."""
    facts = seen.facts
    assert facts is not None
    gone = [
        f"data.{name}: {path}" for name, path in seen.host.data.items() if path not in facts.data
    ]
    if gone:
        yield fault(
            "data", "disk", f"{'; '.join(gone)} is no folder there, or one you may not read",
            f"[data] in hosts/{seen.host.name}.toml names it",
        )  # fmt: skip
    elif seen.host.data:
        yield ok("data", "disk", "data folders")


def _noexec(seen: Seen) -> Iterator[Check]:
    facts = seen.facts
    assert facts is not None
    well = True
    for path, shown in ((facts.real_home, "the home"), ("/tmp", "/tmp")):
        if "noexec" in mount_of(seen, path)[1]:
            well = False
            make = fault if shown == "the home" and seen.host.runtime == "venv" else note
            yield make(
                "noexec", "disk", f"nothing may be started from {shown} (mounted noexec):"
                + (" no virtual environment works there" if make is fault
                   else " torch.compile and some wheels fail there"),
                *(("its keeper can mount it with exec",) if make is fault else
                  ("name another folder in its host file:", '  [env]', '  TMPDIR = "/var/tmp"')),
            )  # fmt: skip
    if well:
        yield ok("noexec", "disk", "programs may be started")


def _shm(seen: Seen) -> Iterator[Check]:
    limit = seen.host.limits
    if seen.host.runtime == "docker":
        if limit.shm_bytes < LEAST_SHM_BYTES:
            yield note(
                "shm", "shm", f"its runs get {size(limit.shm_bytes)} of shared memory; NCCL and"
                " data loaders need 1 GB or more",
                f"in hosts/{seen.host.name}.toml, then provision again:", "  [limits]",
                '  shm = "8g"',
            )  # fmt: skip
        elif limit.memory_bytes is not None and limit.shm_bytes >= limit.memory_bytes:
            yield note(
                "shm", "shm", f"shared memory ({size(limit.shm_bytes)}) counts as memory, of which"
                f" its runs get {size(limit.memory_bytes)}",
                f"make it less in hosts/{seen.host.name}.toml:", "  [limits]", '  shm = "1g"',
            )  # fmt: skip
        else:
            yield ok("shm", "shm", "shm")
        return
    disk = _parse_shm(seen)
    if disk is None:
        return
    if disk.total < LEAST_SHM_BYTES:
        yield note(
            "shm", "shm", f"/dev/shm has {size(disk.total)}; NCCL and data loaders need 1 GB or"
            " more",
            "in a container of your own, start it with  --shm-size=8g; on a machine:",
            "  sudo mount -o remount,size=8G /dev/shm",
        )  # fmt: skip
    elif disk.free < disk.total // 10:
        yield note(
            "shm", "shm", f"/dev/shm: {size(disk.free)} free of {size(disk.total)}; something left"
            " its files there",
            f"{seen.there}, see whose they are:", "  ls -l /dev/shm",
        )  # fmt: skip
    else:
        yield ok("shm", "shm", "shm")


def _parse_shm(seen: Seen) -> Disk | None:
    return parse_disk(seen.lines("shm"))


def meminfo(seen: Seen) -> dict[str, int]:
    """KiB by name."""
    found = {}
    for line in seen.lines("memory"):
        match = re.match(r"(\w+):\s+(\d{1,12}) kB", line)
        if match:
            found[match[1]] = int(match[2])
    return found


def _memory(seen: Seen) -> Iterator[Check]:
    told = meminfo(seen)
    total, free = told.get("MemTotal"), told.get("MemAvailable")
    if total is None or free is None:
        return
    limit = seen.host.limits.memory_bytes
    if seen.host.runtime == "docker" and limit is not None and limit > total * 1024:
        yield note(
            "memory-limit", "memory", f"limits.memory is {size(limit)}, the machine has"
            f" {memory(total / 1024)}",
            f"make it less in hosts/{seen.host.name}.toml, so that a run that takes too much is"
            " ended, and not another one",
        )  # fmt: skip
    if free / 1024 < LEAST_MEMORY_MIB:
        yield note(
            "memory", "memory", f"{memory(free / 1024)} free of {memory(total / 1024)}; a run may"
            " be ended for want of it",
            f"{seen.there}, see who uses it:", "  ps aux --sort=-rss | head",
        )  # fmt: skip
    else:
        yield ok("memory", "memory", "memory")
