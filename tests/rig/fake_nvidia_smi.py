#!/usr/bin/python3 -IS
"""A stand-in for `nvidia-smi` whose memory figures are true for rig "GPUs".

A folder stands for a machine's GPUs (`RIG_GPUS`, else `folder` in `nvidia-smi.json` beside
this script): `cards.json` lists them, and a process holds memory of one while it holds
an flock on a file `cards/UUID/PID-NAME-MIB` that names its program (see `hold_gpu.py`). The
kernel drops the lock with the process, however it dies, and every container and namespace
sees the same locks.

cards.json  {"cards": [{"index": 0, "uuid": "GPU-…", "name": "NVIDIA A10",
              "memory_total_mib": 23028, "driver_version": "550.54.15",
              "compute_cap": "8.6", "cells": {"utilization.gpu": "[N/A]"}}],
             "app_cells": {"used_memory": "[N/A]"}, "unknown_fields": ["compute_cap"],
             "failure": {"text": "Failed to initialize NVML: Unknown Error", "status": 255},
             "delay_s": 3}
`cells` and `app_cells` override what is printed; `unknown_fields` makes an old driver;
`failure` makes every call fail, `delay_s` every call slow. All is read anew by every call.
`visible` in nvidia-smi.json narrows to what a container was given.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from typing import Any

Table = dict[str, Any]
Holder = tuple[int, int, int, str]
"""Inode of what it locks, pid as it knew itself, MiB, program."""
IDLE_MIB = 3
UNITS = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "memory.reserved": "MiB",
    "utilization.gpu": "%",
    "utilization.memory": "%",
    "power.draw": "W",
    "power.limit": "W",
    "used_memory": "MiB",
    "used_gpu_memory": "MiB",
}
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)


def read_setting() -> tuple[str | None, list[str] | None]:
    """(folder, visible uuids or None) of the machine or container this runs in."""
    beside = os.path.join(os.path.dirname(os.path.realpath(__file__)), "nvidia-smi.json")
    setting: Table = {}
    if os.path.exists(beside):
        with open(beside) as file:
            setting = json.load(file)
    folder = os.environ.get("RIG_GPUS") or setting.get("folder")
    return folder, setting.get("visible")


def read_holders(folder: str, uuid: str) -> list[Holder]:
    """Each process that holds memory of a card."""
    place = os.path.join(folder, "cards", uuid)
    holders = []
    for name in sorted(os.listdir(place)) if os.path.isdir(place) else []:
        if name.startswith("."):
            continue
        path = os.path.join(place, name)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            pid, _, mib = name.split("-")
            program = os.read(descriptor, 4096).decode()
            holders.append((os.fstat(descriptor).st_ino, int(pid), int(mib), program))
        else:
            try:
                os.unlink(path)  # its holder died
            except OSError:
                pass
        finally:
            os.close(descriptor)
    return holders


def read_lock_pids() -> dict[int, int]:
    """Inode to pid, of the lock holders that this pid namespace can see."""
    pids = {}
    with open("/proc/locks") as file:
        for line in file:
            words = line.split()
            if "FLOCK" in words and "->" not in words:
                pids[int(words[5].rsplit(":", 1)[1])] = int(words[4])
    return pids


def gpu_cells(card: Table, used: int) -> Table:
    total = card["memory_total_mib"]
    cells = {
        "index": card["index"],
        "uuid": card["uuid"],
        "name": card["name"],
        "driver_version": card["driver_version"],
        "compute_cap": card["compute_cap"],
        "memory.total": total,
        "memory.used": used,
        "memory.free": total - used,
        "memory.reserved": 0,
        "utilization.gpu": 0 if used <= IDLE_MIB else 97,
        "utilization.memory": 0,
        "temperature.gpu": 35,
        "power.draw": "30.12",
        "power.limit": "150.00",
        "persistence_mode": "Enabled",
        "compute_mode": "Default",
        "mig.mode.current": "[N/A]",
        "pci.bus_id": f"00000000:{card['index'] + 1:02X}:00.0",
        "pstate": "P8",
        "count": card["count"],
    }
    for alias, name in (("gpu_uuid", "uuid"), ("gpu_name", "name"), ("gpu_bus_id", "pci.bus_id")):
        cells[alias] = cells[name]
    cells.update(card.get("cells", {}))
    return cells


def print_table(fields: list[str], rows: list[Table], options: list[str]) -> None:
    if "noheader" not in options:
        print(", ".join(f + (f" [{UNITS[f]}]" if f in UNITS else "") for f in fields))
    for row in rows:
        cells = []
        for field in fields:
            text = str(row[field])
            if field in UNITS and "nounits" not in options and not text.startswith("["):
                text += " " + UNITS[field]
            cells.append(text)
        print(", ".join(cells))


def parse_arguments(words: list[str]) -> dict[str, str]:
    """Options as a table; `-i 0` and `--id=0` are one."""
    options = {}
    words = list(words)
    while words:
        word = words.pop(0)
        if word == "-L" or word == "--list-gpus":
            options["list"] = ""
        elif word == "-i" or word == "--id":
            options["id"] = words.pop(0) if words else ""
        elif word.startswith("--") and "=" in word:
            key, _, value = word[2:].partition("=")
            options[key] = value
        else:
            print('Invalid combination of input arguments. Please run "nvidia-smi -h" for help.\n')
            raise SystemExit(1)
    return options


def main(argv: list[str]) -> int:
    folder, visible = read_setting()
    cards_file = os.path.join(folder or "", "cards.json")
    if not folder or not os.path.exists(cards_file):
        print(NO_DRIVER)
        return 9
    with open(cards_file) as file:
        machine = json.load(file)
    time.sleep(machine.get("delay_s", 0))
    failure = machine.get("failure")
    if failure:  # the real tool says this on stdout, too
        print(failure["text"])
        return int(failure.get("status", 255))
    cards = [c for c in machine["cards"] if visible is None or c["uuid"] in visible]
    options = parse_arguments(argv)
    if "id" in options:
        wanted = options["id"].split(",")
        cards = [c for c in cards if str(c["index"]) in wanted or c["uuid"] in wanted]
    if not cards:
        print("No devices were found")
        return 6
    holders = {card["uuid"]: read_holders(folder, card["uuid"]) for card in cards}
    rows = []
    for card in cards:
        used = IDLE_MIB + sum(mib for _, _, mib, _ in holders[card["uuid"]])
        rows.append(gpu_cells(dict(card, count=len(cards)), used))
    if "list" in options:
        for card in cards:
            print(f"GPU {card['index']}: {card['name']} (UUID: {card['uuid']})")
        return 0
    query = "query-gpu" if "query-gpu" in options else "query-compute-apps"
    if query not in options:
        driver = cards[0]["driver_version"]
        print(f"NVIDIA-SMI {driver}  Driver Version: {driver}")
        return 0
    if "format" not in options or "csv" not in options["format"].split(","):
        print(f'"--{query}" needs "--format=csv". Please run "nvidia-smi -h" for help.\n')
        return 2
    if query == "query-compute-apps":
        rows = app_rows(cards, holders, inside_container=visible is not None)
        for row in rows:
            row.update(machine.get("app_cells", {}))
        known = {"gpu_uuid", "gpu_name", "pid", "process_name", "name", "used_memory"}
        known.add("used_gpu_memory")
    else:
        known = set(rows[0]) - set(machine.get("unknown_fields", []))
    fields = [field.strip() for field in options[query].split(",")]
    for field in fields:
        if field not in known:
            print(f'Field "{field}" is not a valid field to query.\n')
            return 2
    print_table(fields, rows, [word.strip() for word in options["format"].split(",")])
    return 0


def app_rows(
    cards: list[Table],
    holders: dict[str, list[Holder]],
    inside_container: bool,
) -> list[Table]:
    """One row per holder, with the pid that this machine knows it by.

    In a container the real tool leaves out processes that it cannot see; on the host all
    are seen, so a holder of the test's own, outside the rig host, shows its own pid.
    """
    lock_pids = read_lock_pids()
    rows = []
    for card in cards:
        for inode, own_pid, mib, program in holders[card["uuid"]]:
            pid = lock_pids.get(inode, None if inside_container else own_pid)
            if pid is not None:
                row = {"gpu_uuid": card["uuid"], "gpu_name": card["name"], "pid": pid}
                row.update(process_name=program, name=program)
                rows.append(dict(row, used_memory=mib, used_gpu_memory=mib))
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
