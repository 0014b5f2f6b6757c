"""CleanRL's dqn.py and SB3 Zoo's train.py as their authors wrote them, through `job add`: edits 0.

    python benchmarks/own_scripts.py [cleanrl=FOLDER] [steps=3000]

What is run is fetched when it is run, and kept nowhere: CleanRL by git (or from a checkout), the
Zoo from the package registry. Each gets a sweep over two seeds on `local`, and one more run, whose
packages are there by then. Exit status 1: something did not end done, or a file was changed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import stage

CLEANRL = "https://github.com/vwxyzjn/cleanrl"
ZOO = "rl-zoo3"
LIMIT_S = 1800.0


def main(words: list[str]) -> int:
    """0 when all ended done and unchanged."""
    options = dict(word.split("=", 1) for word in words)
    steps = options.get("steps", "3000")
    with stage.made() as place:
        _fetch_cleanrl(place, options.get("cleanrl"))
        _fetch_zoo(place)
        clean = ("cleanrl/dqn.py", f"total_timesteps={steps}", "learning_starts=500")
        zoo = ("rl_zoo3/train.py", f"n_timesteps={steps}", "device=cpu")
        good = [_try(place, *clean), _try(place, *zoo)]
    return 0 if all(good) else 1


def _fetch_cleanrl(place: stage.Stage, folder: str | None) -> None:
    if folder is None:
        folder = str(place.folder / "fetched")
        subprocess.run(["git", "clone", "-q", "--depth", "1", CLEANRL, folder], check=True)
    for name in ("cleanrl", "cleanrl_utils"):
        shutil.copytree(Path(folder) / name, place.project / name)


def _fetch_zoo(place: stage.Stage) -> None:
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":none:"]
    subprocess.run([*fetch, "-d", place.folder, ZOO], check=True)
    with zipfile.ZipFile(next(place.folder.glob("rl_zoo3-*.whl"))) as archive:
        archive.extractall(place.project)


def _try(place: stage.Stage, script: str, *words: str) -> bool:
    before = _digest(place.project / script)
    name = script.split("/")[0].replace("_", "-")
    place.runner("job", "add", script, f"name={name}")
    began = time.monotonic()
    runs = place.runner("submit", f"job={name}", "seed=1..2", *words).split()
    place.try_runner("wait", *runs, limit_s=LIMIT_S)
    swept_s = time.monotonic() - began
    runs += place.runner("submit", f"job={name}", "seed=3", *words).split()
    place.try_runner("wait", runs[-1], limit_s=LIMIT_S)
    outcomes = [_outcome(place, run) for run in runs]
    unchanged = _digest(place.project / script) == before
    print(f"{script}: edits needed {0 if unchanged else 'some'}")
    print(f"  {', '.join(outcomes)}; sweep of two {swept_s:.0f} s, {_installed(place, runs)}")
    print(f"  packages there: {_before_start(place, runs[-1]):.1f} s until started; goal 5 s")
    return unchanged and set(outcomes) == {"done"}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _outcome(place: stage.Stage, run: str) -> str:
    return str(_record(place, run, "state").get("outcome"))


def _installed(place: stage.Stage, runs: list[str]) -> str:
    """What a log says of the packages."""
    for run in runs:
        text = (place.workspace / "logs" / run / "rank-0.log").read_text(errors="replace")
        found = re.search(r"runner: (installed .*)", text)
        if found:
            return found[1]
    return "nothing installed"


def _before_start(place: stage.Stage, run: str) -> float:
    """Seconds from when a run was accepted until its program was started."""
    accepted = float(str(_record(place, run, "spec")["accepted_at"]))
    for line in (place.workspace / "runs" / run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event.get("event") == "started":
            return float(event["t"]) - accepted
    return float("nan")


def _record(place: stage.Stage, run: str, name: str) -> dict[str, object]:
    body = json.loads((place.workspace / "runs" / run / f"{name}.json").read_text())
    assert isinstance(body, dict)
    return body


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
