"""The link cut at every frame of a submit, a tail and a pull; then the same words once more.

Whatever the first command says of itself must be true, and the second one must end right: as many
runs as were meant, every byte of a log once, every file whole.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runner.app import pull, submit, tail
from tests.faults.cuts import DOWN, Cut, cuts
from tests.helpers.link import HANG, KILL, LINGER, MAGIC_SIZE, Link, make_link, program_size
from tests.helpers.local_worker import LocalWorker
from tests.helpers.typed import typed

LINKED = 'runtime = "docker"\nssh = "local"\n'
JOB = 'command = ["true"]\n[params]\nlr = 0.1\n'
WRITES = """
import os, random
draw = random.Random(5)
c = os.environ["RUNNER_CHECKPOINTS"]
os.makedirs(c + "/step-1")
open(c + "/step-1/model.pt", "wb").write(draw.randbytes(2_300_000))
open(c + "/best.pt", "wb").close()
os.makedirs("out"); open("out/a b ü.txt", "w").write("made here\\n" * 5)
for n in range(40_000):
    print("line", n, draw.random())
"""
SAMPLE = 7
SEED = 20
MOST_RETRIES = 8
NO_WORKER = 4
LOST, UNSURE = (3, NO_WORKER), 9
"""Exit statuses: nothing was done there (4: it broke before the worker had said anything, which
through `docker exec` looks like a program that did not start); it may have been done."""


@dataclass
class Place:
    """A project whose host `far` is reached over a link that breaks, and what is on it."""

    worker: LocalWorker
    link: Link
    number: int = 0
    run: str = ""

    @property
    def results(self) -> Path:
        return self.worker.project / "results" / self.run

    def made(self, name: str) -> list[str]:
        """Runs of this name, in order."""
        found = []
        for path in self.worker.workspace.glob("runs/[!.]*/spec.json"):
            spec = json.loads(path.read_bytes())
            if spec.get("name") == name:
                found.append((spec["accepted_at"], spec["id"]))
        return [run for _, run in sorted(found)]

    def files(self) -> dict[str, bytes]:
        """What was pulled."""
        kinds = ("checkpoints", "logs", "work")
        paths = (path for kind in kinds for path in (self.results / kind).rglob("*"))
        return {str(p.relative_to(self.results)): p.read_bytes() for p in paths if p.is_file()}

    def forget_pull(self) -> None:
        shutil.rmtree(self.results, ignore_errors=True)
        (self.worker.project / ".runner" / "pulls" / f"{self.run}.json").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        worker = LocalWorker(patch.setenv)
        try:
            worker.file("hosts/far.toml", LINKED)
            worker.file("hosts/local.toml", 'runtime = "local"\n')
            worker.file("agents/s.toml", JOB)
            patch.chdir(worker.project)
            for module in (submit, tail, pull):
                waits = getattr(module, "RETRY_WAITS_S", None)
                if waits is not None:
                    patch.setattr(module, "RETRY_WAITS_S", (0.02,) * len(waits))
            worker.wait(worker.submit("true", words=("host=local",)))  # the worker is up
            place = Place(worker, make_link(tmp_path_factory.mktemp("cuts") / "link", patch.setenv))
            said = typed("submit", "host=far", "name=writes", "--", "python", "-c", WRITES)
            place.run = said.text.strip()
            worker.until(place.run, "ended")
            assert worker.state(place.run)["outcome"] == "done", worker.log(place.run)[-500:]
            yield place
        finally:
            worker.close()


class Wrong(AssertionError):
    """What a command said is not so, or what it left is not right."""


def demand(truth: object, text: str) -> None:
    if not truth:
        raise Wrong(text)


Trial = Callable[[Place, "list[dict[str, Any]]"], "dict[str, Any]"]
"""Types the command once over a link with these breaks, then again; the row for the table."""


def submit_trial(new_code: bool, *words: str, count: int = 1) -> Trial:
    """A submit makes `count` runs, whatever becomes of the link."""

    def act(place: Place, breaks: list[dict[str, Any]]) -> dict[str, Any]:
        place.number += 1
        name = f"cut-{place.number}"
        if new_code:
            for part, size in (("a", 10), ("b", 900_000)):
                data = random.Random(f"{name} {part}").randbytes(size)
                (place.worker.project / f"{part}.bin").write_bytes(data)
        line = ("submit", "host=far", *words, f"name={name}")
        line = line if "job=s" in line else (*line, "--", "true")
        place.link.plan(*breaks)
        first = typed(*line)
        at_once = place.made(name)
        place.link.plan()
        if first.status == 0:
            demand(
                sorted(first.text.split()) == sorted(at_once),
                f"said {first.text!r}, made {at_once}",
            )
        else:
            demand(first.status in (*LOST, UNSURE), f"exit {first.status}: {first.err}")
            demand(first.out == b"", f"exit {first.status}, and on stdout {first.out!r}")
            demand(len(first.err.splitlines()) <= 3, first.err)
            demand("far" in first.err, first.err)
            demand(first.status == UNSURE or not at_once, f"exit {first.status}, yet {at_once}")
            again = typed(*line)
            demand(again.status == 0, f"again: {again.err}")
            demand(sorted(again.text.split()) == sorted(place.made(name)), "again: other runs")
        made = place.made(name)
        demand(len(made) == count, f"{len(made)} runs")
        demand(set(at_once) <= set(made), f"{at_once} became {made}")
        return {"status": first.status, "runs": len(made) / count}

    return act


def tail_trial(follow: bool, *words: str) -> Trial:
    """Every byte of the log once."""

    def act(place: Place, breaks: list[dict[str, Any]]) -> dict[str, Any]:
        log = place.worker.log(place.run)
        line = ("tail", place.run, *words)
        place.link.plan(*breaks)
        first = typed(*line, *([] if follow else ["--no-follow"]))
        place.link.plan()
        demand(log.startswith(first.out), "other bytes than those of the log")
        if first.status == 0:
            demand(first.out == log, f"exit 0 after {len(first.out)} of {len(log)} bytes")
        else:
            demand(first.status in LOST, f"exit {first.status}: {first.err}")
            demand(first.err.startswith("far: ") and first.err.count("\n") <= 3, first.err)
            rest = typed("tail", place.run, "--from", str(len(first.out)), "--no-follow")
            demand(rest.status == 0, rest.err)
            demand(first.out + rest.out == log, "lost or repeated")
        return {"status": first.status, "lost": 0, "repeated": 0}

    return act


def pull_trial(place: Place, breaks: list[dict[str, Any]]) -> dict[str, Any]:
    """A file is whole, or not there; typed again it goes on."""
    place.forget_pull()
    there = whole(place)
    place.link.plan(*breaks)
    first = typed("pull", place.run)
    place.link.plan()
    found = place.files()
    demand(all(there.get(name) == data for name, data in found.items()), "a file is not whole")
    if first.status == 0:
        demand(found == there, f"exit 0, and {sorted(set(there) - set(found))} did not come")
    else:
        demand(first.status in LOST, f"exit {first.status}: {first.err}")
        demand(first.err.startswith("far: ") and first.err.count("\n") <= 3, first.err)
    again = typed("pull", place.run)
    demand(again.status == 0, again.err)
    demand(place.files() == there, "not all whole after the second pull")
    names = {path.name for path in place.results.iterdir()}
    kept = {"checkpoints", "logs", "work", "spec.json", "state.json"}
    demand(names == kept, f"left over: {sorted(names - kept)}")
    return {"status": first.status, "broken": 0}


def whole(place: Place) -> dict[str, bytes]:
    """What a pull of the run must bring."""
    workspace, run = place.worker.workspace, place.run
    checkpoints = workspace / "checkpoints" / run
    work = workspace / "code" / run / "out/a b ü.txt"
    found = {f"logs/{p.name}": p.read_bytes() for p in (workspace / "logs" / run).iterdir()}
    for name in ("best.pt", "step-1/model.pt"):
        found[f"checkpoints/{name}"] = (checkpoints / name).read_bytes()
    return {**found, "work/out/a b ü.txt": work.read_bytes()}


TRIALS: dict[str, Trial] = {
    "submit, new code": submit_trial(True),
    "submit, code as before": submit_trial(False),
    "submit, sweep of 3": submit_trial(True, "job=s", "lr=1..3", count=3),
    "tail": tail_trial(True),
    "tail --no-follow": tail_trial(False),
    "pull": pull_trial,
}
FOLLOWS = {"tail"}
"""These never give up, so that the link has to come back."""


def breaks_of(cut: Cut, how: str, for_good: bool) -> list[dict[str, Any]]:
    """The first conversation breaks there; for good: each that is tried after it, too."""
    later = [{"down": MAGIC_SIZE}] * (MOST_RETRIES if for_good else 0)
    return [{cut.way: cut.at, "how": how}, *later]


def cases(place: Place, name: str, everything: bool) -> list[tuple[Cut, str, bool]]:
    """(where, how, for good): all of them, or a fixed sample."""
    place.link.forget()
    TRIALS[name](place, [])
    up, down = place.link.talks[0]
    assert not program_size(up), "the worker program is there"
    found = [
        (cut, how, for_good)
        for cut in cuts(up, down, SEED)
        for how in (KILL, LINGER)
        for for_good in ((False,) if name in FOLLOWS else (False, True))
    ]
    return found if everything else random.Random(f"{SEED} {name}").sample(found, SAMPLE)


def try_all(place: Place, name: str, everything: bool, keep: Callable[[str, object], None]) -> None:
    wrong = []
    found = cases(place, name, everything)
    for cut, how, for_good in found:
        row: dict[str, Any] = {"name": name, "cut": cut.id, "how": how, "for_good": for_good}
        try:
            row.update(TRIALS[name](place, breaks_of(cut, how, for_good)))
            silent = cut.at < (MAGIC_SIZE if cut.way == DOWN else 1)
            demand(row["status"] != NO_WORKER or silent, "exit 4, though the worker had spoken")
        except Wrong as error:
            row["wrong"] = str(error)
            wrong.append(f"{cut.id}, {how}, {'for good' if for_good else 'once'}: {error}")
        keep("cut", row)
    assert not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong)


@pytest.mark.parametrize("name", TRIALS)
def test_a_link_that_is_cut_anywhere(
    place: Place, name: str, record_property: Callable[[str, object], None]
) -> None:
    try_all(place, name, False, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRIALS)
def test_a_link_that_is_cut_everywhere(
    place: Place, name: str, record_property: Callable[[str, object], None]
) -> None:
    try_all(place, name, True, record_property)


@pytest.mark.parametrize("name", ["submit, new code", "tail", "pull"])
def test_a_link_that_falls_silent(place: Place, name: str) -> None:
    """No byte, and no word that there will be none: it is noticed, and made anew."""
    place.link.forget()
    TRIALS[name](place, [])
    up, down = place.link.talks[0]
    way, data = ("up", up) if name.startswith("submit") else ("down", down)
    TRIALS[name](place, [{way: len(data) // 2, "how": HANG}])


@pytest.mark.parametrize("name", ["submit, new code", "tail", "pull"])
def test_a_link_that_is_slow(place: Place, name: str) -> None:
    """Slower than a frame needs for the time in which a dead link is noticed."""
    assert TRIALS[name](place, [{"rate": 400_000}])["status"] == 0


def test_a_log_that_is_written_while_its_tail_is_cut_again_and_again(place: Place) -> None:
    code = "import time\nfor n in range(300): print('x' * 500, n, flush=True); time.sleep(0.01)"
    run = typed("submit", "host=far", "--", "python", "-c", code).text.strip()
    draw = random.Random(SEED)
    place.link.plan(*({"down": draw.randrange(MAGIC_SIZE, 40_000)} for _ in range(12)))
    said = typed("tail", run)
    place.link.plan()
    assert said.status == 0, said.err
    assert said.out == place.worker.log(run)
    assert said.out.count(b"\n") == 300
