#!/usr/bin/python3 -IS
"""A stand-in for NVIDIA's container hook, so that `docker run --gpus` works in the rig.

Docker offers `--gpus` when it finds `nvidia-container-runtime-hook` on its PATH, and calls
it before a container starts, with the container's state on stdin. As the real one does,
this puts `nvidia-smi` and what it needs into the container, for the cards asked for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

FOLDER_INSIDE = "/var/lib/rig-gpus"


def main() -> None:
    state = json.load(sys.stdin)
    with open(os.path.join(state["bundle"], "config.json")) as file:
        spec = json.load(file)
    environment = dict(word.split("=", 1) for word in spec["process"]["env"])
    asked = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    if asked in ("", "none", "void"):
        return
    here = os.path.dirname(os.path.realpath(__file__))
    with open(os.path.join(here, "nvidia-smi.json")) as file:
        folder = json.load(file)["folder"]
    try:
        with open(os.path.join(folder, "cards.json")) as file:
            cards = json.load(file)["cards"]
    except FileNotFoundError:
        sys.exit("nvidia-container-cli: initialization error: nvml error: driver not loaded")
    given = []
    for word in [str(c["index"]) for c in cards] if asked == "all" else asked.split(","):
        found = [c["uuid"] for c in cards if word in (str(c["index"]), c["uuid"])]
        if not found:
            sys.exit(f"nvidia-container-cli: device error: {word}: unknown device")
        given += found
    own = os.path.join(state["bundle"], "rig-nvidia")
    os.mkdir(own, 0o755)
    shutil.copy(os.path.join(here, "nvidia-smi"), own)
    with open(os.path.join(own, "nvidia-smi.json"), "w") as file:
        json.dump({"folder": FOLDER_INSIDE, "visible": given}, file)
    root = os.path.join(state["bundle"], spec["root"]["path"])
    script = 'set -e; mkdir -p "$2$4"; mount --bind "$3" "$2$4"; cd "$1"\n'
    script += 'for f in *; do : >> "$2/usr/bin/$f"; mount --bind "$f" "$2/usr/bin/$f"; done'
    enter = ["nsenter", f"--target={state['pid']}", "--mount", "--", "sh", "-c", script, "sh"]
    subprocess.run([*enter, own, root, folder, FOLDER_INSIDE], check=True)


if __name__ == "__main__":
    main()
