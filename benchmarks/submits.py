"""Twenty submits at one moment from two clients, two cards: is a card ever used by two runs?

    python benchmarks/submits.py

First both clients submit to one workspace, then, twice, each to one of its own over one lease
folder. A job holds memory of its card (the tests' stand-in for nvidia-smi), and writes down when
it began and ended, the card it was given, and whose name was in the card's lease at both moments.
Exit status 1 when uses of a card overlap, a lease named another run, or a run is missing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "provisioning" / "worker")]

from tests.helpers.local_worker import LocalWorker  # noqa: E402
from tests.helpers.wait import wait_for  # noqa: E402
from tests.rig import gpus  # noqa: E402

CARDS, CLIENTS, SUBMITS = 2, 2, 20
LIMIT_S = 240.0
JOB = """
import json, os, sys, time
sys.path.insert(0, os.getcwd())
import hold_gpu
card = os.environ["CUDA_VISIBLE_DEVICES"]
def owner():
    with open(os.environ["LEASES"] + "/" + card) as file: return json.load(file)["token"]
began, owners = time.time(), [owner()]
hold_gpu.hold(2000)
time.sleep(0.3)
owners.append(owner())
says = {"card": card, "began": began, "mine": os.environ["RUNNER_MARK"], "owners": owners}
print(json.dumps(dict(says, ended=time.time())), flush=True)
"""


@dataclass(frozen=True)
class Use:
    """One run's use of a card, as its job saw it."""

    card: str
    began: float
    ended: float
    mine: str
    owners: Sequence[str]


def overlap_s(uses: Iterable[Use]) -> float:
    """Seconds in which a card had more than one use, over all cards."""
    ended: dict[str, float] = {}
    total = 0.0
    for use in sorted(uses, key=lambda use: use.began):
        before = ended.get(use.card, 0.0)
        total += max(0.0, min(before, use.ended) - use.began)
        ended[use.card] = max(before, use.ended)
    return total


def foreign(uses: Iterable[Use]) -> int:
    """Uses during which the card's lease named another run."""
    return sum(any(owner != use.mine for owner in use.owners) for use in uses)


def try_once(workspaces: int) -> bool:
    """Submit all at one moment to so many workspaces; whether it went as it should."""
    workers, environs = [], []
    for _ in range(workspaces):
        env = dict(os.environ)
        workers.append(LocalWorker(env.__setitem__))
        environs.append(env)
    leases = str(workers[0].leases)
    cards = gpus.FakeGpus(workers[0].root / "gpus")
    try:
        cards.set_cards(CARDS)
        gpus.place_tool(workers[0].root / "bin", cards.folder)
        for env in environs:
            env.update(PATH=f"{workers[0].root / 'bin'}{os.pathsep}{env['PATH']}")
            env.update(RUNNER_LEASES=leases, PYTHONPATH=str(ROOT))
        clients = []
        for number in range(CLIENTS):
            worker, env = workers[number % workspaces], environs[number % workspaces]
            project = worker.root / f"client-{number}"
            project.mkdir()
            (project / "runner.toml").write_text(f'name = "c{number}"\nid = "c-{number}"\n')
            (project / "hold_gpu.py").write_text(gpus.HOLD.read_text())
            clients.append((project, env))
        began = time.monotonic()
        ids = submit_all(clients, leases)
        submitted_s = time.monotonic() - began
        uses = []
        for worker in workers:
            for folder in sorted((worker.workspace / "runs").glob("[!.]*")):
                worker.until(folder.name, "ended", LIMIT_S)
                uses.append(Use(**json.loads(worker.log(folder.name))))
        took_s = time.monotonic() - began
        wait_for(lambda: all(cards.used_mib(n) < 200 for n in range(CARDS)), 10, "idle cards")
    finally:
        cards.close()
        for worker in workers:
            worker.close()
    used = {card: sum(use.card == card for use in uses) for card in cards.uuids}
    right = len(uses) == len(set(ids)) == SUBMITS
    right = right and overlap_s(uses) == 0 and foreign(uses) == 0
    shares = " and ".join(str(count) for count in used.values())
    print(
        f"{workspaces:10}  {len(set(ids)):9}  {len(uses):4}  {shares:>14}  {overlap_s(uses):9.3f} s"
        f"  {foreign(uses):13}  {submitted_s:6.1f} s  {took_s:6.1f} s{'' if right else '   WRONG'}",
        flush=True,
    )
    return right


def submit_all(clients: Sequence[tuple[Path, dict[str, str]]], leases: str) -> list[str]:
    """Start every submit, then see what each printed."""
    started = []
    for number in range(SUBMITS):
        project, env = clients[number % len(clients)]
        words = ["gpus=1", f"env.LEASES={leases}", f"env.NUMBER={number}"]
        argv = [sys.executable, "-m", "runner", "submit", *words, "--", "python", "-c", JOB]
        started.append(
            subprocess.Popen(
                argv,
                cwd=project,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ids = []
    for child in started:
        said, wrong = child.communicate(timeout=LIMIT_S)
        if child.returncode != 0:
            print(f"submit: exit {child.returncode}: {wrong.strip()}", file=sys.stderr)
        ids += said.split()
    return ids


def main() -> int:
    """See the module's docstring."""
    print("workspaces  submitted  runs  uses of a card     overlap  foreign lease  queued    all")
    right = [try_once(workspaces) for workspaces in (1, 2, 2)]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
