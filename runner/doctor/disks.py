"""The disks: room and inodes on them, and whether their folders can be used (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.doctor.answers import Disk, Seen
from runner.doctor.findings import Check, fault, note, ok
from runner.errors import ProvisionError
from runner.show.units import plural, size
from runner.worker_plan import check_workspace

RUN_BYTES = 10**9
"""What a run needs at least: its code, a checkpoint, logs."""
IMAGE_BYTES = 14 * 10**9
"""Base and worker image, while the one is made of the other."""
LAYERS_BYTES = 2 * 10**9
"""The worker image where its base is there."""
LEAST_INODES = 20_000
_NETWORK = ("nfs", "cifs", "smb", "fuse.sshfs", "lustre", "ceph", "beegfs", "gpfs", "9p")


def judge(seen: Seen) -> Iterator[Check]:
    """What there is room for."""
    if seen.facts is None:
        return
    yield from _disks(seen)
    yield from _inodes(seen)
    yield from _file_systems(seen)


def _image_bytes(seen: Seen) -> int:
    facts = seen.facts
    assert facts is not None
    if seen.host.runtime != "docker" or facts.docker_version is None:
        return 0
    if any(tag.rpartition("-")[0] == seen.pin.name.lower() for tag in facts.images):
        return 0
    return LAYERS_BYTES if facts.base_id is not None else IMAGE_BYTES


def _disks(seen: Seen) -> Iterator[Check]:
    workspace, docker = seen.disk("workspace"), seen.disk("docker")
    image = _image_bytes(seen)
    reserve = seen.host.disk_reserve_bytes
    shared = docker is not None and workspace is not None and docker.mount == workspace.mount
    if workspace is not None:
        need = RUN_BYTES + reserve + (image if shared else 0)
        yield _own_disk(seen, workspace, need, _needs(image, shared, seen))
    if docker is not None and not shared:
        yield _docker_disk(seen, docker, image)


def _workspace(seen: Seen) -> str:
    return "workspace" if seen.host.runtime == "local" else seen.host.workspace


def _needs(image: int, shared: bool, seen: Seen) -> str:
    parts = [*(["image"] if image and shared else []), "a run"]
    text = " and ".join(parts) + (" need" if len(parts) > 1 else " needs")
    reserve = seen.host.disk_reserve_bytes
    return text if not reserve else f"with the reserve of {size(reserve)} {text}"


def _own_disk(seen: Seen, disk: Disk, need: int, needs: str) -> Check:
    if disk.free >= need:
        return ok("disk", "disk", f"disk ({size(disk.free)} free)")
    return fault(
        "disk", "disk", f"{_workspace(seen)}: {_free(disk)}, {needs} {size(need)}",
        "see what may go:", f"  runner gc host={seen.host.name} --dry-run",
    )  # fmt: skip


def _docker_disk(seen: Seen, disk: Disk, need: int) -> Check:
    if disk.free >= need:
        return ok("docker-disk", "disk", "Docker's disk")
    return fault(
        "docker-disk", "disk", f"Docker's folder: {_free(disk)}, the image needs {size(need)}",
        f"see what Docker keeps there, and what of it is not used; {seen.there}:",
        "  docker system df",
    )  # fmt: skip


def _free(disk: Disk) -> str:
    return f"{size(disk.free)} free of {size(disk.total)}"


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


def _mount_of(seen: Seen, path: str) -> tuple[str, frozenset[str]]:
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
    kind, options = _mount_of(seen, facts.real_workspace)
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
    if writable[1:2] == ["no"]:
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
        if "noexec" in _mount_of(seen, path)[1]:
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
