"""Several workers of one workspace: each takes what is its, an old one leaves to its successor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import processes
import pytest

from runner.errors import RunnerError
from tests.helpers.bundles import unpack_bundle
from tests.helpers.local_worker import LocalWorker, read
from tests.helpers.wait import stays, wait_for

LIVES_ON = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)"


class Places:
    """Containers' first programs in one workspace, and a client that goes to one of them."""

    def __init__(self, worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.worker = worker
        self._monkeypatch = monkeypatch
        self.keepers: dict[str, subprocess.Popen[bytes]] = {}
        # a container's own Python is the first on its path
        own = os.path.dirname(sys.executable)
        monkeypatch.setenv("PATH", f"{own}{os.pathsep}{os.environ['PATH']}")
        bundle = str(unpack_bundle(worker.root / "bundle"))
        self.words = [sys.executable, "-I", "-S", "-B", bundle, "supervise"]

    def go_to(self, image: str, generation: int = 1) -> str:
        """From here on the client's requests are answered there."""
        place = f"{image}.{generation}"
        config = self.worker.root / f"{place}.json"
        body = {
            "format": 1,
            "worker": "w-0123456789ab",
            "runtime": "docker",
            "gpus": "none",
            "slots": 8,
        }
        image_of = {"pin": image}
        config.write_text(json.dumps({**body, "image": image_of, "generation": generation}))
        self._monkeypatch.setenv("RUNNER_PLACE", place)
        self._monkeypatch.setenv("RUNNER_WORKER_CONFIG", str(config))
        return place

    def start(self, image: str, generation: int = 1) -> str:
        """Start it, and go to it."""
        place = self.go_to(image, generation)
        with open(self.worker.root / f"{place}.out", "ab") as out:
            self.keepers[place] = subprocess.Popen(
                self.words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        wait_for(lambda: self.dispatcher(place), 20, f"a dispatcher of {place}")
        return place

    def dispatcher(self, place: str) -> int:
        """The pid of a place's dispatcher; 0 when none lives."""
        who = read(self.worker.workspace / f".runner/places/{place}/dispatcher.json")
        return int(who["pid"]) if processes.is_alive(who) else 0

    def place_of(self, run: str) -> object:
        """The place that started a run."""
        return self.worker.state(run).get("place")

    def kill(self, place: str) -> None:
        """As a container is killed: its processes at once, but for those of runs."""
        who = read(self.worker.workspace / f".runner/places/{place}/dispatcher.json")
        supervisor = int(who["supervisor"]["pid"])
        for pid in (self.keepers[place].pid, supervisor, int(who["pid"])):
            os.kill(pid, signal.SIGKILL)
        self.keepers[place].wait(10)

    def ended(self, place: str) -> int:
        """The status of a place's first program, once it has ended."""
        return self.keepers[place].wait(20)

    def close(self) -> None:
        """End them all; their runs get a moment to stop."""
        for keeper in self.keepers.values():
            if keeper.poll() is None:
                keeper.terminate()
        for keeper in self.keepers.values():
            keeper.wait(20)


@pytest.fixture
def several(local_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    made = Places(local_worker, monkeypatch)
    yield made
    for run in sorted((local_worker.workspace / "runs").glob("[!.]*")):
        (run / "cancel-now").touch()
        (run / "cancel").touch()
    made.close()


def let_go(worker: LocalWorker, *runs: str) -> None:
    for run in runs:
        (worker.workspace / "code" / run / "go").touch()


def test_each_takes_the_runs_of_its_image(several: Places) -> None:
    worker = several.worker
    several.start("torch-2.4")
    old = worker.python(LIVES_ON)
    several.start("torch-2.6")
    new = worker.python(LIVES_ON)
    for run in (old, new):
        worker.until(run, "running")
    assert several.place_of(old) == "torch-2.4.1"
    assert several.place_of(new) == "torch-2.6.1"
    # what only its own container can see is told to be elsewhere
    from runner.app import stack

    with pytest.raises(RunnerError) as told:
        stack.stack(worker.ctx, worker.ref(old))
    assert told.value.code == "elsewhere"
    assert worker.status(old).status.state == "running"
    # a cancel from here reaches it all the same
    assert worker.cancel(old)[0].outcome == "cancelled"
    let_go(worker, new)
    assert worker.wait(new).status.outcome == "done"


def test_a_run_waits_for_a_worker_of_its_image(several: Places) -> None:
    worker = several.worker
    place = several.start("torch-2.4")
    os.kill(several.dispatcher(place), signal.SIGSTOP)
    run = worker.python("pass")
    several.kill(place)
    several.start("torch-2.6")
    stays(lambda: worker.state(run).get("state", "queued") == "queued", 1.5, "another's run")
    several.start("torch-2.4", 2)
    assert worker.wait(run).status.outcome == "done"
    assert several.place_of(run) == "torch-2.4.2"


def test_an_old_one_ends_its_runs_and_leaves(several: Places) -> None:
    worker = several.worker
    old = several.start("torch-2.6")
    first = worker.python(LIVES_ON)
    failing = worker.python(f"{LIVES_ON}\nraise SystemExit(3)", words=("restarts=1",))
    for run in (first, failing):
        worker.until(run, "running")
    new = several.start("torch-2.6", 2)
    noticed = worker.workspace / f".runner/places/{old}/retired"
    wait_for(noticed.exists, 10, "the old one's mark that it starts nothing more")
    second = worker.python("pass")
    assert worker.wait(second).status.outcome == "done"
    assert several.place_of(second) == new
    assert worker.state(first)["state"] == "running"
    let_go(worker, failing)
    worker.until(failing, "ended")
    # its second attempt was its successor's
    assert (several.place_of(failing), worker.state(failing)["attempt"]) == (new, 2)
    assert several.keepers[old].poll() is None, "it left while a run lived there"
    let_go(worker, first)
    assert worker.wait(first).status.outcome == "done"
    assert several.place_of(first) == old
    assert several.ended(old) == 0
    folder = worker.workspace / ".runner/places"
    wait_for(lambda: [path.name for path in folder.iterdir()] == [new], 10, "its folder gone")


def test_what_an_old_one_left_when_it_was_killed_is_taken_up(several: Places) -> None:
    worker = several.worker
    old = several.start("torch-2.6")
    run = worker.python(LIVES_ON, words=("restarts=1",))
    worker.until(run, "running")
    new = several.start("torch-2.6", 2)
    launcher = worker.launcher(run)
    several.kill(old)
    os.kill(launcher, signal.SIGKILL)
    wait_for(lambda: worker.state(run).get("attempt") == 2, 60, "another attempt")
    let_go(worker, run)
    assert worker.wait(run).status.outcome == "done"
    assert several.place_of(run) == new
    assert worker.causes(run) == ["launcher-lost", None]


def test_an_old_one_that_comes_back_takes_nothing(several: Places) -> None:
    worker = several.worker
    several.start("torch-2.6", 2)
    several.go_to("torch-2.6")
    old = several.go_to("torch-2.6", 1)
    back = subprocess.run(several.words, stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    assert back.returncode == 0, back.stderr
    assert several.dispatcher(old) == 0
    several.go_to("torch-2.6", 2)
    run = worker.python("pass")
    assert worker.wait(run).status.outcome == "done"


def test_two_containers_of_one_place_are_one_too_many(several: Places) -> None:
    several.start("torch-2.6")
    second = subprocess.run(
        several.words, stdin=subprocess.DEVNULL, capture_output=True, timeout=30
    )
    assert second.returncode == 1
    assert b"another container of this worker lives" in second.stderr
