"""Exactly one run from the words typed, whatever becomes of the process or of the link."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import wire
from runner.app import submit
from runner.errors import Conflict, HostError, NotFound, OutcomeUnknown, SpecError, WorkerError
from runner.spec import parse_submit
from tests.helpers.hostile_worker import Frame, hostile_host
from tests.helpers.link import Link, make_link
from tests.helpers.local_worker import LocalWorker, read
from tests.helpers.small_disk import small_disk

ROOT = Path(__file__).parents[2]
DYING = """
import os, sys
from runner.app import context, submit
from runner.spec import parse_submit
at = sys.argv[1]
class Report:
    def note(self, text): self.step(text)
    def step(self, text):
        if text.startswith(at): os.kill(os.getpid(), 9)
    def done(self): pass
def announce(run):
    if at == "announce": os.kill(os.getpid(), 9)
submit.submit(context.open_context(Report()), parse_submit(sys.argv[2:], ["true"]), announce)
"""
NAMES = itertools.count()
LINKED = 'runtime = "docker"\nssh = "local"\n'


def environment() -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=str(ROOT))


def die_at(worker: LocalWorker, step: str, *words: str) -> None:
    """A submit of these words that is killed when it comes to `step`."""
    argv = [sys.executable, "-c", DYING, step, *words]
    done = subprocess.run(argv, cwd=worker.project, env=environment(), timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL


def start(worker: LocalWorker, *words: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "runner", "submit", *words, "--", "true"]
    return subprocess.Popen(
        argv,
        cwd=worker.project,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def named(worker: LocalWorker, name: str) -> set[str]:
    """The runs of that name that the workspace holds."""
    specs = (read(path) for path in worker.workspace.glob("runs/[!.]*/spec.json"))
    return {str(spec["id"]) for spec in specs if spec.get("name") == name}


def intents(worker: LocalWorker) -> list[Path]:
    return sorted((worker.project / ".runner" / "intents").glob("[!.]*.json"))


def spec_of(worker: LocalWorker, run: str) -> dict[str, Any]:
    return read(worker.run_folder(run) / "spec.json")


@pytest.fixture
def warm_worker(shared_worker: LocalWorker) -> LocalWorker:
    """A worker that is up, so that a submit takes as long as it usually does; no intent is open."""
    if not shared_worker.dispatcher:
        shared_worker.submit("true")
    for intent in intents(shared_worker):
        intent.unlink()
    shared_worker.report.notes.clear()
    return shared_worker


@pytest.fixture
def name() -> str:
    """A name that no run has yet, and a word for the code that no snapshot holds."""
    return f"n{next(NAMES)}"


@pytest.fixture
def link(warm_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Link:
    """The worker, up, once more as host `far`, behind a link."""
    warm_worker.file("hosts/far.toml", LINKED)
    return make_link(tmp_path / "link", monkeypatch.setenv)


def test_killed_at_any_moment_and_typed_again_is_one_run(warm_worker: LocalWorker) -> None:
    began = time.monotonic()
    whole = start(warm_worker, "name=whole")
    whole.communicate(timeout=60)
    lasts_s = time.monotonic() - began
    rng = random.Random(3)
    cut = 0
    for number in range(15):
        name = f"name=k{number}"
        child = start(warm_worker, name)
        try:
            child.wait(lasts_s * (0.35 + 0.65 * (number + rng.random()) / 15))
        except subprocess.TimeoutExpired:
            child.kill()
        printed = child.communicate(timeout=60)[0].split()
        again = warm_worker.submit("true", words=(name,))
        found = named(warm_worker, f"k{number}")
        if printed:
            assert found == {again, printed[0].decode()}, name
        else:
            cut += 1
            assert found == {again}, name
        third = warm_worker.submit("true", words=(name,))
        assert named(warm_worker, f"k{number}") == found | {third}
        assert third not in found
    assert cut >= 5, "the kills came too late to cut anything"
    assert intents(warm_worker) == []


@pytest.mark.parametrize("step", ["sending the code", "queue", "announce"])
def test_killed_at_this_step_is_taken_up(warm_worker: LocalWorker, step: str, name: str) -> None:
    die_at(warm_worker, step, f"name={name}")
    (intent,) = intents(warm_worker)
    assert named(warm_worker, name) <= {intent.stem}
    run = warm_worker.submit("true", words=(f"name={name}",))
    assert run == intent.stem
    assert named(warm_worker, name) == {run}
    assert warm_worker.report.notes[0] == f"take up  {run}, which an earlier submit left open"
    assert intents(warm_worker) == []
    assert warm_worker.submit("true", words=(f"name={name}",)) != run


def test_killed_before_the_intent_is_nothing(warm_worker: LocalWorker, name: str) -> None:
    die_at(warm_worker, "connecting", f"name={name}")
    assert intents(warm_worker) == []
    assert named(warm_worker, name) == set()


def test_other_words_do_not_take_it_up(warm_worker: LocalWorker, name: str) -> None:
    die_at(warm_worker, "sending the code", f"name={name}")
    other = warm_worker.submit("true", words=("name=y",))
    assert [intent.stem for intent in intents(warm_worker)] != [other]
    assert len(intents(warm_worker)) == 1


def test_changed_code_after_a_cut_keeps_what_was_accepted(
    warm_worker: LocalWorker, name: str
) -> None:
    warm_worker.file("a.py", "old")
    die_at(warm_worker, "announce", f"name={name}")
    (intent,) = intents(warm_worker)
    warm_worker.file("a.py", "new")
    run = warm_worker.submit("true", words=(f"name={name}",))
    assert named(warm_worker, name) == {run, intent.stem}
    first, second = (spec_of(warm_worker, each)["snapshot"] for each in (intent.stem, run))
    assert first != second
    note = f"earlier  {intent.stem} was accepted with the code of then; kept"
    assert note in warm_worker.report.notes
    assert intents(warm_worker) == []


def test_changed_code_after_a_cut_that_reached_nothing_is_one_run(
    warm_worker: LocalWorker, name: str
) -> None:
    warm_worker.file("a.py", "old")
    die_at(warm_worker, "sending the code", f"name={name}")
    warm_worker.file("a.py", "new")
    run = warm_worker.submit("true", words=(f"name={name}",))
    assert named(warm_worker, name) == {run}
    assert intents(warm_worker) == []


def test_intent_stays_when_its_host_cannot_be_asked(
    link: Link, warm_worker: LocalWorker, name: str
) -> None:
    die_at(warm_worker, "announce", "host=far", f"name={name}")
    (intent,) = intents(warm_worker)
    warm_worker.file("a.py", f"new {name}")
    link.take_down()
    with pytest.raises(HostError):
        warm_worker.submit("true", words=("host=far", f"name={name}"))
    assert intents(warm_worker) == [intent]
    link.bring_up()
    run = warm_worker.submit("true", words=("host=far", f"name={name}"))
    assert named(warm_worker, name) == {run, intent.stem}


@pytest.mark.parametrize("count", [14, 300, 500])
def test_cut_link_is_made_again_with_the_same_run(
    link: Link, warm_worker: LocalWorker, count: int, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(submit, "RETRY_WAITS_S", (0.0,))
    link.cut_after(count)
    run = warm_worker.submit("true", words=("host=far", f"name={name}"))
    assert named(warm_worker, name) == {run}
    assert intents(warm_worker) == []


def test_link_that_breaks_for_good_leaves_the_intent_open(
    warm_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(submit, "RETRY_WAITS_S", ())
    answers: dict[str, list[Frame]] = {"submit": [(wire.EVENT, {"need": []})]}
    hostile_host(tmp_path, monkeypatch.setenv, answers, ends=True)
    warm_worker.file("hosts/far.toml", LINKED)
    with pytest.raises(OutcomeUnknown, match="may or may not have been accepted") as caught:
        warm_worker.submit("true", words=("host=far", f"name={name}"))
    assert caught.value.status == 9
    assert len(intents(warm_worker)) == 1


def test_link_that_breaks_before_anything_was_handed_over_leaves_nothing(
    link: Link, warm_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(submit, "RETRY_WAITS_S", (0.0,))
    link.take_down()
    with pytest.raises(HostError, match="the link was lost"):
        warm_worker.submit("true", words=("host=far", f"name={name}"))
    assert intents(warm_worker) == []


def test_two_clients_at_once_are_two_runs(warm_worker: LocalWorker) -> None:
    children = [start(warm_worker, "name=both") for _ in range(4)]
    printed = {child.communicate(timeout=60)[0].strip().decode() for child in children}
    assert len(printed) == 4
    assert named(warm_worker, "both") == printed
    assert intents(warm_worker) == []


def test_id_that_another_run_has_is_a_conflict(warm_worker: LocalWorker) -> None:
    def draw(name: str) -> list[str]:
        request = parse_submit([f"name={name}"], ["true"])
        return submit.submit(warm_worker.ctx, request, lambda run: None, random.Random(1))

    (first,) = draw("c1")
    with pytest.raises(Conflict, match=f"there is another run {first}") as caught:
        draw("c2")
    assert caught.value.advice == ("type the same words again",)
    assert intents(warm_worker) == []
    assert named(warm_worker, "c2") == set()
    assert spec_of(warm_worker, first)["name"] == "c1"
    assert warm_worker.submit("true", words=("name=c2",)) != first


def test_values_of_the_environment_are_not_in_the_words(warm_worker: LocalWorker) -> None:
    die_at(warm_worker, "sending the code", "env.TOKEN=s3cr3t")
    (path,) = intents(warm_worker)
    body = json.loads(path.read_text())
    assert "s3cr3t" not in json.dumps(body["words"])
    assert body["spec"]["env"] == {"TOKEN": "s3cr3t"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = warm_worker.submit("true", words=("env.TOKEN=0ther",))
    assert other != path.stem
    assert warm_worker.submit("true", words=("env.TOKEN=s3cr3t",)) == path.stem
    for record in (warm_worker.project / ".runner").rglob("*"):
        assert not record.is_file() or b"s3cr3t" not in record.read_bytes()


def test_seed_is_drawn_once_and_recorded(warm_worker: LocalWorker) -> None:
    warm_worker.file("agents/j.toml", 'command = ["true"]\n[params]\nseed = -1\nlr = 0.1\n')

    def submit_job(*words: str) -> dict[str, Any]:
        request = parse_submit(["job=j", *words], None)
        return spec_of(warm_worker, submit.submit(warm_worker.ctx, request, lambda run: None)[0])

    first, second, third = submit_job(), submit_job("lr=0.2"), submit_job("seed=7")
    seeds = [spec["params"]["seed"] for spec in (first, second)]
    assert seeds[0] != seeds[1]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert third["params"] == {"seed": 7, "lr": 0.1}
    assert (first["given"], second["given"]) == (["seed"], ["lr", "seed"])
    assert first["id"].startswith("j-")


def data_frames(sent: bytes) -> list[int]:
    """Sizes of the DATA frames that a client sent."""
    frames = wire.FrameReader().feed(sent)
    return [len(payload) for kind, _, payload in frames if kind == wire.DATA]


def test_of_an_unchanged_snapshot_nothing_travels(
    link: Link, warm_worker: LocalWorker, name: str
) -> None:
    for number in range(200):
        warm_worker.file(f"lib/m{number}.py", f"VALUE = {number}\n")
    words = ("host=far", f"name={name}")
    warm_worker.submit("true", words=words)
    first = data_frames(link.sent)
    assert sum(first) > 10_000, "the list and the contents"
    link.forget()
    warm_worker.submit("true", words=words)
    assert sum(data_frames(link.sent)) < 20, "an empty pack alone"
    warm_worker.file("lib/m7.py", "VALUE = 'new'\n")
    link.forget()
    warm_worker.submit("true", words=words)
    manifest, *pack = data_frames(link.sent)
    assert sum(pack) < 120 < manifest, "one content alone"


def test_records_can_be_deleted(link: Link, warm_worker: LocalWorker) -> None:
    """A host is believed to hold a snapshot; when it does not, it asks."""
    warm_worker.file("a.py", "x")
    warm_worker.submit("true", words=("host=far",))
    for path in (*warm_worker.workspace.glob(".runner/trees/*"),):
        path.unlink()
    run = warm_worker.submit("true", words=("host=far",))
    assert (warm_worker.workspace / "code" / run / "a.py").read_text() == "x"


def test_content_changed_between_reading_and_sending(warm_worker: LocalWorker, name: str) -> None:
    warm_worker.file("a.py", f"old {name}")

    class Meddling:
        def note(self, text: str) -> None: ...
        def done(self) -> None: ...
        def step(self, text: str) -> None:
            if text == "sending the code":
                warm_worker.file("a.py", "new")

    meddled = dataclasses.replace(warm_worker.ctx, report=Meddling())
    request = parse_submit([f"name={name}"], ["true"])
    with pytest.raises(SpecError, match=r"a\.py changed while it was sent"):
        submit.submit(meddled, request, lambda run: None)
    assert named(warm_worker, name) == set()
    assert intents(warm_worker) == []


@pytest.mark.parametrize(
    "wrong",
    [{"words": ("host=nowhere",)}, {"words": ("image=nope",)}, {"words": ("colour=red",)}],
)
def test_what_is_wrong_is_refused_before_anything_is_touched(
    local_worker: LocalWorker, wrong: dict[str, Any]
) -> None:
    with pytest.raises((SpecError, NotFound)):
        local_worker.submit("true", **wrong)
    assert not local_worker.workspace.exists()
    assert not (local_worker.project / ".runner").exists()


def test_gpus_that_are_not_there(warm_worker: LocalWorker, name: str) -> None:
    with pytest.raises(SpecError, match="asked for 99 GPUs, there") as caught:
        warm_worker.submit("true", words=("gpus=99", f"name={name}"))
    assert "nothing was sent" in caught.value.advice[0]
    assert named(warm_worker, name) == set()
    assert intents(warm_worker) == []


def test_answer_for_another_run(
    warm_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"run": {"id": "cmd-other", "state": "queued"}}
    hostile_host(tmp_path, monkeypatch.setenv, {"submit": [(wire.REP, answer)]})
    warm_worker.file("hosts/far.toml", LINKED)
    with pytest.raises(WorkerError, match="answered for another run"):
        warm_worker.submit("true", words=("host=far",))


@pytest.fixture
def tiny_worker(local_worker: LocalWorker) -> Iterator[LocalWorker]:
    """A worker whose workspace is a file system of 4 MB."""
    with small_disk(local_worker.workspace, "4m"):
        yield local_worker
        local_worker.close()


def test_no_room_on_the_worker_leaves_what_is_there(tiny_worker: LocalWorker) -> None:
    tiny_worker.file("a.py", "VALUE = 1\n")
    before = tiny_worker.submit("true", words=("name=before",))
    tiny_worker.wait(before)
    big = tiny_worker.project / "big.bin"
    big.write_bytes(random.Random(1).randbytes(6_000_000))
    with pytest.raises(WorkerError, match="no room on its disk") as caught:
        tiny_worker.submit("true", words=("name=big",))
    assert caught.value.status == 5
    assert named(tiny_worker, "big") == set()
    assert intents(tiny_worker) == []
    code = tiny_worker.workspace / "code" / before / "a.py"
    assert code.read_text() == "VALUE = 1\n"
    assert not list(tiny_worker.workspace.rglob("*.tmp*"))
    big.unlink()
    after = tiny_worker.submit("true", words=("name=after",))
    assert tiny_worker.wait(after).status.outcome == "done"


def test_intent_without_a_readable_spec_is_set_aside(warm_worker: LocalWorker, name: str) -> None:
    request = parse_submit([f"name={name}"], ["true"])
    words = submit.intent_words(request)
    warm_worker.ctx.store.write_intent({"id": "cmd-00000", "words": words, "at": 1}).leave_open()
    made = submit.submit(warm_worker.ctx, request, lambda run: None)
    assert named(warm_worker, name) == set(made)
    assert [path.stem for path in intents(warm_worker)] == ["cmd-00000"]
    intents(warm_worker)[0].unlink()
