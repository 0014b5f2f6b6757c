"""Exactly one run from the words typed, whatever becomes of the process or of the link."""

from __future__ import annotations

import base64
import itertools
import json
import os
import random
import shutil
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
from runner.app import runs, submit
from runner.errors import Conflict, HostError, NotFound, OutcomeUnknown, SpecError, WorkerError
from runner.intents import intent_words
from runner.spec import parse_submit
from tests.helpers.hostile_worker import Frame, hostile_host
from tests.helpers.link import Link, make_link
from tests.helpers.local_worker import LocalWorker, read
from tests.helpers.small_disk import small_disk

ROOT = Path(__file__).parents[2]
DYING = """
import os, sys
from runner.transfer import send
from runner.app import context, submit
from runner.spec import parse_submit
at, words = sys.argv[1], sys.argv[2:]
send.AT_ONCE = 1
class Report:
    def note(self, text): self.step(text)
    def trouble(self, text): self.step(text)
    def step(self, text):
        if at in text: os.kill(os.getpid(), 9)
    def done(self): pass
    def warn(self, text): pass
def announce(ids):
    if at == "announce": os.kill(os.getpid(), 9)
command = None if "job=" in str(words) else ["true"]
submit.submit(context.open_context(Report()), parse_submit(words, command), announce)
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
    answers: dict[str, list[Frame]] = {"submit": []}
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
        return submit.submit(warm_worker.ctx, request, lambda ids: None, random.Random(1))

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
        return spec_of(warm_worker, submit.submit(warm_worker.ctx, request, lambda ids: None)[0])

    first, second, third = submit_job(), submit_job("lr=0.2"), submit_job("seed=7")
    seeds = [spec["params"]["seed"] for spec in (first, second)]
    assert seeds[0] != seeds[1]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert third["params"] == {"seed": 7, "lr": 0.1}
    assert (first["given"], second["given"]) == (["seed"], ["lr", "seed"])
    assert first["id"].startswith("j-")


JOB = 'command = ["true"]\nresumable = ["lr"]\n[params]\nseed = -1\nlr = 0.1\n'


def sweep(worker: LocalWorker, *words: str) -> list[str]:
    """The ids of a submit of job `s`."""
    request = parse_submit(["job=s", *words], None)
    printed: list[list[str]] = []
    ids = submit.submit(worker.ctx, request, printed.append)
    assert printed == [ids], "all at once, so that none is printed before all are there"
    return ids


@pytest.fixture
def sweep_worker(warm_worker: LocalWorker) -> LocalWorker:
    """A worker that is up, and a project with a job."""
    warm_worker.file("agents/s.toml", JOB)
    return warm_worker


def test_a_sweep_makes_its_runs_in_order(sweep_worker: LocalWorker, name: str) -> None:
    ids = sweep(sweep_worker, "lr=1,2", "seed=1..20", f"name={name}")
    whole = ids[0].removesuffix(".1")
    assert whole.startswith("s-")
    assert ids == [f"{whole}.{number}" for number in range(1, 41)]
    specs = [spec_of(sweep_worker, run) for run in ids]
    assert {spec["sweep"] for spec in specs} == {whole}
    assert [(spec["params"]["lr"], spec["params"]["seed"]) for spec in specs] == [
        (lr, seed) for lr in (1.0, 2.0) for seed in range(1, 21)
    ]
    assert {tuple(spec["given"]) for spec in specs} == {("lr", "seed")}
    times = [spec["accepted_at"] for spec in specs]
    assert times == sorted(set(times)), "queued in their order"
    notes = sweep_worker.report.notes
    assert notes[-1].startswith(f"sweep  {whole}: 40 runs, ")
    assert intents(sweep_worker) == []


def test_one_value_is_a_plain_run(sweep_worker: LocalWorker) -> None:
    (run,) = sweep(sweep_worker, "seed=5..5")
    spec = spec_of(sweep_worker, run)
    assert (spec["sweep"], spec["params"]["seed"]) == (None, 5)
    assert "." not in run


def test_each_member_draws_its_seed(sweep_worker: LocalWorker) -> None:
    ids = sweep(sweep_worker, "lr=1..3")
    specs = [spec_of(sweep_worker, run) for run in ids]
    seeds = {spec["params"]["seed"] for spec in specs}
    assert len(seeds) == 3
    assert min(seeds) >= 0
    assert specs[0]["given"] == ["lr", "seed"]
    ids = sweep(sweep_worker, "seed=-1,-1,7")
    seeds = {spec_of(sweep_worker, run)["params"]["seed"] for run in ids}
    assert len(seeds) == 3
    assert {7} < seeds
    assert -1 not in seeds


def test_a_command_is_swept(warm_worker: LocalWorker, name: str) -> None:
    request = parse_submit(["each.n=1..3", f"name={name}"], ["echo", "{n}", "{m}"])
    ids = submit.submit(warm_worker.ctx, request, lambda ids: None)
    argvs = [spec_of(warm_worker, run)["argv"] for run in ids]
    assert argvs == [["echo", number, "{m}"] for number in "123"]
    warm_worker.wait(ids[2])
    assert warm_worker.log(ids[2]) == b"3 {m}\n"


@pytest.mark.parametrize("step", ["sending the code", "2 of 3 runs", "sweep  ", "announce"])
def test_a_sweep_killed_at_this_step_is_taken_up(
    sweep_worker: LocalWorker, step: str, name: str
) -> None:
    words = ("lr=1..3", f"name={name}")
    die_at(sweep_worker, step, "job=s", *words)
    (intent,) = intents(sweep_worker)
    expected = {f"{intent.stem}.{number}" for number in (1, 2, 3)}
    before = {run: spec_of(sweep_worker, run) for run in named(sweep_worker, name)}
    assert len(before) == {"sending the code": 0, "2 of 3 runs": 2}.get(step, 3)
    ids = sweep(sweep_worker, *words)
    assert ids == sorted(expected)
    assert named(sweep_worker, name) == expected
    assert {run: spec_of(sweep_worker, run) for run in before} == before, "none was made again"
    assert f"take up  {intent.stem}, which an earlier submit left open" in sweep_worker.report.notes
    assert intents(sweep_worker) == []
    again = sweep(sweep_worker, *words)
    assert not set(again) & expected
    assert named(sweep_worker, name) == expected | set(again)


def test_changed_code_after_a_cut_sweep_keeps_what_was_accepted(
    sweep_worker: LocalWorker, name: str
) -> None:
    words = ("lr=1..3", f"name={name}")
    die_at(sweep_worker, "2 of 3 runs", "job=s", *words)
    (intent,) = intents(sweep_worker)
    sweep_worker.file("a.py", f"new {name}")
    ids = sweep(sweep_worker, *words)
    kept = {f"{intent.stem}.1", f"{intent.stem}.2"}
    assert named(sweep_worker, name) == {*ids, *kept}
    assert len({*ids, *kept}) == 5
    note = f"earlier  {intent.stem} (2 of its runs) was accepted with the code of then; kept"
    assert note in sweep_worker.report.notes
    assert intents(sweep_worker) == []


@pytest.mark.parametrize("count", [300, 4000, 9000])
def test_a_link_cut_within_a_sweep_is_made_again(
    link: Link, sweep_worker: LocalWorker, count: int, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(submit, "RETRY_WAITS_S", (0.0,))
    link.cut_after(count)
    ids = sweep(sweep_worker, "host=far", "lr=1..20", f"name={name}")
    assert len(ids) == 20
    assert named(sweep_worker, name) == set(ids)
    assert intents(sweep_worker) == []


def test_a_link_lost_for_good_within_a_sweep_leaves_the_rest_to_the_same_words(
    link: Link, sweep_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(submit, "RETRY_WAITS_S", ())
    words = ("host=far", "lr=1..20", f"name={name}")
    sweep(sweep_worker, "host=far", "lr=1..2")
    link.cut_after(9000)
    with pytest.raises(OutcomeUnknown, match="may or may not have been accepted"):
        sweep(sweep_worker, *words)
    (intent,) = intents(sweep_worker)
    made = named(sweep_worker, name)
    assert 0 < len(made) < 20
    ids = sweep(sweep_worker, *words)
    assert made < set(ids) == named(sweep_worker, name)
    assert ids[0] == f"{intent.stem}.1"


def test_of_a_sweep_the_code_travels_once(link: Link, sweep_worker: LocalWorker) -> None:
    for number in range(200):
        sweep_worker.file(f"sent/m{number}.py", f"VALUE = {number} * 2\n")
    sweep(sweep_worker, "host=far", "lr=1..2")
    link.forget()
    sweep_worker.file("sent/m7.py", "VALUE = 'other'\n")
    sweep(sweep_worker, "host=far", "lr=1..30")
    changes, pack = data_frames(link.sent)
    assert max(changes, pack) < 150, "one row, one content, for all thirty"


def test_tail_and_size_are_refused_before_anything_is_sent(
    local_worker: LocalWorker,
) -> None:
    local_worker.file("agents/s.toml", JOB)
    for words, options, says in (
        (["lr=1..2"], {"alone": True}, "--tail follows one run; this is a sweep of 2"),
        (["lr=1..1001"], {}, "more than 1,000 need --yes"),
        (["secret.NOT_SET_ANYWHERE"], {}, "the variable NOT_SET_ANYWHERE is not set"),
    ):
        request = parse_submit(["job=s", *words], None)
        with pytest.raises(SpecError, match=says):
            submit.submit(local_worker.ctx, request, lambda ids: None, **options)
    assert not local_worker.workspace.exists()
    assert not (local_worker.project / ".runner").exists()


def test_a_sweeps_id_means_all_its_runs(sweep_worker: LocalWorker, name: str) -> None:
    ids = sweep(sweep_worker, "lr=1..12", f"name={name}")
    whole = ids[0].removesuffix(".1")
    (other,) = sweep(sweep_worker)
    ctx = sweep_worker.ctx

    def meant(word: str) -> list[str]:
        return [ref.id for ref in runs.find(ctx, word)]

    assert meant(whole) == ids, "in their order"
    assert meant(whole[:-1]) == ids
    assert meant(ids[0]) == [ids[0]]
    assert meant(other) == [other]
    for run in ids[3:]:
        (sweep_worker.project / ".runner" / "runs" / f"{run}.json").unlink()
    assert meant(whole) == ids, "whatever is remembered here"
    with pytest.raises(SpecError, match=f"{whole} means 12 runs") as caught:
        runs.find_one(ctx, whole)
    assert caught.value.advice[0] == ids[0]
    with pytest.raises(SpecError, match="s- means"):
        runs.find(ctx, "s-")


def test_after_names_runs_of_the_same_host(sweep_worker: LocalWorker, name: str) -> None:
    first = sweep(sweep_worker, "lr=1..2", f"name={name}")
    (run,) = sweep(sweep_worker, f"after={first[0][:-2]},name:{name}")
    assert spec_of(sweep_worker, run)["after"] == first
    with pytest.raises(NotFound, match="no run s-none0"):
        sweep(sweep_worker, "after=s-none0")
    sweep_worker.file("hosts/other.toml", LINKED)
    with pytest.raises(SpecError, match=f"after: {first[0]} is on local; a run on other cannot"):
        sweep(sweep_worker, "host=other", f"after={first[0]}")
    (sweep_worker.project / "hosts/other.toml").unlink()


def test_the_spec_has_all_that_was_asked(sweep_worker: LocalWorker) -> None:
    words = ["time_limit=12h", "restarts=7", "priority=-5", "stuck_after=30m", "on_stuck=restart"]
    (run,) = sweep(sweep_worker, *words, "log_limit=1g")
    spec = spec_of(sweep_worker, run)
    asked = {"time_limit_s": 43200.0, "restarts": 7, "priority": -5, "stuck_after_s": 1800.0}
    asked |= {"on_stuck": "restart", "log_limit_bytes": 10**9, "keep": None, "keep_best": None}
    asked |= {"resumable": ["lr"], "secrets": [], "sweep": None, "origin": None, "after": []}
    assert {key: spec[key] for key in asked} == asked


def everything_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_a_secret_is_with_the_worker_alone(
    warm_worker: LocalWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("A_TOKEN", "s3cr3t-one")
    file = tmp_path / "token"
    file.write_text("s3cr3t-two\n")
    words = ("secret.A_TOKEN", f"secret.B_TOKEN=@{file}", f"name={name}")
    die_at(warm_worker, "sending the code", *words)
    (intent,) = intents(warm_worker)
    assert b"s3cr3t" not in intent.read_bytes()
    assert base64.b64encode(b"s3cr3t-one") not in intent.read_bytes()
    file.write_text("s3cr3t-new\n")
    request = parse_submit(list(words), ["sleep", "60"])
    die_with = parse_submit(list(words), ["true"])
    assert "s3cr3t" not in repr(request)
    assert submit.submit(warm_worker.ctx, die_with, lambda ids: None) == [intent.stem]
    (run,) = submit.submit(warm_worker.ctx, request, lambda ids: None)
    spec = spec_of(warm_worker, run)
    assert spec["secrets"] == ["A_TOKEN", "B_TOKEN"]
    kept = warm_worker.workspace / ".runner" / "secrets" / run
    assert (kept / "A_TOKEN").read_bytes() == b"s3cr3t-one"
    assert (kept / "B_TOKEN").read_bytes() == b"s3cr3t-new", "read again"
    for folder in (warm_worker.project, warm_worker.run_folder(run)):
        found = everything_below(folder)
        assert b"s3cr3t" not in found
        assert base64.b64encode(b"s3cr3t-one") not in found
    warm_worker.cancel(run, now=True)


def test_secrets_of_a_sweep_reach_every_run(
    link: Link, sweep_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "s3cr3t-one")
    sweep(sweep_worker, "host=far", "lr=1..3", "secret.A_TOKEN")
    frames = wire.FrameReader().feed(link.sent)
    asked = [wire.read_json(payload) for kind, _, payload in frames if kind == wire.REQ]
    submits = [request for request in asked if request["verb"] == "submit"]
    value = base64.b64encode(b"s3cr3t-one").decode()
    assert [request["secrets"] for request in submits] == [{"A_TOKEN": value}] * 3
    assert all(value not in json.dumps(request["spec"]) for request in submits)


def test_a_secret_in_the_project_does_not_travel(
    warm_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(warm_worker.project)
    warm_worker.file("token.txt", "s3cr3t")
    with pytest.raises(SpecError, match=r"secret\.T: 'token\.txt' would travel with the code"):
        warm_worker.submit("true", words=("secret.T=@token.txt", f"name={name}"))
    assert named(warm_worker, name) == set()
    assert intents(warm_worker) == []
    warm_worker.file(".runnerignore", "token.txt\n")
    warm_worker.submit("true", words=("secret.T=@token.txt", f"name={name}"))
    assert len(named(warm_worker, name)) == 1
    (warm_worker.project / ".runnerignore").unlink()
    (warm_worker.project / "token.txt").unlink()


def test_a_secret_wins_over_the_hosts_variable(
    warm_worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", "s3cr3t")
    warm_worker.file("hosts/local.toml", 'runtime = "local"\n[env]\nA_TOKEN = "x"\nB = "y"\n')
    run = warm_worker.submit("true", words=("secret.A_TOKEN",))
    assert spec_of(warm_worker, run)["env"] == {"B": "y"}
    (warm_worker.project / "hosts/local.toml").unlink()


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
    assert data_frames(link.sent) == []
    warm_worker.file("lib/m7.py", "VALUE = 'new'\n")
    link.forget()
    warm_worker.submit("true", words=words)
    changes, pack = data_frames(link.sent)
    assert changes < 150, "one row alone"
    assert pack < 120, "one content alone"


def test_records_can_be_deleted(link: Link, warm_worker: LocalWorker) -> None:
    """A host is believed to hold a snapshot; when it does not, it asks."""
    warm_worker.file("a.py", "x")
    warm_worker.submit("true", words=("host=far",))
    for path in (*warm_worker.workspace.glob(".runner/trees/*"),):
        path.unlink()
    run = warm_worker.submit("true", words=("host=far",))
    assert (warm_worker.workspace / "code" / run / "a.py").read_text() == "x"


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
    """A worker whose workspace is a file system of 6 MB."""
    with small_disk(local_worker.workspace, "6m"):
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


def test_no_room_within_a_sweep_leaves_the_rest_to_the_same_words(
    tiny_worker: LocalWorker,
) -> None:
    tiny_worker.host(slots=1)
    tiny_worker.submit("sleep", "300")
    filler = tiny_worker.workspace / "filler"
    room = shutil.disk_usage(tiny_worker.workspace).free
    filler.write_bytes(b"x" * (room - 1_600_000))
    request = parse_submit(["each.n=1..120", "name=big"], ["true", "{n}"])
    with pytest.raises(WorkerError, match="no room on its disk") as caught:
        submit.submit(tiny_worker.ctx, request, lambda ids: None)
    (intent,) = intents(tiny_worker)
    assert f"of 120 runs of {intent.stem} were made; the same" in caught.value.advice[-1]
    made = named(tiny_worker, "big")
    assert 0 < len(made) < 120
    filler.unlink()
    ids = submit.submit(tiny_worker.ctx, request, lambda ids: None)
    assert made < set(ids) == named(tiny_worker, "big")
    assert ids[0] == f"{intent.stem}.1"
    assert intents(tiny_worker) == []


@pytest.mark.parametrize("words", [(), ("each.N=1..2",)], ids=["one", "sweep"])
def test_records_that_cannot_be_written_undo_nothing(
    local_worker: LocalWorker, words: tuple[str, ...]
) -> None:
    """The run is made by then; its id is what matters."""
    local_worker.submit("true")
    shutil.rmtree(local_worker.project / ".runner/runs")
    (local_worker.project / ".runner/runs").write_text("in the way")
    run = local_worker.submit("true", *(["{N}"] if words else []), words=words)
    assert (local_worker.workspace / "runs" / run).is_dir()
    assert intents(local_worker) == []
    if not words:
        assert any("not in our records" in note for note in local_worker.report.notes)


def test_intent_without_a_readable_spec_is_set_aside(warm_worker: LocalWorker, name: str) -> None:
    request = parse_submit([f"name={name}"], ["true"])
    words = intent_words(request)
    warm_worker.ctx.store.write_intent({"id": "cmd-00000", "words": words, "at": 1}).leave_open()
    made = submit.submit(warm_worker.ctx, request, lambda ids: None)
    assert named(warm_worker, name) == set(made)
    assert [path.stem for path in intents(warm_worker)] == ["cmd-00000"]
    intents(warm_worker)[0].unlink()
