"""Runs from runs: a resumed run goes on where it was, a fork and a reproduction are new ones."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.app import again, retrying, submit
from runner.app.runs import RunRef
from runner.endpoint import Worker
from runner.errors import (
    Conflict,
    HostError,
    NotFound,
    OutcomeUnknown,
    RunnerError,
    SpecError,
    WrongState,
)
from runner.grammar.changes import parse_changes
from runner.spec import parse_submit
from tests.helpers.link import Link, make_link
from tests.helpers.local_worker import LocalWorker, read
from tests.helpers.wait import wait_for

ROOT = Path(__file__).parents[2]
COUNT = """
import hashlib, json, os, sys, time
params = json.load(open(os.environ["RUNNER_PARAMS"]))
resume, folder = os.environ["RUNNER_RESUME"], os.environ["RUNNER_CHECKPOINTS"]
step = json.load(open(resume + "/manifest.json"))["step"] if resume else 0
print("attempt", os.environ["RUNNER_ATTEMPT"], "from", step, "word", os.environ.get("WORD"))
print("key", os.environ.get("KEY"), "lr", params["lr"], "seed", params["seed"], flush=True)
while step < params["steps"]:
    step += 1
    if step == params["fail_at"]:
        sys.exit(3)
    time.sleep(params["pause"])
    name, state = "step-%09d" % step, json.dumps([step, params["lr"]]).encode()
    if step >= params["saves_from"]:
        os.makedirs(folder + "/." + name, exist_ok=True)  # one that was killed left it
        open(folder + "/." + name + "/state.json", "wb").write(state)
        files = {"state.json": {"bytes": len(state), "sha256": hashlib.sha256(state).hexdigest()}}
        manifest = {"format": 1, "step": step, "metrics": {}, "files": files}
        json.dump(manifest, open(folder + "/." + name + "/manifest.json", "w"))
        os.rename(folder + "/." + name, folder + "/" + name)
    print("step", step, flush=True)
print("end", step, flush=True)
"""
RECIPE = """
entry = "count.py"
restarts = 0
resumable = ["steps", "fail_at", "pause"]
[params]
steps = 3
seed = -1
lr = 0.5
pause = 0.0
fail_at = 0
saves_from = 1
"""
SLOW = "pause=0.05"
LONG = "steps=100_000"
DYING = """
import os, sys
from pathlib import Path
from runner.app import again, context, runs
from runner.grammar.changes import parse_changes
at, command, run = sys.argv[1:4]
class Report:
    def note(self, text): self.step(text)
    def trouble(self, text): self.step(text)
    def step(self, text):
        if text.startswith(at): os.kill(os.getpid(), 9)
    def done(self): pass
    def warn(self, text): pass
def announce(run):
    if at == "announce": os.kill(os.getpid(), 9)
ctx = context.open_context(Report())
make = again.fork if command == "fork" else again.reproduce
make(ctx, runs.RunRef(run, "local"), parse_changes(command, sys.argv[4:]), announce)
"""


@pytest.fixture
def worker(shared_worker: LocalWorker) -> LocalWorker:
    """A worker with a job that counts, and saves at each step."""
    shared_worker.file("agents/count.py", COUNT)
    shared_worker.file("agents/count.toml", RECIPE)
    shared_worker.report.notes.clear()
    return shared_worker


def start(worker: LocalWorker, *words: str) -> str:
    request = parse_submit(["job=count", *words], None)
    return submit.submit(worker.ctx, request, lambda run: None)[0]


def ended(worker: LocalWorker, *words: str) -> str:
    """A run that has ended."""
    run = start(worker, *words)
    worker.wait(run)
    return run


def resume(worker: LocalWorker, run: str, *words: str) -> again.Resumed:
    changes = parse_changes("resume", words)
    return again.resume(worker.ctx, worker.ref(run), changes, lambda run: None)


def fork(worker: LocalWorker, run: str, *words: str, fresh: bool = False) -> str:
    changes = parse_changes("fork", words)
    made = again.fork(worker.ctx, worker.ref(run), changes, lambda run: None, fresh=fresh)
    return made.run.id


def reproduce(worker: LocalWorker, run: str, *words: str) -> str:
    changes = parse_changes("reproduce", words)
    return again.reproduce(worker.ctx, worker.ref(run), changes, lambda run: None).run.id


def spec_of(worker: LocalWorker, run: str) -> dict[str, Any]:
    return read(worker.run_folder(run) / "spec.json")


def runs_from(worker: LocalWorker, source: str) -> set[str]:
    """The runs that were made from another one."""
    specs = [read(path) for path in worker.workspace.glob("runs/[!.]*/spec.json")]
    return {spec["id"] for spec in specs if (spec.get("origin") or {}).get("run") == source}


def steps(worker: LocalWorker, run: str) -> list[int]:
    """The steps its log tells of, in the order they were made."""
    lines = worker.log(run).decode().splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("step ")]


def checkpoints(worker: LocalWorker, run: str) -> Path:
    return worker.workspace / "checkpoints" / run


def until_step(worker: LocalWorker, run: str, step: int) -> None:
    wait_for(lambda: step in steps(worker, run), 20, f"step {step} of {run}")


@pytest.fixture
def live(worker: LocalWorker) -> Iterator[str]:
    """A run that goes on and has saved."""
    run = start(worker, LONG, SLOW)
    until_step(worker, run, 2)
    yield run
    worker.cancel(run, now=True)


# resume


def test_a_failed_run_goes_on_after_its_last_step(worker: LocalWorker) -> None:
    run = ended(worker, "steps=5", "fail_at=4")
    resumed = resume(worker, run, "fail_at=0")
    assert (resumed.run.id, resumed.checkpoint) == (run, "step-000000003")
    assert resumed.run.status.state != "ended"
    assert "with   fail_at 4 → 0" in worker.report.notes
    assert worker.wait(run).status.outcome == "done"
    assert steps(worker, run) == [1, 2, 3, 4, 5]
    assert worker.causes(run) == ["exit", None]
    assert worker.state(run)["attempt"] == 2
    assert "attempt 2 from 3" in worker.log(run).decode()
    assert spec_of(worker, run)["params"]["fail_at"] == 4, "what was submitted is never rewritten"
    assert worker.status(run).status.params["fail_at"] == 0


def test_a_cancelled_run_goes_on(worker: LocalWorker) -> None:
    run = start(worker, "steps=100_000", SLOW)
    until_step(worker, run, 2)
    worker.cancel(run, now=True)
    assert (worker.run_folder(run) / "cancel").exists()
    resume(worker, run, "steps=100_001", "pause=0")
    worker.until(run, "running")
    assert not (worker.run_folder(run) / "cancel").exists()
    assert not (worker.run_folder(run) / "cancel-now").exists()
    (report,) = worker.cancel(run)
    state = worker.state(run)
    assert report.outcome == "cancelled", f"a cancel after it is for the new attempt: {state}"
    assert worker.state(run)["attempt"] == 2


def test_a_run_that_was_cancelled_before_it_began_begins(local_worker: LocalWorker) -> None:
    local_worker.host(slots=1)
    first = local_worker.python("import time; time.sleep(600)")
    local_worker.until(first, "running")
    second = local_worker.python("print('here')")
    local_worker.cancel(second)
    resumed = resume(local_worker, second)
    assert resumed.checkpoint is None
    assert local_worker.status(second).status.state == "queued"
    local_worker.cancel(first, now=True)
    assert local_worker.wait(second).status.outcome == "done"
    assert local_worker.state(second)["attempt"] == 1


def test_a_run_over_its_time_limit_goes_on_with_a_new_one(worker: LocalWorker) -> None:
    run = start(worker, "steps=100_000", SLOW, "time_limit=4s", "grace=0s")
    ending = worker.wait(run)
    assert ending.status.cause and ending.status.cause["kind"] == "time-limit"
    before = steps(worker, run)[-1]
    resumed = resume(worker, run, f"steps={before + 2}", "pause=0")
    assert resumed.checkpoint
    assert worker.wait(run).status.outcome == "done"
    assert steps(worker, run)[-1] == before + 2


def test_a_done_run_goes_on_only_with_more_steps(worker: LocalWorker) -> None:
    run = ended(worker, "steps=3")
    for words in ((), ("steps=3",), ("steps=2",), ("env.WORD=x",)):
        with pytest.raises(WrongState, match="is done; only more steps") as caught:
            resume(worker, run, *words)
        assert caught.value.status == 7
        assert f"runner resume {run} steps=…" in caught.value.advice[0]
        assert f"runner fork {run}" in caught.value.advice[1]
    assert worker.state(run)["attempt"] == 1
    resume(worker, run, "steps=5")
    assert worker.wait(run).status.outcome == "done"
    assert steps(worker, run) == [1, 2, 3, 4, 5], "the first new step is the next one"
    assert json.loads((worker.run_folder(run) / "attempts/2/params.json").read_text())["steps"] == 5
    resume(worker, run, "steps=6")
    assert worker.wait(run).status.params["steps"] == 6
    assert steps(worker, run)[-1] == 6


def test_a_done_command_does_not_go_on(worker: LocalWorker) -> None:
    run = worker.submit("true")
    worker.wait(run)
    with pytest.raises(WrongState, match="is done") as caught:
        resume(worker, run)
    assert "steps" not in caught.value.advice[0]
    with pytest.raises(SpecError, match=f"steps is not a parameter of {run}"):
        resume(worker, run, "steps=5")


@pytest.mark.parametrize("words", [("lr=0.25",), ("seed=3", "steps=9")])
def test_what_is_not_resumable_is_refused_by_name(
    worker: LocalWorker, words: tuple[str, ...]
) -> None:
    run = ended(worker, "fail_at=2")
    name = words[0].split("=")[0]
    with pytest.raises(SpecError, match=f"{name} of {run} cannot be changed by resume") as caught:
        resume(worker, run, *words)
    assert caught.value.status == 2
    assert "steps, fail_at, pause" in caught.value.advice[0]
    assert caught.value.advice[1].endswith(f"runner fork {run} {name}=…")
    assert worker.state(run)["attempt"] == 1
    assert not (worker.run_folder(run) / "resumes").exists()


def test_the_type_of_a_changed_parameter_is_that_of_its_value(worker: LocalWorker) -> None:
    run = ended(worker, "fail_at=2")
    with pytest.raises(SpecError, match="steps is 'many'; it must be a whole number"):
        resume(worker, run, "steps=many")
    with pytest.raises(SpecError, match="stesp is not a parameter of .*did you mean steps"):
        resume(worker, run, "stesp=3")


def test_a_variable_is_changed_for_the_next_attempts(worker: LocalWorker) -> None:
    run = ended(worker, "fail_at=2", "env.WORD=one")
    resume(worker, run, "env.WORD=two")
    worker.wait(run)
    resume(worker, run, "fail_at=0")
    worker.wait(run)
    log = worker.log(run).decode()
    assert [line.split()[-1] for line in log.splitlines() if "word" in line] == [
        "one",
        "two",
        "two",
    ]


def test_a_run_without_a_checkpoint_starts_from_zero(worker: LocalWorker) -> None:
    run = ended(worker, "steps=3", "fail_at=2", "saves_from=9")
    assert resume(worker, run, "fail_at=0").checkpoint is None
    worker.wait(run)
    assert steps(worker, run) == [1, 1, 2, 3]


def test_a_live_run_is_not_resumed(worker: LocalWorker, live: str) -> None:
    with pytest.raises(WrongState, match=rf"{live} is running \(attempt 1\)") as caught:
        resume(worker, live)
    assert caught.value.status == 7
    assert not (worker.run_folder(live) / "resumes").exists()


def test_a_waiting_run_is_not_resumed(local_worker: LocalWorker) -> None:
    local_worker.host(slots=1)
    first = local_worker.python("import time; time.sleep(600)")
    second = local_worker.submit("true")
    with pytest.raises(WrongState, match=rf"{second} is queued \(attempt 1\)"):
        resume(local_worker, second)
    local_worker.cancel(second, first, now=True)


def test_resumed_by_several_at_once_it_goes_on_once(worker: LocalWorker) -> None:
    run = ended(worker, "steps=100_000", "fail_at=3")
    won: list[again.Resumed] = []
    lost: list[RunnerError] = []

    def one() -> None:
        try:
            won.append(resume(worker, run, "fail_at=0", SLOW))
        except RunnerError as error:
            lost.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(won), len(lost)) == (1, 3)
    assert {error.status for error in lost} == {7}
    assert all(run in error.message for error in lost)
    worker.until(run, "running")
    worker.cancel(run, now=True)
    assert worker.state(run)["attempt"] == 2


def test_it_goes_on_where_no_worker_is_up(local_worker: LocalWorker) -> None:
    local_worker.file("agents/count.py", COUNT)
    local_worker.file("agents/count.toml", RECIPE)
    run = ended(local_worker, "fail_at=2")
    local_worker.kill(local_worker.supervisor, local_worker.dispatcher)
    wait_for(lambda: not local_worker.machinery(), 20, "the end of the worker")
    resume(local_worker, run, "fail_at=0")
    assert local_worker.wait(run).status.outcome == "done"
    assert steps(local_worker, run) == [1, 2, 3]


def test_a_cancelled_run_stays_cancelled_when_its_worker_starts_again(
    local_worker: LocalWorker,
) -> None:
    run = local_worker.python("import time; time.sleep(600)")
    local_worker.until(run, "running")
    local_worker.cancel(run, now=True)
    before = local_worker.state(run)
    local_worker.kill(local_worker.supervisor, local_worker.dispatcher)
    other = local_worker.submit("true")
    assert local_worker.wait(other).status.outcome == "done"
    assert local_worker.state(run) == before


# secrets


def test_secrets_are_given_again(worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "s3cr3t-one")
    run = ended(worker, "fail_at=2", "secret.KEY")
    assert spec_of(worker, run)["secrets"] == ["KEY"]
    assert not (worker.workspace / ".runner/secrets" / run).exists()
    for act in (resume, fork, reproduce):
        with pytest.raises(SpecError, match=f"{run} had secrets.*give them again") as caught:
            act(worker, run)
        assert f"runner {act.__name__} {run} secret.KEY" in caught.value.advice[0]
    with pytest.raises(SpecError, match=f"{run} has no secret OTHER"):
        monkeypatch.setenv("OTHER", "x")
        resume(worker, run, "secret.KEY", "secret.OTHER")
    assert runs_from(worker, run) == set()
    monkeypatch.setenv("KEY", "s3cr3t-two")
    resume(worker, run, "secret.KEY")
    worker.wait(run)
    file = worker.project / "key.txt"
    file.write_text("s3cr3t-three\n")
    made = reproduce(worker, run, f"secret.KEY=@{file}")
    worker.wait(made)
    keys = [
        line.split()[1]
        for each in (run, made)
        for line in worker.log(each).decode().splitlines()
        if line.startswith("key")
    ]
    assert keys == ["s3cr3t-one", "s3cr3t-two", "s3cr3t-three"]
    for top in (worker.workspace, worker.project / ".runner"):
        for path in top.rglob("*"):
            if path.is_file() and path.parent.parent.name != "logs":
                assert b"s3cr3t" not in path.read_bytes(), path


# fork


def test_a_fork_goes_on_from_the_last_checkpoint_with_changes(worker: LocalWorker) -> None:
    source = ended(worker, "steps=3", "name=base", "tags=a,b", "env.WORD=one")
    made = fork(worker, source, "steps=5", "lr=0.25", "name=more", "priority=4", "env.WORD=two")
    assert made != source
    assert f"from   step-000000003, {source}" in worker.report.notes
    assert "with   steps 3 → 5, lr 0.5 → 0.25" in worker.report.notes
    assert worker.wait(made).status.outcome == "done"
    assert steps(worker, made) == [4, 5]
    spec, before = spec_of(worker, made), spec_of(worker, source)
    assert spec["origin"] == {"kind": "fork", "run": source, "checkpoint": "step-000000003"}
    assert spec["params"] == {**before["params"], "steps": 5, "lr": 0.25}
    assert set(spec["given"]) >= {"steps", "lr", "seed"}
    assert (spec["name"], spec["tags"], spec["priority"]) == ("more", ["a", "b"], 4)
    assert (spec["snapshot"], spec["argv"]) == (before["snapshot"], before["argv"])
    assert spec["gpus_asked"] == before["gpus_asked"]
    assert spec["accepted_at"] > before["accepted_at"]
    assert "word two" in worker.log(made).decode()
    status = worker.status(made).status
    assert status.origin and status.origin["run"] == source
    first = checkpoints(worker, source) / "step-000000003/state.json"
    linked = checkpoints(worker, made) / "step-000000003/state.json"
    assert first.samefile(linked)


def test_a_fork_is_of_a_run_as_it_stands(worker: LocalWorker) -> None:
    source = ended(worker, "steps=3")
    resume(worker, source, "steps=4", "env.WORD=late")
    worker.wait(source)
    made = fork(worker, source)
    worker.wait(made)
    assert spec_of(worker, made)["params"]["steps"] == 4
    assert "word late" in worker.log(made).decode()
    assert steps(worker, made) == []


def test_a_fork_of_a_live_run_leaves_it_alone(worker: LocalWorker, live: str) -> None:
    made = fork(worker, live, "pause=0", "steps=50")
    assert worker.wait(made).status.outcome == "done"
    begun = spec_of(worker, made)["origin"]["checkpoint"]
    assert steps(worker, made)[0] == int(begun.removeprefix("step-")) + 1
    assert worker.state(live)["state"] == "running"
    assert not list(checkpoints(worker, live).glob(".*bad*"))


def test_what_the_source_removes_stays_in_the_fork(worker: LocalWorker) -> None:
    source = ended(worker, "steps=3")
    made = fork(worker, source, "steps=4", "fail_at=4")
    worker.wait(made)
    name = spec_of(worker, made)["origin"]["checkpoint"]
    for path in (checkpoints(worker, source) / name).iterdir():
        path.unlink()
    (checkpoints(worker, source) / name).rmdir()
    assert json.loads((checkpoints(worker, made) / name / "state.json").read_text()) == [3, 0.5]
    resume(worker, made, "fail_at=0")
    assert worker.wait(made).status.outcome == "done"
    assert steps(worker, made) == [4]


def test_a_damaged_checkpoint_is_passed_over_and_stays_where_it_is(worker: LocalWorker) -> None:
    source = ended(worker, "steps=3")
    newest = checkpoints(worker, source) / "step-000000003/state.json"
    newest.write_bytes(b"[9, 0.5]")
    made = fork(worker, source)
    worker.wait(made)
    assert spec_of(worker, made)["origin"]["checkpoint"] == "step-000000002"
    assert steps(worker, made) == [3]
    assert newest.read_bytes() == b"[9, 0.5]"


def test_a_fork_without_a_checkpoint_is_refused_and_fresh_is_the_way_out(
    worker: LocalWorker,
) -> None:
    source = ended(worker, "saves_from=9")
    with pytest.raises(NotFound, match=f"{source} has no good checkpoint") as caught:
        fork(worker, source, "lr=0.25")
    assert caught.value.advice == (f"from zero: runner fork {source} --fresh",)
    assert runs_from(worker, source) == set()
    assert not list((worker.project / ".runner/intents").glob("[!.]*.json"))
    assert not list((worker.workspace / "checkpoints").glob(".tmp*"))
    made = fork(worker, source, "lr=0.25", fresh=True)
    worker.wait(made)
    assert steps(worker, made) == [1, 2, 3]


def test_a_fresh_fork_begins_at_zero(worker: LocalWorker) -> None:
    source = ended(worker, "steps=3")
    made = fork(worker, source, "seed=-1", fresh=True)
    worker.wait(made)
    assert steps(worker, made) == [1, 2, 3]
    assert spec_of(worker, made)["origin"]["checkpoint"] is None
    seeds = [spec_of(worker, run)["params"]["seed"] for run in (source, made)]
    assert seeds[0] != seeds[1]
    assert min(seeds) >= 0, "a seed is drawn when asked for"


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("host=other",), "host cannot be changed by fork"),
        (("nproc=2",), "nproc cannot be changed by fork"),
        (("lrr=1",), "lrr is not a parameter of .*did you mean lr"),
        (("lr=fast",), "lr is 'fast'; it must be a number"),
        (("priority=5000",), "priority is '5000'; it must be a whole number from -1000 to 1000"),
    ],
)
def test_words_that_fork_does_not_take(
    worker: LocalWorker, words: tuple[str, ...], match: str
) -> None:
    source = ended(worker)
    with pytest.raises(SpecError, match=match):
        fork(worker, source, *words)
    assert runs_from(worker, source) == set()


def test_gpus_that_are_not_there_make_no_fork(worker: LocalWorker) -> None:
    source = ended(worker)
    with pytest.raises(SpecError, match="asked for 99 GPUs"):
        fork(worker, source, "gpus=99")
    assert runs_from(worker, source) == set()


def test_code_that_is_gone_is_said(worker: LocalWorker) -> None:
    worker.file("agents/only.py", "# of this snapshot alone\n")
    source = ended(worker, "fail_at=2")
    tree = worker.workspace / ".runner/trees" / f"{spec_of(worker, source)['snapshot']}.json"
    kept = tree.read_bytes()
    rows = {row[0]: row for row in json.loads(kept)["rows"]}
    digest = rows["agents/only.py"][4]
    blob = worker.workspace / ".runner/blobs" / digest[:2] / digest[2:]
    content = blob.read_bytes()
    blob.unlink()
    acts: tuple[Callable[..., Any], ...] = (fork, reproduce)
    for act in acts:
        with pytest.raises(NotFound, match=f"the code of {source} is gone from the worker"):
            act(worker, source)
    tree.unlink()
    for act in (*acts, resume):
        with pytest.raises(NotFound, match=f"the code of {source} is gone from the worker"):
            act(worker, source)
    assert runs_from(worker, source) == set()
    tree.write_bytes(kept)
    blob.write_bytes(content)


# reproduce


def test_a_reproduction_is_the_same_run_from_zero(worker: LocalWorker) -> None:
    source = ended(worker, "steps=3", "lr=0.25", "env.WORD=one", "name=base")
    worker.file("agents/count.py", COUNT + "# changed meanwhile\n")
    made = reproduce(worker, source)
    assert worker.wait(made).status.outcome == "done"
    assert steps(worker, made) == [1, 2, 3]
    before, after = spec_of(worker, source), spec_of(worker, made)
    assert after["origin"] == {"kind": "reproduce", "run": source, "checkpoint": None}
    changed = {key for key in {*before, *after} if before.get(key) != after.get(key)}
    assert changed == {"id", "accepted_at", "origin", "name"}
    assert worker.log(made) == worker.log(source)
    again_made = reproduce(worker, made)
    worker.wait(again_made)
    assert spec_of(worker, again_made)["params"] == before["params"]


def test_a_reproduction_takes_no_changes(worker: LocalWorker) -> None:
    with pytest.raises(SpecError, match="lr cannot change in a reproduction"):
        parse_changes("reproduce", ["lr=0.25"])


def test_a_reproduction_in_another_image_is_refused(worker: LocalWorker) -> None:
    source = ended(worker)
    config = worker.workspace / ".runner/worker.json"
    before = config.read_bytes()
    spec = worker.run_folder(source) / "spec.json"
    spec.write_text(json.dumps({**read(spec), "worker_image": "torch-2.6"}))
    config.write_text(json.dumps({**read(config), "image": "torch-2.7"}))
    try:
        with pytest.raises(SpecError, match=r"ran in image torch-2\.6; local has torch-2\.7 now"):
            reproduce(worker, source)
        assert runs_from(worker, source) == set()
    finally:
        config.write_bytes(before)


def test_a_reproduction_in_a_pin_that_is_made_of_another_base_now_is_refused(
    worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ended(worker)
    spec = worker.run_folder(source) / "spec.json"
    assert read(spec)["worker_image_id"] is None  # this machine's own Python is no image
    one, other = "sha256:" + "1" * 64, "sha256:" + "2" * 64
    spec.write_text(json.dumps({**read(spec), "worker_image_id": one}))
    config = tmp_path / "worker.json"  # as a worker in a container has it
    known = read(worker.workspace / ".runner/worker.json")
    config.write_text(json.dumps({**known, "image": {"pin": None, "id": other}}))
    monkeypatch.setenv("RUNNER_WORKER_CONFIG", str(config))
    with pytest.raises(WrongState, match="made of sha256:1+; .* sha256:2+ now"):
        reproduce(worker, source)
    assert runs_from(worker, source) == set()


# exactly once


def far(worker: LocalWorker, tmp_path: Path, set_env: Callable[[str, str], None]) -> Link:
    """The worker once more as host `far`, behind a link."""
    worker.file("hosts/far.toml", 'runtime = "docker"\nssh = "local"\n')
    return make_link(tmp_path / "link", set_env)


@pytest.mark.parametrize("missing", [100, 400])
def test_a_reply_that_is_lost_is_asked_for_again(
    worker: LocalWorker, missing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "ACT_WAITS_S", (0.0, 0.0))
    link = far(worker, tmp_path, monkeypatch.setenv)
    changes = parse_changes("fork", ["fail_at=0"])
    first, second = (ended(worker, "steps=3", "fail_at=3") for _ in range(2))

    def act(source: str, do: Callable[..., Any]) -> Any:
        link.forget()
        return do(worker.ctx, RunRef(source, "far"), changes, lambda run: None)

    act(first, again.fork)
    link.cut_after(link.received - missing)
    made = act(second, again.fork).run.id
    assert runs_from(worker, second) == {made}
    act(first, again.resume)
    link.cut_after(link.received - missing)
    act(second, again.resume)
    worker.wait(second)
    assert worker.state(second)["attempt"] == 2
    assert [path.name for path in (worker.run_folder(second) / "resumes").iterdir()] == ["1.json"]
    assert not (link.folder / "limit").exists(), "it was not cut"


def test_a_link_that_breaks_for_good_leaves_it_unknown(
    worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "ACT_WAITS_S", ())
    link = far(worker, tmp_path, monkeypatch.setenv)
    source = ended(worker, "steps=3", "fail_at=3")
    changes = parse_changes("fork", ["fail_at=0"])

    def act(do: Callable[..., Any]) -> Any:
        link.forget()
        return do(worker.ctx, RunRef(source, "far"), changes, lambda run: None)

    act(again.fork)
    link.cut_after(link.received - 100)
    with pytest.raises(OutcomeUnknown, match="may or may not have been accepted"):
        act(again.fork)
    assert len(runs_from(worker, source)) == 2
    known = act(again.fork).run.id
    assert known in runs_from(worker, source)
    assert len(runs_from(worker, source)) == 2
    link.cut_after(200)
    with pytest.raises(HostError):
        act(again.resume)
    assert worker.state(source)["attempt"] == 1, "nothing was asked for"


def test_a_repeated_request_is_answered_with_what_is_there(worker: LocalWorker) -> None:
    source = ended(worker, "steps=3", "fail_at=3")
    go_on: dict[str, Any] = {"run": source, "params": {"fail_at": 0}, "token": "t-1"}
    make: dict[str, Any] = {"id": "count-again", "source": source, "kind": "fork"}
    make.update(checkpoint="last", params={"fail_at": 0})
    with Worker(worker.ctx.hosts["local"]) as link:
        replies = [link.call("again", **make)[0] for _ in range(2)]
        assert [reply["repeated"] for reply in replies] == [False, True]
        assert {reply["checkpoint"] for reply in replies} == {"step-000000002"}
        for other in ({"params": {"fail_at": 1}}, {"kind": "reproduce", "params": {}}):
            with pytest.raises(Conflict, match="exists with another spec"):
                link.call("again", **{**make, **other})
        assert [link.call("resume", **go_on)[0]["repeated"] for _ in range(2)] == [False, True]
        worker.wait(source)
        assert link.call("resume", **go_on)[0]["repeated"]
    assert worker.state(source)["attempt"] == 2
    worker.wait("count-again")
    assert steps(worker, "count-again") == [3]


def test_what_a_cut_request_left_is_made_anew(worker: LocalWorker) -> None:
    source = ended(worker, "steps=3")
    left = checkpoints(worker, "count-cut") / "step-000000099"
    left.mkdir(parents=True)
    with Worker(worker.ctx.hosts["local"]) as link:
        link.call(
            "again",
            id="count-cut",
            source=source,
            kind="fork",
            checkpoint="last",
            params={"steps": 4},
        )
    worker.wait("count-cut")
    assert not left.exists()
    assert steps(worker, "count-cut") == [4]


def test_a_worker_checks_what_a_client_asks_for(worker: LocalWorker) -> None:
    source = ended(worker, "steps=3")
    failed = ended(worker, "fail_at=2")
    wrong: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("resume", {"run": "count-nowhere"}, "unknown-run"),
        ("resume", {"run": source}, "wrong-state"),
        ("resume", {"run": source, "params": {"steps": 3}}, "wrong-state"),
        ("resume", {"run": failed, "params": {"lr": 1.0}}, "bad-request"),
        ("resume", {"run": failed, "params": [1]}, "bad-request"),
        ("again", {"source": source, "kind": "fork"}, "bad-request"),
        ("again", {"source": source, "id": "x", "kind": "spoon"}, "bad-request"),
        ("again", {"source": source, "id": "../x", "kind": "fork"}, "bad-request"),
        (
            "again",
            {"source": source, "id": "x", "kind": "fork", "params": {"nope": 1}},
            "bad-request",
        ),
    )
    with Worker(worker.ctx.hosts["local"]) as link:
        for verb, asked, code in wrong:
            with pytest.raises(RunnerError) as caught:
                link.call(verb, **asked)
            assert getattr(caught.value, "code", None) == code, asked
    assert worker.state(source)["attempt"] == worker.state(failed)["attempt"] == 1
    assert runs_from(worker, source) == set()


def test_a_worker_sees_that_a_run_goes_on_already(worker: LocalWorker, live: str) -> None:
    """A client looks first; this is what it finds when it was too late."""
    pending = ended(worker, "fail_at=2")
    folder = worker.run_folder(pending) / "resumes"
    folder.mkdir()
    (folder / "1.json").write_text("{}")
    with Worker(worker.ctx.hosts["local"]) as link:
        with pytest.raises(WrongState, match=rf"{live} is running \(attempt 1\)"):
            link.call("resume", run=live)
        with pytest.raises(WrongState, match=f"{pending} was resumed already; attempt 2 is next"):
            link.call("resume", run=pending)
    (folder / "1.json").unlink()
    with open(worker.run_folder(pending) / "resume.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(WrongState, match="is being resumed by another command"):
            resume(worker, pending)
    resume(worker, pending, "fail_at=0")
    assert worker.wait(pending).status.outcome == "done"


def test_one_that_waits_for_a_failed_run_is_not_resumed(worker: LocalWorker) -> None:
    first = ended(worker, "fail_at=1")
    second = start(worker, f"after={first}")
    assert worker.wait(second).status.outcome == "skipped"
    with pytest.raises(WrongState, match=f"waits for {first}, which is failed; resume that first"):
        resume(worker, second)
    resume(worker, first, "fail_at=0")
    resume(worker, second)
    assert worker.wait(second).status.outcome == "done"
    assert worker.state(first)["ended_at"] <= worker.state(second)["started_at"]


def test_an_intent_has_no_value_of_a_secret(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "s3cr3t-four")
    source = ended(worker, "secret.KEY")
    words = ["secret.KEY", "env.WORD=w0rd"]
    argv = [sys.executable, "-c", DYING, "announce", "fork", source, *words]
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    subprocess.run(argv, cwd=worker.project, env=env, timeout=60, check=False)
    (intent,) = (worker.project / ".runner/intents").glob("[!.]*.json")
    text = intent.read_text()
    assert "s3cr3t" not in text
    assert "czNjcjN0" not in text, "not in base64 either"
    assert "w0rd" not in json.dumps(json.loads(text)["words"])
    assert stat.S_IMODE(intent.stat().st_mode) == 0o600
    assert fork(worker, source, *words) == intent.stem
    worker.wait(intent.stem)


@pytest.mark.parametrize("command", ["fork", "reproduce"])
@pytest.mark.parametrize("step", ["from", "queue", "announce"])
def test_killed_at_this_step_the_same_words_make_one_run(
    worker: LocalWorker, command: str, step: str
) -> None:
    source = ended(worker)
    words = ["lr=0.75", "env.WORD=w"] if command == "fork" else []
    argv = [sys.executable, "-c", DYING, step, command, source, *words]
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(argv, cwd=worker.project, env=env, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    (intent,) = (worker.project / ".runner/intents").glob("[!.]*.json")
    act = fork if command == "fork" else reproduce
    assert act(worker, source, *words) == intent.stem
    assert runs_from(worker, source) == {intent.stem}
    assert not intent.exists()
    second = act(worker, source, *words)
    assert runs_from(worker, source) == {intent.stem, second}
    assert second != intent.stem
    for run in (intent.stem, second):
        worker.wait(run)


def test_killed_at_any_moment_the_same_words_make_one_run(worker: LocalWorker) -> None:
    source = ended(worker)
    argv = [sys.executable, "-m", "runner", "fork", source, "lr=0.125"]
    env = dict(os.environ, PYTHONPATH=str(ROOT))

    def type_it(limit_s: float | None) -> str:
        child = subprocess.Popen(
            argv, cwd=worker.project, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
        assert child.stdout
        return child.communicate(timeout=60)[0].decode().strip()

    began = time.monotonic()
    known = {type_it(None)}
    lasts_s = time.monotonic() - began
    cut = 0
    for number in range(6):
        printed = type_it(lasts_s * (0.45 + 0.09 * number))
        made = type_it(None)
        known |= {made, printed} - {""}
        cut += not printed
        assert runs_from(worker, source) == known, number
    assert cut >= 2, "the kills came too late to cut anything"
    assert len(known) == 1 + 12 - cut


# the commands


def typed(worker: LocalWorker, *argv: str) -> subprocess.CompletedProcess[str]:
    """What a person gets who types `runner ARGV` in the project."""
    command = [sys.executable, "-m", "runner", *argv]
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    return subprocess.run(
        command,
        cwd=worker.project,
        env=env,
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )


def test_resume_prints_the_id_and_tail_shows_what_is_new(worker: LocalWorker) -> None:
    run = ended(worker, "steps=3", "fail_at=3")
    done = typed(worker, "resume", run, "fail_at=0", "--tail", "--wait")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("attempt 2 from 2")
    assert done.stdout.splitlines()[-1] == "end 3"
    assert "step 1" not in done.stdout
    assert done.stderr.splitlines()[0] == f"{run} on local; Ctrl-C leaves it running"
    done = typed(worker, "resume", run, "steps=4", "--wait")
    assert (done.returncode, done.stdout) == (0, f"{run}\n")
    done = typed(worker, "resume", run)
    assert (done.returncode, done.stdout) == (7, "")
    assert f"{run} is done; only more steps resume it" in done.stderr


def test_resume_from_zero_is_said_where_nobody_looks_too(worker: LocalWorker) -> None:
    run = ended(worker, "fail_at=2", "saves_from=9")
    done = typed(worker, "resume", run)
    assert (done.returncode, done.stdout) == (0, f"{run}\n")
    assert done.stderr == f"{run} starts from zero: it has no checkpoint\n"
    worker.wait(run)


def test_fork_and_reproduce_print_the_new_id_alone(worker: LocalWorker) -> None:
    run = ended(worker, "steps=3")
    known: set[str] = set()
    for argv in (("fork", run, "steps=4", "--wait"), ("reproduce", run, "--wait")):
        done = typed(worker, *argv)
        assert (done.returncode, done.stderr) == (0, ""), argv
        known.add(done.stdout.strip())
        assert runs_from(worker, run) == known
    done = typed(worker, "fork", run, "--fresh", "fail_at=2", "--wait", "--json")
    assert done.returncode == 1
    known |= {item["id"] for item in json.loads(done.stdout)["runs"]}
    assert (len(known), runs_from(worker, run)) == (3, known)
    assert typed(worker, "reproduce", run, "--fresh").returncode == 2
    assert typed(worker, "fork", run, "--tail", "--json").returncode == 2
    assert typed(worker, "fork", "steps=3").returncode == 2
    assert typed(worker, "fork", "count-nowhere").returncode == 6


def test_a_run_whose_predecessor_is_gone_is_not_resumed(local_worker: LocalWorker) -> None:
    first = local_worker.submit("sleep", "60")
    second = local_worker.submit("true", words=(f"after={first}",))
    local_worker.cancel(first, now=True)
    assert local_worker.wait(second).status.outcome == "skipped"
    shutil.rmtree(local_worker.run_folder(first))
    with pytest.raises(Conflict, match=f"{first}, which is gone"):
        resume(local_worker, second)
