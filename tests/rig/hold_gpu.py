"""Holds memory of a rig "GPU", as a training process holds a real one's.

In a job: copy this file beside it and call `hold(2000)`; or run it,
`python hold_gpu.py MIB [SECONDS]`. It obeys CUDA_VISIBLE_DEVICES as CUDA does. The memory
is free again when the process has died, however it died.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import sys
import time
from typing import IO, Any

_held: list[IO[str]] = []  # open files: closed, and so released, with the process


def _find_folder() -> tuple[str, list[str] | None]:
    folder = os.environ.get("RIG_GPUS")
    tool = shutil.which("nvidia-smi")
    if not folder and tool:
        beside = os.path.join(os.path.dirname(os.path.realpath(tool)), "nvidia-smi.json")
        with open(beside) as file:
            setting = json.load(file)
        return setting["folder"], setting.get("visible")
    if not folder:
        raise RuntimeError("no CUDA GPUs are available")
    return folder, None


def visible_cards() -> list[dict[str, Any]]:
    """The cards this process may use, in CUDA's order: each as in cards.json."""
    folder, given = _find_folder()
    with open(os.path.join(folder, "cards.json")) as file:
        cards = [c for c in json.load(file)["cards"] if given is None or c["uuid"] in given]
    asked = os.environ.get("CUDA_VISIBLE_DEVICES")
    if asked is None:
        return cards
    chosen = []
    for word in asked.split(","):
        for place, card in enumerate(cards):
            if word.strip() in (str(place), card["uuid"]):
                chosen.append(card)
                break
        else:
            break  # CUDA stops at the first name it does not know
    return chosen


def hold(mib: int, device: int = 0) -> str:
    """Hold `mib` MiB of the `device`-th visible card from now on; its uuid."""
    cards = visible_cards()
    if device >= len(cards):
        raise RuntimeError("CUDA error: invalid device ordinal")
    folder, uuid = _find_folder()[0], str(cards[device]["uuid"])
    place = os.path.join(folder, "cards", uuid)
    if mib + _used_mib(place) > cards[device]["memory_total_mib"]:
        raise RuntimeError(f"CUDA out of memory. Tried to allocate {mib}.00 MiB.")
    name = f"{os.getpid()}-{secrets.token_hex(4)}-{mib}"
    file = open(os.path.join(place, "." + name), "w")  # noqa: SIM115 (open until death)
    os.chmod(file.name, 0o666)
    file.write(sys.executable or sys.argv[0])
    file.flush()
    fcntl.flock(file, fcntl.LOCK_EX)
    # named only now: a file seen without a lock is taken for a dead process's
    os.rename(file.name, os.path.join(place, name))
    _held.append(file)
    return uuid


def _used_mib(place: str) -> int:
    used = 0
    for name in os.listdir(place):
        if name.startswith("."):
            continue
        try:
            with open(os.path.join(place, name)) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            used += int(name.rsplit("-", 1)[1])
        except OSError:
            pass
    return used


def release_all() -> None:
    while _held:
        _held.pop().close()


if __name__ == "__main__":
    print("holding", hold(int(sys.argv[1])), flush=True)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 3600)
