"""Two containers and `local`, all of one account, share two cards: never two runs on one."""

from __future__ import annotations

import concurrent.futures
import importlib.metadata
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.pinned import pin_base
from tests.helpers.wait import wait_for
from tests.rig.engine import RigEngine
from tests.rig.gpus import HOLD, FakeGpus
from tests.rig.hosts import RigHost
from tests.rig.operator import REPOSITORY, Operator

HOST = 'ssh = "{alias}"\nimage = "cpu"\nworkspace = "~/shared-{name}"\nslots = 2\n'
CONTAINERS = ("one", "two")
RUNS_EACH = 4
LIMIT_S = 120.0

JOB = """
import fcntl, os, sys, time
sys.path.insert(0, os.getcwd())
import hold_gpu
folder = hold_gpu._find_folder()[0]
cards = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
witnesses, who, before_s, after_s = [], sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
for uuid in cards:
    path = os.path.join(folder, "cards", uuid, ".witness")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails when another run is on the card
    os.write(fd, (who + " on\\n").encode())
    witnesses.append(fd)
time.sleep(before_s)  # until it takes memory its lease alone keeps others away
for device in range(len(cards)):
    hold_gpu.hold(2000, device)
time.sleep(after_s)
for fd in witnesses:
    os.write(fd, (who + " off\\n").encode())
"""


class Side:
    """One worker, and who submits to it."""

    def __init__(self, name: str, call: Callable[..., tuple[int, str, str]]) -> None:
        self.name = name
        self._call = call

    def runner(self, *words: str, status: int = 0) -> str:
        """`runner WORDS…` must end with `status`; its stdout."""
        code, said, trouble = self._call(*words)
        assert code == status, (self.name, words, said, trouble)
        return said

    def submit(self, count: int, before_s: float, after_s: float = 0.0) -> str:
        """Its job has the cards for so long, without and with memory."""
        words = [f"host={self.name}", f"gpus={count}", "--", "python3", "job.py", self.name]
        return self.runner("submit", *words, str(before_s), str(after_s)).strip()

    def reason(self, run: str) -> str:
        found = json.loads(self.runner("status", run, "--json"))
        return f"{found['state']}: {found['reason']}"


def lay_project(folder: Path) -> None:
    (folder / "job.py").write_text(JOB)
    shutil.copy(HOLD, folder)


@pytest.fixture
def containers(
    make_operator: Callable[[], Operator],
    jump_host: RigHost,
    docker: RigEngine,
    fake_gpus: FakeGpus,
) -> Iterator[list[Side]]:
    """Two workspaces of the account, each with its container."""
    operator = make_operator()

    def call(*words: str) -> tuple[int, str, str]:
        done = operator.runner(*words, limit_s=400)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    sides = [Side(name, call) for name in CONTAINERS]
    sides[0].runner("init")
    pin_base(operator.project, docker)
    lay_project(operator.project)
    for side in sides:
        text = HOST.format(alias=jump_host.alias, name=side.name)
        (operator.project / "hosts" / f"{side.name}.toml").write_text(text)
        side.runner("provision", f"host={side.name}")
    try:
        yield sides
    finally:
        docker.remove_containers()


@pytest.fixture
def local(jump_host: RigHost, fake_gpus: FakeGpus) -> Iterator[Side]:
    """`local` of the same account, on the host itself."""
    home = jump_host.home / "local-side"
    project, tool, venv = home / "project", home / "tool", home / "venv"
    project.mkdir(parents=True)
    for part in ("runner", "provisioning", "agents"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / part, tool / part, ignore=ignored)
    shutil.copy(REPOSITORY / "Dockerfile", tool)
    # the account may not be allowed to use the interpreter of these tests
    jump_host.run(["/usr/bin/python3", "-m", "venv", "--without-pip", venv])
    (packages,) = venv.glob("lib/python*/site-packages")
    for name in ("click", "supervisor"):
        place = Path(str(importlib.metadata.distribution(name).locate_file(name)))
        shutil.copytree(place, packages / name, ignore=ignored)
    lay_project(project)
    (project / "runner.toml").write_text('name = "p"\nid = "p-local"\n')
    for path in (home, *home.rglob("*")):
        os.chown(path, jump_host.spec.uid, jump_host.spec.uid, follow_symlinks=False)

    def call(*words: str) -> tuple[int, str, str]:
        argv = ["env", "-C", project, f"PYTHONPATH={tool}", venv / "bin" / "python", "-m", "runner"]
        done = jump_host.run([*argv, *words], as_user=True, check=False, limit_s=LIMIT_S)
        return done.returncode, done.stdout, done.stderr

    side = Side("local", call)
    try:
        yield side
    finally:
        for pid, user, words in jump_host.processes():
            if user == jump_host.user and str(venv) in words and "supervisord.py" in words:
                jump_host.run(["kill", "-TERM", str(pid)], check=False)
        wait_for(
            lambda: not any(str(venv) in words for _, _, words in jump_host.processes()),
            60,
            "the end of local's worker",
        )
        shutil.rmtree(home, ignore_errors=True)


def check_journals(machine: FakeGpus) -> dict[str, int]:
    """Nobody came onto a card before the one before had gone; who was there how often."""
    times: dict[str, int] = {}
    for uuid in machine.uuids:
        lines = (machine.folder / "cards" / uuid / ".witness").read_text().splitlines()
        for first, second in zip(lines[::2], lines[1::2], strict=True):
            who = first.partition(" ")[0]
            assert (first, second) == (f"{who} on", f"{who} off"), lines
            times[who] = times.get(who, 0) + 1
    return times


def test_a_card_has_one_run_of_all_the_workers_of_an_account(
    containers: list[Side], local: Side, fake_gpus: FakeGpus
) -> None:
    sides = [*containers, local]
    # each waits for the other's run, and says whose it is
    first = containers[0].submit(2, 0, 600)
    wait_for(lambda: fake_gpus.used_mib(1) > 2000, 60, "the first run to hold both cards")
    waiting = [side.submit(count, 0.3) for side, count in zip(sides[1:], (2, 1), strict=True)]
    for side, run in zip(sides[1:], waiting, strict=True):
        wait_for(lambda s=side, r=run: first in s.reason(r), 20, f"{run} to say whom it waits for")
        assert side.reason(run).startswith("queued: ")
    containers[0].runner("cancel", first, "--now")
    for side, run in zip(sides[1:], waiting, strict=True):
        side.runner("wait", run)
    for uuid in fake_gpus.uuids:
        (fake_gpus.folder / "cards" / uuid / ".witness").write_text("")

    # twelve at one moment
    def submit(side: Side) -> list[str]:
        return [side.submit(2 if number == 1 else 1, 0.4) for number in range(RUNS_EACH)]

    with concurrent.futures.ThreadPoolExecutor(len(sides)) as pool:
        runs = list(pool.map(submit, sides))
    for side, ids in zip(sides, runs, strict=True):
        side.runner("wait", *ids)
    assert check_journals(fake_gpus) == {side.name: RUNS_EACH + 1 for side in sides}
